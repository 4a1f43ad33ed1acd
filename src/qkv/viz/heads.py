"""(c) How much of each head's attention lies on each pattern, and what the head costs when taken away."""

from typing import TYPE_CHECKING

import numpy as np

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PATTERNS = {
    "previous": Words("previous", "前一个"),
    "first": Words("first", "第一个"),
    "local": Words("local", "邻近"),
    "duplicate": Words("duplicate", "相同"),
    "induction": Words("induction", "归纳"),
    "delimiter": Words("delimiter", "分隔符"),
}
EVEN = Words("even", "均匀")
HEADS = Words("layer.head, and even attention", "层.头，以及均匀注意力")
COST = Words("cost / largest", "损失 / 最大值")


def draw_heads(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw heads as columns and patterns as rows; the last row is the cost, the last column the control."""
    series = result.series
    cost = np.array(series["cost"])
    scores = np.array(series["scores"])
    control = np.append(series["even"], np.nan)
    rows = np.column_stack([np.vstack([scores, cost / (cost.max() or 1.0)]), control])
    axes.imshow(rows, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    names = [PATTERNS[name].say(language) for name in series["patterns"]]
    axes.set_yticks(range(len(rows)), [*names, COST.say(language)])
    axes.set_xticks(range(rows.shape[1]), [*series["heads"], EVEN.say(language)], rotation=90, fontsize=6)
    axes.set_xlabel(HEADS.say(language))
    axes.axhline(len(names) - 0.5, color="white", linewidth=2)
    axes.axvline(len(cost) - 0.5, color="white", linewidth=2)
