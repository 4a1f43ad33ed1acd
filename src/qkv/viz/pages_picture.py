"""Page tables as a picture: each sequence's pages in the order of its text, then as they lie in the pool."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qkv.errors import OptionError
from qkv.viz.pages import Kind, Page, PageMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Mapping[Kind, str] = {"own": "#dbe4ee", "shared": "#7fb2e5", "copied": "#f4b66a"}
NAMES: Mapping[Kind, str] = {
    "own": "one sequence's own",
    "shared": "held by several",
    "copied": "copied to be written to",
}
FRAME = "#475569"

ROW_INCHES, PAGE_INCHES = 0.62, 0.8

MOST_COLUMNS = 64
"""Pages in a row; a terminal breaks its lines."""


def pages_inches(pages: PageMap) -> tuple[float, float]:
    """Return width and height of a figure in which every page has room for its numbers."""
    columns = max(pages.num_columns, len(pages.pages), 6)
    return columns * PAGE_INCHES + 1.6, (len(pages.sequences) + 2.6) * ROW_INCHES + 0.8


def draw_pages(pages: PageMap, axes: "Axes") -> None:
    """Draw the table of each sequence, below them the physical pages with their holders, then the pool.

    Parameters
    ----------
    pages : PageMap
    axes : matplotlib.axes.Axes
        Made for it alone; its scales are hidden.

    Raises
    ------
    OptionError
        If there are more pages than a picture shows side by side.
    """
    names, columns = list(pages.sequences), max(pages.num_columns, len(pages.pages))
    if columns > MOST_COLUMNS:
        raise OptionError(
            f"a picture shows {MOST_COLUMNS} pages side by side, not {columns}; "
            "print page_table, or take fewer sequences or larger pages"
        )
    for place in range(pages.num_columns):
        span = pages.slots(place)
        axes.text(place + 0.46, -0.08, span, ha="center", fontsize=7, color="grey")
    for row, (name, table) in enumerate(pages.sequences.items()):
        axes.text(-0.15, row + 0.4, name, ha="right", va="center", color=f"C{row}", weight="bold")
        for place, page in enumerate(table):
            _draw_page(axes, (place, row), page, pages.page_size)
    physical = len(names) + 0.5
    axes.text(-0.15, physical + 0.4, "in the pool", ha="right", va="center")
    for place, page in enumerate(pages.pages):
        _draw_page(axes, (place, physical), page, pages.page_size)
        _draw_holders(axes, (place + 0.46, physical + 0.95), page, pages)
    _draw_pool(pages, axes, physical + 1.25, columns)
    _draw_key(axes)
    axes.set_axis_off()
    axes.set_xlim(-0.1, columns)
    axes.set_ylim(physical + 1.95, -0.3)
    axes.set_title(pages.title, loc="left", fontsize=11, pad=22)


def _draw_page(axes: "Axes", at: tuple[float, float], page: Page | None, P: int) -> None:
    """Draw a page as a frame, filled as far as its tokens go; where there is none the frame is broken."""
    from matplotlib.patches import Rectangle

    left, top = at
    frame = {"facecolor": "none", "edgecolor": FRAME, "linewidth": 0.8}
    if page is None:
        axes.add_patch(Rectangle(at, 0.92, 0.8, linestyle=":", **frame))
        return
    axes.add_patch(Rectangle(at, 0.92 * page.tokens / P, 0.8, facecolor=COLOURS[page.kind], linewidth=0))
    axes.add_patch(Rectangle(at, 0.92, 0.8, **frame))
    axes.text(left + 0.46, top + 0.26, f"{page.id}", fontsize=10, ha="center", va="center")
    copied = "" if page.copy_of is None else f", was {page.copy_of}"
    axes.text(left + 0.46, top + 0.6, f"×{page.references}{copied}", fontsize=7, ha="center", va="center")


def _draw_holders(axes: "Axes", at: tuple[float, float], page: Page, pages: PageMap) -> None:
    """Draw a square for each reference: of the sequences in their colours, of an index or others hollow."""
    names = list(pages.sequences)
    colours = [f"C{names.index(name)}" for name in pages.holders(page.id)]
    colours += ["none"] * (page.references - len(colours))
    for number, colour in enumerate(colours):
        left = at[0] + 0.15 * (number - (len(colours) - 1) / 2)
        axes.plot(left, at[1], "s", markerfacecolor=colour, markeredgecolor="grey", markersize=5)


def _draw_key(axes: "Axes") -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=COLOURS[kind], edgecolor=FRAME, label=NAMES[kind]) for kind in COLOURS]
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": len(patches)}
    axes.legend(handles=patches, fontsize=8, frameon=False, borderpad=0.2, **place)


def _draw_pool(pages: PageMap, axes: "Axes", row: float, columns: int) -> None:
    """Draw all pages of the pool as one bar."""
    parts = {
        "these": (len(pages.pages), FRAME),
        "of other heads or texts": (pages.other_pages, "#cbd5e1"),
        "idle": (pages.idle_pages, "#f1f5f9"),
        "free": (pages.free_pages or 0, "white"),
    }
    whole, left = sum(count for count, _ in parts.values()) or 1, 0.0  # a pool may be empty
    axes.text(-0.15, row + 0.2, "all pages", ha="right", va="center")
    for name, (count, colour) in parts.items():
        width = (columns - 0.08) * count / whole
        axes.barh(row + 0.2, width, 0.4, left, color=colour, edgecolor=FRAME, linewidth=0.6, label=name)
        left += width
    says = ", ".join(f"{name} {count:,}" for name, (count, _) in parts.items() if name != "free")
    free = "no budget" if pages.free_pages is None else f"room for {pages.free_pages:,}"
    axes.text(0, row + 0.45, f"{says}, {free}", ha="left", va="top", fontsize=8)
