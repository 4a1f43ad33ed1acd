"""(f) Which share of pairs is found by where they stand, and where attention lies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ANSWERS = {
    "even": (Words("asked for all alike, N = {N}", "各处问得一样多，N = {N}"), "C0o-"),
    "recent": (Words("asked for the latest, N = {N}", "多问最近的，N = {N}"), "C3x-"),
    "beyond": (Words("the same, N = {beyond}", "同上，N = {beyond}"), "C0o--"),
    "recent_beyond": (Words("the same, N = {beyond}", "同上，N = {beyond}"), "C3x--"),
    "untrained": (Words("untrained", "未训练"), "k:"),
}
MASS = Words("attention in a text, by tenths (right)", "文本中的注意力，按十分之一（右）")
EVEN = Words("untrained (right)", "未训练（右）")
PLACE = Words("place in what is read: front 0, end 1", "在所读内容中的位置：开头 0，结尾 1")
FOUND = Words("share of pairs found", "找回键值对的比例")
ATTENTION = Words("share of attention", "注意力的比例")


def draw_positions(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw right answers by place as lines, and behind them on an axis of its own attention as bars."""
    series, settings = result.series, result.settings
    beside = axes.twinx()
    axes.set_zorder(beside.get_zorder() + 1)
    axes.patch.set_visible(False)
    for name, (words, style) in ANSWERS.items():
        axes.plot(centres(series[name]), series[name], style, label=words.say(language, settings))
    mass, even = series["text_mass"], series["blank_mass"]
    bars = beside.bar(centres(mass), mass, width=0.9 / len(mass), color="gainsboro", zorder=1)
    line = beside.step(centres(even), even, "-", where="mid", color="grey", linewidth=0.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.04)
    beside.set_ylim(0, 1.04)
    axes.set_xlabel(PLACE.say(language))
    axes.set_ylabel(FOUND.say(language))
    beside.set_ylabel(ATTENTION.say(language))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        [*handles, bars, *line],
        [*labels, MASS.say(language), EVEN.say(language)],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=2,
        fontsize="small",
        frameon=False,
    )


def centres(values: Sequence[float]) -> np.ndarray:
    """Return the middles of as many equal parts of the way from 0 to 1 as there are values."""
    return (np.arange(len(values)) + 0.5) / len(values)
