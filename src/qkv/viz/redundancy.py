"""(n) What is saved without repeats, and what stays as it was, beside a trim at random."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES = Words("everything is said so many times", "一切被说的次数")
SHARE = Words("share (●)", "比例（●）")
LOSS = Words("text: KL in nats per token (■)", "文本：每个 token 的 KL（nat）（■）")
LINES = {
    "exact_agreement": (Words("same answer, repeats taken out", "去掉重复后回答相同"), "o-", "C0"),
    "random_agreement": (Words("same answer, as many at random", "随机删去同样多后回答相同"), "o--", "black"),
    "cells_saved": (Words("scores saved", "省去的注意力分数"), "^-", "C2"),
    "tokens_saved": (Words("tokens saved", "省去的 token"), "v-", "C1"),
}
SMALLEST = 1e-6
"""Nats: less is rounding, and would stretch a logarithmic axis."""


def draw_redundancy(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw what is saved and what stays as lines, the KL on text as squares; what is at random in black."""
    series = result.series
    times = series["times"]
    if "tokens" in series:
        for name, (words, style, colour) in LINES.items():
            axes.plot(times, series[name], style, color=colour, label=words.say(language))
    beside = axes.twinx()
    for name, colour in (("exact", "C0"), ("random", "black")):
        values = [max(one, SMALLEST) for one in series[f"text_{name}_kl"]]
        beside.plot(times, values, "s:", color=colour)
    beside.set_yscale("log")
    beside.set_ylabel(LOSS.say(language))
    axes.set_xticks(times, [f"{n}×" for n in times])
    axes.set_ylim(0, 1.05)
    axes.set_xlabel(TIMES.say(language))
    axes.set_ylabel(SHARE.say(language))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
