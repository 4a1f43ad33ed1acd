"""Cache policies side by side on one text: which tokens each still holds, and what each token cost."""

from typing import TYPE_CHECKING

import numpy as np

from qkv.engine.compared import Compared, Comparison, NotCompared
from qkv.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST, MOST = 1e-6, 10.0
"""Nats: the lowest bar and the highest, on a logarithmic scale."""

KEY = (
    "above: nats of KL(full || policy), 1e-6 to 10 on a log scale; ▼ first other choice\n"
    "below: share of key heads that hold the token at the end"
)

HELD = "Blues"
"""From a token that no key head holds to one that all do."""

COST, PARTED = "#c2410c", "#111827"
"""The colours of nats, and of the place where a policy first prefers another token."""

MASK_TOP, BARS_TOP = 0.5, 0.36
"""Of a row of height 1: where the mask begins, and how far up from there bars may reach."""

WIDTH_INCHES, ROW_INCHES, LEAST_INCHES = 12.0, 0.55, 2.2


def strategies_figure(comparison: Comparison) -> "Figure":
    """Return a figure in which every row has room, drawn.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("drawing needs the extra: pip install 'qkv[viz]'") from None
    height = max(LEAST_INCHES, ROW_INCHES * (1 + len(comparison.rows)) + 1.4)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    draw_strategies(comparison, figure.add_subplot())
    return figure


def draw_strategies(comparison: Comparison, axes: "Axes") -> None:
    """Draw a row for each policy: nats of each token above, below them the tokens it holds at the end.

    A cell is the darker the more key heads, of all layers, hold the token. Bars stand over the token whose
    prediction they judge. A triangle marks the first one of which another is made likeliest.

    Parameters
    ----------
    comparison : Comparison
    axes : matplotlib.axes.Axes
    """
    begins = len(comparison.prompt_ids)
    end = begins + len(comparison.text_ids)
    rows = (comparison.full, *comparison.rows)
    for row, one in enumerate(rows):
        axes.axhline(row, color="lightgrey", linewidth=0.6)
        if isinstance(one, NotCompared):
            axes.text(0, row + 0.5, "not run", fontsize=8, color="grey", va="center")
        else:
            _draw_row(axes, row, one, begins)
    axes.axvline(begins - 0.5, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xlim(-0.5, end - 0.5)
    axes.set_ylim(len(rows) + 0.05, 0)
    axes.set_yticks(np.arange(len(rows)) + 0.6, ["full, float32", *map(_name, comparison.rows)], fontsize=8)
    axes.set_xlabel(f"token: {begins:,} of the prompt, then {end - begins:,}")
    axes.set_title(KEY, loc="left", fontsize=9)
    _write_figures(axes, rows)


def heights(kl: tuple[float, ...]) -> np.ndarray:
    """Return how high the bar of each token is: 0 for ``LEAST`` nats or fewer, 1 for ``MOST`` or more.

    Examples
    --------
    >>> heights((0.0, 1e-6, 1e-2, 10.0, 99.0)).round(3).tolist()
    [0.0, 0.0, 0.571, 1.0, 1.0]
    """
    spans = np.log(np.clip(kl, LEAST, MOST) / LEAST)
    return spans / np.log(MOST / LEAST)


def _draw_row(axes: "Axes", row: int, one: Compared, begins: int) -> None:
    share = one.held.mean(axis=(0, 1))[None]
    box = (-0.5, share.shape[1] - 0.5, row + 0.94, row + MASK_TOP)
    axes.imshow(share, HELD, vmin=0, vmax=1, extent=box, aspect="auto")  # many tokens a pixel: their mean
    edges = begins - 0.5 + np.arange(len(one.kl) + 1)
    floor = row + MASK_TOP
    axes.stairs(floor - BARS_TOP * heights(one.kl), edges, baseline=floor, fill=True, color=COST)
    if one.divergence is not None:
        at = begins + one.divergence.position
        axes.plot([at, at], [row + 0.1, floor], "v-", color=PARTED, markersize=5, linewidth=1, markevery=[0])


def _write_figures(axes: "Axes", rows: tuple[Compared | NotCompared, ...]) -> None:
    """Write each row's mean and bytes on an axis of its own, to the right."""
    beside = axes.twinx()
    beside.set_ylim(axes.get_ylim())
    beside.set_yticks(np.arange(len(rows)) + 0.6, [_figures(one) for one in rows], fontsize=8)
    beside.tick_params(length=0)


def _figures(one: Compared | NotCompared) -> str:
    if isinstance(one, NotCompared):
        return ""
    return f"{one.mean_kl:.2g} nats a token, {one.nbytes / 2**10:,.0f} KiB"


def _name(one: Compared | NotCompared) -> str:
    if one.weights:
        return f"{one.weights} weights"
    return str(one.policy) or "float32"
