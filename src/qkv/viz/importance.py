"""(e) What each token of one text is worth, and what attention says of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.lab import Language, Number, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OCCLUSION = Words("what replacing it changes", "替换它带来的变化")
WAYS = {
    "last": Words("attention, last layer: tau {last_tau:.2f}", "注意力，最后一层：tau {last_tau:.2f}"),
    "rollout": Words("attention rolled out: tau {rollout_tau:.2f}", "rollout：tau {rollout_tau:.2f}"),
    "gradient": Words("gradient x input: tau {gradient_tau:.2f}", "梯度 × 输入：tau {gradient_tau:.2f}"),
    "recency": Words("distance alone: tau {recency_tau:.2f}", "仅距离：tau {recency_tau:.2f}"),
}
FIRST = Words("; the pair asked for first: {share:.0%}", "；被问的键值对居首：{share:.0%}")
TOKENS = Words("token T", "token T")
SHARE = Words("share of the largest", "占最大值的比例")


def draw_importance(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw the importance of one text's tokens as bars and attention as lines, as shares of their largest."""
    series, numbers = result.series, result.numbers
    tokens = np.arange(1, len(series["importance"]) + 1)
    axes.bar(tokens, share(series["importance"]), color="lightgrey", label=OCCLUSION.say(language))
    for name in (name for name in ("last", "rollout", "gradient") if name in series):
        axes.plot(tokens, share(series[name]), "o-", markersize=3, label=label(name, numbers, language))
    axes.plot(tokens, share(tokens), ":", color="grey", label=label("recency", numbers, language))
    axes.set_xlabel(TOKENS.say(language))
    axes.set_ylabel(SHARE.say(language))
    axes.set_ylim(0, 2)  # the upper half is the legend's
    axes.set_yticks([0, 0.5, 1])
    axes.legend(loc="upper left", fontsize="small")


def label(name: str, numbers: Mapping[str, Number], language: Language) -> str:
    """Return a way's name and tau, and where pairs were asked for, how often it puts the right one first."""
    first = numbers.get(f"recall_{name}")
    found = "" if first is None else FIRST.say(language, {"share": first})
    return WAYS[name].say(language, numbers) + found


def share(values: ArrayLike) -> NDArray[np.float64]:
    """Return values as shares of the largest; as they are where that is 0."""
    x = np.asarray(values, float)
    return x / (x.max() or 1.0)
