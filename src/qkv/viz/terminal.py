"""Matrices and curves as shaded cells, for a terminal.

Shade carries the value twice: as a colour where the terminal has colours, and as a number or a
character everywhere, so a log file or a reader who sees no colour loses nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from rich.color import Color
from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from qkv.errors import ShapeError

DARK, BRIGHT = (18, 24, 48), (255, 196, 64)
"""The colours of weight 0 and weight 1."""

SEEN, HIDDEN = "■", "·"
SHADES = " ░▒▓█"


def weight_grid(
    weights: ArrayLike,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    title: str = "",
    numbers: bool = True,
) -> Group:
    """Draw attention weights: one row per query, the brighter the more it takes from that key.

    Parameters
    ----------
    weights : (T, S)
        From 0 to 1.
    rows, columns : sequence of str
        T and S labels; positions when left out.
    title : str
    numbers : bool
        Write each weight into its cell; without them a cell is one of five shades, half as wide.

    Returns
    -------
    rich.console.Group
        To be printed by a `rich.console.Console`.

    Raises
    ------
    ShapeError
        If ``weights`` has not two axes.

    Examples
    --------
    >>> from rich.console import Console
    >>> Console(width=40, no_color=True).print(weight_grid([[1.0, 0.0], [0.25, 0.75]]))
         0     1
     0  1.00   ·
     1  0.25  0.75
    """
    matrix = _matrix(weights)
    draw_cell = _number_cell if numbers else _shade_cell
    cells = [[draw_cell(float(value)) for value in row] for row in matrix]
    return _grid(cells, matrix.shape, rows, columns, title)


def mask_grid(
    mask: ArrayLike, *, rows: Sequence[str] = (), columns: Sequence[str] = (), title: str = ""
) -> Group:
    """Draw a mask: one row per query, a filled cell for each key it may see.

    Parameters
    ----------
    mask : (T, S) bool
    rows, columns : sequence of str
        T and S labels; positions when left out.
    title : str

    Returns
    -------
    rich.console.Group
        To be printed by a `rich.console.Console`.

    Raises
    ------
    ShapeError
        If ``mask`` has not two axes.

    Examples
    --------
    >>> from rich.console import Console
    >>> from qkv import causal_mask
    >>> Console(width=40, no_color=True).print(mask_grid(causal_mask(2)))
         0  1
      0  ■  ·
     1  ■  ■
    """
    matrix = _matrix(mask)
    seen, hidden = Text(f" {SEEN} ", Style(color=_shade(1.0))), Text(f" {HIDDEN} ", Style(dim=True))
    cells = [[seen if visible else hidden for visible in row] for row in matrix]
    return _grid(cells, matrix.shape, rows, columns, title)


def curve(points: Sequence[tuple[str, float]], *, unit: str = "", width: int = 40, title: str = "") -> Group:
    """Draw a bar per point, all to one scale.

    Parameters
    ----------
    points : sequence of (label, value)
        Values of 0 or more.
    unit : str
        Follows each number.
    width : int
        Cells of the longest bar.
    title : str

    Returns
    -------
    rich.console.Group
        To be printed by a `rich.console.Console`.

    Examples
    --------
    >>> from rich.console import Console
    >>> Console(width=40, no_color=True).print(curve([("n=8", 1.0), ("n=16", 2.0)], unit="x", width=4))
     n=8   ██    1.0x
     n=16  ████  2.0x
    """
    table = Table(box=None, show_header=False, padding=(0, 1))
    highest = max((value for _, value in points), default=0.0) or 1.0
    for label, value in points:
        share = value / highest
        bar = Text("█" * max(1, round(share * width)), Style(color=_shade(0.3 + 0.7 * share)))
        table.add_row(Text(label, no_wrap=True), bar, f"{value:.1f}{unit}")
    return _titled(table, title)


def _matrix(values: ArrayLike) -> np.ndarray:
    matrix = np.asarray(values)
    if matrix.ndim != 2:
        raise ShapeError(
            f"a grid shows one (T, S) matrix, not an array of shape {matrix.shape}; "
            "pick one head of one sequence, such as weights[0, 0]"
        )
    return matrix


def _grid(
    cells: list[list[Text]], shape: tuple[int, ...], rows: Sequence[str], columns: Sequence[str], title: str
) -> Group:
    table = Table(box=None, padding=0, pad_edge=True)
    table.add_column("")
    for name in columns or [str(position) for position in range(shape[1])]:
        table.add_column(f" {name} ", justify="center", header_style="dim")
    for name, row in zip(rows or [str(position) for position in range(shape[0])], cells, strict=True):
        table.add_row(Text(f" {name} ", "dim"), *row)
    return _titled(table, title)


def _titled(table: Table, title: str) -> Group:
    return Group(Text(title, "italic"), table) if title else Group(table)


def _number_cell(value: float) -> Text:
    ink = "black" if value > 0.3 else "white"
    shown = f" {value:.2f} " if value > 0 else f"  {HIDDEN}   "
    return Text(shown, Style(color=ink, bgcolor=_shade(value)))


def _shade_cell(value: float) -> Text:
    level = min(int(value**0.5 * len(SHADES)), len(SHADES) - 1)
    return Text(SHADES[level] * 3, Style(color=_shade(value), bgcolor=_shade(0.6 * value)))


def _shade(value: float) -> Color:
    """Return the colour of a weight; the square root lets small weights be told from none."""
    share = min(max(value, 0.0), 1.0) ** 0.5
    red, green, blue = (dark + share * (bright - dark) for dark, bright in zip(DARK, BRIGHT, strict=True))
    return Color.from_rgb(red, green, blue)
