"""(a) The top weight with and without the scale, and softmax's derivative without it, against d_k."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RAW = Words("top weight, unscaled", "最大权重，不缩放")
SCALED = Words("top weight, / √D", "最大权重，除以 √D")
DERIVATIVE = Words("softmax's derivative, unscaled by scaled", "softmax 导数：不缩放与缩放之比")


def draw_scaling(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw three lines over D: the top weight of 128 keys twice, and the ratio of the derivatives."""
    series = result.series
    axes.plot(series["D"], series["raw_top"], "o-", label=RAW.say(language))
    axes.plot(series["D"], series["scaled_top"], "o-", label=SCALED.say(language))
    axes.plot(series["D"], series["derivative_ratio"], "s--", label=DERIVATIVE.say(language))
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(series["D"], [str(size) for size in series["D"]])
    axes.set_xlabel("D (d_k)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
