"""(l) What the slots of a pool were used for, a bar for each way of giving them out."""

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = "#1a7f4b"
KINDS = {
    "token_states": (Words("tokens", "token"), TOKENS),
    "reserved": (Words("set aside, used later", "已预留，稍后使用"), "#8fd3ab"),
    "internal": (Words("set aside, never used", "已预留，从未使用"), "#e6b8a2"),
    "external": (Words("free, of no use to the next", "空闲，但下一个请求用不上"), "#d0d5db"),
}
STRATEGIES = {
    "max": Words("for the longest", "按最长预留"),
    "power of two": Words("power of two", "按 2 的幂"),
    "oracle": Words("oracle", "已知长度"),
}
NEEDS_ROOM = 0.08
"""A smaller share has no room for its number."""


def draw_utilisation(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw stacked bars, pages at the bottom, each share with its percentage where there is room."""
    series = result.series
    names = [STRATEGIES[one].say(language) if one in STRATEGIES else one for one in series["strategy"]]
    shares = np.array([series[kind] for kind in KINDS])
    ends = np.array(list(accumulate(shares)))
    for (words, colour), share, end in zip(KINDS.values(), shares, ends, strict=True):
        bars = axes.barh(names, share, left=end - share, color=colour, label=words.say(language))
        texts = [f"{one:.0%}" if one >= NEEDS_ROOM else "" for one in share]
        axes.bar_label(bars, texts, label_type="center", color="white" if colour == TOKENS else "black")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False)
