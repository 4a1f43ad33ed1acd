"""(m) Which share of facts is found by how many are read at once: from small chunks to the whole document."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENTS = {
    "fits": (Words("{fits} facts, as in training", "{fits} 条，与训练时一样长"), "C2o-"),
    "long": (Words("{N} facts", "{N} 条"), "C0s-"),
    "longest": (Words("{N} facts told {tellings} times", "{N} 条，讲 {tellings} 遍"), "C3^-"),
}
WHOLE = Words("the whole document", "全文")
TWO = {
    "two_whole": Words("whole", "全文"),
    "two_rounds": Words("in two rounds", "所有块两轮"),
    "two_alone": Words("each chunk alone", "每块独自"),
}
TWO_STEPS = Words("found in two steps, of {N} facts:", "{N} 条，分两步找回：")
AT_ONCE = Words("facts read at once (size of a chunk)", "一次读入的条数（块的大小）")
FOUND = Words("share found", "找回的比例")


def draw_chunking(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a line for each document, with the whole of it ringed; questions of two steps stand as words."""
    series, settings = result.series, result.settings
    sizes = sorted({size for name in DOCUMENTS for size in series[f"{name}_size"]})
    axes.axvline(settings["fits"], color="lightgrey", linewidth=6, zorder=0)
    for name, (words, style) in DOCUMENTS.items():
        x, y = series[f"{name}_size"], series[f"{name}_found"]
        axes.plot(x, y, style, label=words.say(language, settings))
        axes.plot(x[-1:], y[-1:], "o", color="black", markersize=13, fillstyle="none")
    axes.plot([], [], "o", color="black", markersize=10, fillstyle="none", label=WHOLE.say(language))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, 1.06)
    axes.set_xlabel(AT_ONCE.say(language))
    axes.set_ylabel(FOUND.say(language))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", title=two_steps(result, language), alignment="left")


def two_steps(result: Result, language: Language) -> str:
    """Return what was found of what takes two steps, as lines."""
    shares = [f"{words.say(language)} {result.numbers[name]:.0%}" for name, words in TWO.items()]
    return "\n".join([TWO_STEPS.say(language, result.settings), *shares])
