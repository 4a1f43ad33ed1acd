"""(b) One head's weights under the mask, and the same without it."""

from typing import TYPE_CHECKING

import numpy as np

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUERIES = Words("query T", "查询 T")
KEYS = Words("key S: with the mask, and without", "键 S：有掩码，无掩码")
GAP = 4
"""Columns between the two maps."""


def draw_causality(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw the weights of one head with the mask on the left and without it on the right."""
    masked, unmasked = (np.array(result.series[name]) for name in ("weights", "unmasked_weights"))
    T = len(masked)
    both = np.concatenate([masked, np.full((T, GAP), np.nan), unmasked], axis=1)
    axes.imshow(np.sqrt(both), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xlabel(KEYS.say(language))
    axes.set_ylabel(QUERIES.say(language))
    axes.set_xticks([0, T - 1, T + GAP, 2 * T + GAP - 1], ["0", str(T - 1), "0", str(T - 1)])
    for name, left in (("future_mass", 0), ("unmasked_future_mass", T + GAP)):
        share = f"{result.numbers[name]:.0%}"
        axes.text(left + 0.72 * T, 0.22 * T, share, color="white", ha="center", va="center", fontsize="large")
