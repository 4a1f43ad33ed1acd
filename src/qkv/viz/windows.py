"""(j) What a window costs on text, and which share of pairs is found through it, against W."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS = Words("text: KL in nats per token (●)", "文本：每个 token 的 KL（nat）（●）")
FOUND = Words("share of pairs found (■)", "找回键值对的比例（■）")
WAYS = {
    "window": (Words("window", "窗口"), "C0"),
    "sinks": (Words("{sinks} of them the first", "其中 {sinks} 个是开头的"), "C1"),
}
IN_SIGHT = Words("pairs in sight", "窗口内的键值对")


def draw_windows(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw the loss on text as lines and, on an axis of its own, the pairs found as dashed ones."""
    series, words = result.series, {"sinks": result.settings["sinks"]}
    for way, (name, colour) in WAYS.items():
        axes.plot(series["W"], series[f"{way}_kl"], "o-", color=colour, label=name.say(language, words))
    axes.set_xscale("log", base=2)
    axes.set_xticks(series["W"], [str(W) for W in series["W"]])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("W")
    axes.set_ylabel(LOSS.say(language))
    axes.grid(alpha=0.3)
    if "kept" in series:
        beside = axes.twinx()
        for way, (_, colour) in WAYS.items():
            beside.plot(series["recall_W"], series[f"{way}_recall"], "s--", color=colour)
        axes.plot([], [], ":", color="grey", label=IN_SIGHT.say(language))
        beside.plot(series["recall_W"], series["kept"], ":", color="grey")
        beside.set_ylim(0, 1.05)
        beside.set_ylabel(FOUND.say(language))
    axes.legend(loc="center right")
