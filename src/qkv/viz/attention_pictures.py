"""The attention of a text as a picture: the grid of heads, or one head's map with its tokens."""

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import OptionError
from qkv.lab.maps import block_starts, pool
from qkv.viz.attention import AttentionView, Head
from qkv.viz.head_names import HEAD_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = "YlOrBr"
"""From hardly to all; what may not be seen is white."""
HEAD_INCHES = 1.25
WIDEST_INCHES = 24.0
MOST_CELLS = 64
"""Rows and columns of a single map."""
CELL_INCHES = 0.17
DOTS_PER_INCH = 150
OPTIONS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attention",
    "image.composite_image": False,  # joining many maps into one takes minutes
    "text.parse_math": False,  # a token may be a dollar
    "font.family": "sans-serif",
}


def picture(view: AttentionView, chosen: Head | None, kind: str) -> bytes:
    """Return the grid of heads, or the map of the chosen one, as a file's bytes.

    Parameters
    ----------
    view : AttentionView
    chosen : (layer, head) or None
    kind : str
        "png" or "svg".

    Raises
    ------
    OptionError
        If matplotlib is not installed, or there is no such head.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("drawing needs the extra: pip install 'qkv[viz]'") from None
    written = io.BytesIO()
    with mpl.rc_context(OPTIONS), warnings.catch_warnings():
        # In SVG the reader's own fonts have the glyphs that this machine's lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        size = grid_inches(view) if chosen is None else map_inches(view)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        draw_grid(view, axes) if chosen is None else draw_map(view, chosen, axes)
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(written, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return written.getvalue()


def grid_inches(view: AttentionView) -> tuple[float, float]:
    """Return width and height of the grid: heads of one size, smaller where there are many."""
    L, H = view.maps.shape
    each = min(HEAD_INCHES, WIDEST_INCHES / max(L, H))
    return H * each + 0.8, L * each * 1.2 + 1.1


def map_inches(view: AttentionView) -> tuple[float, float]:
    """Return width and height of one map with its tokens."""
    cells = max(20, len(block_starts(len(view.tokens), MOST_CELLS)))
    return cells * CELL_INCHES + 2.0, cells * CELL_INCHES + 2.0


def draw_grid(view: AttentionView, axes: "Axes") -> None:
    """Draw every head's map with its name, layers downwards, brackets over heads that share keys.

    Parameters
    ----------
    view : AttentionView
    axes : matplotlib.axes.Axes
        Made for it alone; its scales are hidden.
    """
    L, H = view.maps.shape
    n = len(view.maps.starts)
    axes.set_axis_off()
    axes.set_xlim(-0.45, H)
    axes.set_ylim(1.2 * L, -0.75)
    size = 72 * (axes.get_figure().get_figwidth() - 0.8) / H / 9  # type: ignore[union-attr]
    hidden = np.triu(np.ones((n, n), bool), 1)
    for layer, head in view.maps.heads:
        top = 1.2 * layer + 0.17
        seen = np.ma.array(np.sqrt(view.maps.weights[layer, head]), mask=hidden)
        box = (head + 0.04, head + 0.96, top + 0.92, top)
        axes.imshow(seen, COLOURS, vmin=0, vmax=1, extent=box, interpolation="nearest", aspect="auto")
        named = view.maps.label(layer, head)
        shown = HEAD_NAMES[named.name]
        says = f"{named.name} {named.share:.0%}" if named.has_pattern else shown.short and named.name
        axes.text(head + 0.04, top - 0.04, says, color=shown.light, fontsize=size, va="bottom")
    for layer in range(L):
        axes.text(
            -0.08, 1.2 * layer + 0.63, f"layer {layer}", rotation=90, fontsize=size, va="center", ha="right"
        )
    for head in range(H):
        axes.text(head + 0.5, -0.12, f"head {head}", fontsize=size, ha="center", va="bottom")
    _draw_brackets(view, axes, size)
    axes.set_xlim(-0.45, H)
    axes.set_ylim(1.2 * L, -0.75)
    axes.set_title(view.title, fontsize=max(size, 8), loc="left")


def draw_map(view: AttentionView, at: Head, axes: "Axes") -> None:
    """Draw one head's map: a row for each query, a column for each key, in blocks where there are many.

    Parameters
    ----------
    view : AttentionView
    at : (layer, head)
    axes : matplotlib.axes.Axes
    """
    T = len(view.tokens)
    starts = block_starts(T, MOST_CELLS)
    lengths = np.diff(np.append(starts, T))
    weights = pool(view.head(*at).weights(), starts, starts)
    hidden = np.triu(np.ones(weights.shape, bool), 1)
    image = axes.imshow(np.ma.array(weights, mask=hidden), COLOURS, vmin=0, vmax=1, interpolation="nearest")
    labels = [view.block_label(start, length) for start, length in zip(starts, lengths, strict=True)]
    axes.set_xticks(range(len(starts)), labels, rotation=90, fontsize=8)
    axes.set_yticks(range(len(starts)), labels, fontsize=8)
    block = f", {lengths[0]} x {lengths[0]} tokens a cell" if lengths[0] > 1 else ""
    axes.set_xlabel(f"key S{block}")
    axes.set_ylabel("query T")
    named = view.maps.label(*at)
    share = f" {named.share:.0%}" if named.has_pattern else ""
    says = "" if view.maps.is_short else f": {named.name}{share}"
    axes.set_title(f"{view.name}, layer {at[0]}, head {at[1]}{says}", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure = axes.get_figure()
    assert figure is not None, "the axis is one of a figure"
    figure.colorbar(image, ax=axes, shrink=0.5, label="weight")


def _draw_brackets(view: AttentionView, axes: "Axes", size: float) -> None:
    H, G = view.maps.shape[1], view.maps.num_kv_heads
    if G == H:
        return
    for g in range(G):
        left, right = g * H / G + 0.06, (g + 1) * H / G - 0.06
        axes.plot([left, left, right, right], [-0.3, -0.36, -0.36, -0.3], color="#475569", linewidth=1)
        axes.text((left + right) / 2, -0.4, f"key/value head {g}", fontsize=size, ha="center", va="bottom")
