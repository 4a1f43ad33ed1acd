"""Page tables as text: a row for each sequence, a column for each page, its number and who holds it."""

from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.viz.pages import Kind, Page, PageMap

INK: Mapping[Kind, str] = {
    "own": "default",
    "shared": "bold dodger_blue2",
    "copied": "bold dark_orange",
}

HOLE = "·"
"""Where a page has fallen behind a window."""

GAP = 2
"""Columns between two pages."""


def page_table(pages: PageMap, width: int = 80) -> Group:
    """Return the tables as text for a terminal: a row for each sequence, a column for each page.

    Parameters
    ----------
    pages : PageMap
    width : int
        Columns of the terminal; longer tables go on below.

    Returns
    -------
    rich.console.Group

    Examples
    --------
    >>> from rich.console import Console
    >>> own, shared, copy = Page(4, 1, 3), Page(0, 2, 4), Page(7, 1, 2, copy_of=4)
    >>> rows = {"text": (shared, own), "fork": (shared, copy)}
    >>> made = PageMap(0, 1, 4, rows, other_pages=3, idle_pages=0, free_pages=None)
    >>> Console(width=60, no_color=True).print(page_table(made))
    layer 0, key head 1: pages of 4 tokens, as id×references
    slots  0-3  4-7
    text   0×2  4×1 3/4
    fork   0×2  7←4 2/4
    3 pages, 4 if nothing were shared; of others 3, idle 0
    """
    heading = Text(pages.title + ", as id×references", "bold")
    return Group(heading, *_tables(pages, width), Text(_summary(pages), "dim"))


def _tables(pages: PageMap, width: int) -> list[Table]:
    """Return as many tables, one below the other, as it takes to show all columns."""
    P = pages.page_size
    rows = {name: [_cell(page, P) for page in table] for name, table in pages.sequences.items()}
    titles = [pages.slots(place) for place in range(pages.num_columns)]
    wide = GAP + max(map(len, ["slots", *rows]))
    each = GAP + max(map(len, [*titles, *(cell for row in rows.values() for cell in row)]), default=0)
    fit = max(1, (width - wide) // each)
    return [
        _table(
            {name: row[first : first + fit] for name, row in rows.items()}, titles[first:][:fit], wide, each
        )
        for first in range(0, pages.num_columns, fit)
    ]


def _table(rows: Mapping[str, list[Text]], titles: list[str], wide: int, each: int) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column("slots", width=wide, no_wrap=True)
    for title in titles:
        table.add_column(title, width=each, no_wrap=True)
    for name, row in rows.items():
        table.add_row(Text(name), *row)
    return table


def _cell(page: Page | None, P: int) -> Text:
    if page is None:
        return Text(HOLE, "dim")
    part = f" {page.tokens}/{P}" if page.tokens < P else ""
    return Text(_label(page) + part, INK[page.kind])


def _label(page: Page) -> str:
    """Return a page's number and how many hold it, or whose copy it is."""
    return f"{page.id}×{page.references}" if page.copy_of is None else f"{page.id}←{page.copy_of}"


def _summary(pages: PageMap) -> str:
    room = "" if pages.free_pages is None else f", room for {pages.free_pages:,}"
    return (
        f"{len(pages.pages):,} pages, {pages.pages_unshared:,} if nothing were shared; "
        f"of others {pages.other_pages:,}, idle {pages.idle_pages:,}{room}"
    )
