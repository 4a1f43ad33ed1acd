"""Measurements as tables, for a terminal of 80 columns and in Markdown: two views of the same cells."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.bench.limits import MATRIX, NUMPY_MATRIX, READ
from qkv.bench.measurement import Measurement, Report, Result, Skipped, Workload, measured
from qkv.bench.stopwatch import Spread

NOTHING = "-"
"""Stands where nothing was measured."""

LIMITS = {MATRIX: ("matrix", "GFLOP/s"), NUMPY_MATRIX: ("NumPy's", "GFLOP/s"), READ: ("read", "GB/s")}
"""Short names and units, for columns and footnotes."""


@dataclass(frozen=True)
class Grid:
    """A title, column names and rows of text, and lines to stand below them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...] = ()


Column = tuple[str, Callable[[Measurement], str]]
"""A name, and what stands under it for a measurement."""


def grids(results: Sequence[Result], pairs: int) -> list[Grid]:
    """Return, for each kind of work, how it compares, what a call achieved, and the memory it took.

    Parameters
    ----------
    results : sequence of Measurement or Skipped
    pairs : int
        Rounds that each figure comes from.

    Returns
    -------
    list of Grid
        Narrow ones, for a terminal.
    """
    made = []
    for of_kind in _by_kind(results):
        figures = measured(of_kind)
        lines = [_rounds(pairs), *_footnotes(of_kind)]
        made.append(_grid(of_kind, "times as fast as", ratio_columns(figures), lines))
        if any(figure.shares for figure in figures):
            columns = roofline_columns(figures)
            made.append(_grid(of_kind, "what a call achieved", columns, _limit_lines(figures)))
        if any(figure.peak_bytes for figure in figures):
            made.append(_grid(of_kind, "peak memory", memory_columns(figures), ()))
    return made


def wide_grids(results: Sequence[Result], pairs: int) -> list[Grid]:
    """Return one grid for each kind of work, with every column; parameters as for `grids`."""
    made = []
    for of_kind in _by_kind(results):
        figures = measured(of_kind)
        lines = [_rounds(pairs), *_footnotes(of_kind), *_limit_lines(figures)]
        columns = ratio_columns(figures) + roofline_columns(figures) + memory_columns(figures)
        made.append(
            _grid(of_kind, "times as fast as each other way, and what a call achieved", columns, lines)
        )
    return made


def ratio_columns(figures: Sequence[Measurement]) -> list[Column]:
    """Return how many times as fast as each peer."""
    peers = dict.fromkeys(ratio.peer for figure in figures for ratio in figure.ratios)
    return [(peer, partial(_ratio_cell, peer)) for peer in peers]


def roofline_columns(figures: Sequence[Measurement]) -> list[Column]:
    """Return a call's time, operations and bytes per second, and shares of the limits compared with."""
    limits = [limit for limit in LIMITS if any(figure.share(limit) for figure in figures)]
    return [
        ("time", lambda figure: format_seconds(figure.seconds.median)),
        ("GFLOP/s", lambda figure: _rate(figure.flops_per_second)),
        ("GB/s", lambda figure: _rate(figure.bytes_per_second)),
        *((f"of {LIMITS[limit][0]}", partial(_share_cell, limit)) for limit in limits),
    ]


def memory_columns(figures: Sequence[Measurement]) -> list[Column]:
    """Return the most memory that each way held at once."""
    ways = dict.fromkeys(way for figure in figures for way in figure.peak_bytes)
    return [(f"MB {way}", partial(_memory_cell, way)) for way in ways]


def terminal_table(grid: Grid) -> Group:
    """Return a grid for a `rich.console.Console`.

    Examples
    --------
    >>> from rich.console import Console
    >>> Console(width=40, no_color=True).print(terminal_table(Grid("speed", ("n", "NumPy"), (("8", "1.5"),))))
    speed
     n  NumPy
     8    1.5
    """
    table = Table(box=None)
    for name in grid.columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row)
    return Group(Text(grid.title, "italic"), table, *(Text(line, "dim") for line in grid.footnotes))


def markdown(report: Report) -> str:
    """Return a report in Markdown.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str
    """
    about = [report.machine.line(), report.machine.software(), *report.notes]
    parts = ["  \n".join(about)] + [_markdown_grid(grid) for grid in wide_grids(report.results, report.pairs)]
    return "\n\n".join(parts) + "\n"


def format_ratio(spread: Spread) -> str:
    """Return a ratio with its quartiles, to three digits.

    Examples
    --------
    >>> format_ratio(Spread(2.041, 1.96, 2.17)), format_ratio(Spread(17.26, 16.2, 18.7))
    ('2.04 (2.0-2.2)', '17.3 (16-19)')
    """
    digits = 2 if spread.median < 9.995 else 1 if spread.median < 99.95 else 0
    outer = max(0, digits - 1)
    return f"{spread.median:.{digits}f} ({spread.low:.{outer}f}-{spread.high:.{outer}f})"


def format_share(spread: Spread) -> str:
    """Return a share with its quartiles.

    Examples
    --------
    >>> format_share(Spread(0.832, 0.801, 0.855))
    '83% (80-86)'
    """
    return f"{spread.median:.0%} ({100 * spread.low:.0f}-{100 * spread.high:.0f})"


def format_seconds(seconds: float) -> str:
    """Return a time in a unit that suits it.

    Examples
    --------
    >>> format_seconds(2.5), format_seconds(0.0123), format_seconds(45e-6)
    ('2.50 s', '12.3 ms', '45 µs')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


def _markdown_grid(grid: Grid) -> str:
    lines = [grid.columns, ("---:",) * len(grid.columns), *grid.rows]
    table = ["| " + " | ".join(cells) + " |" for cells in lines]
    return "\n".join([f"**{grid.title}**", "", *table, "", "; ".join(grid.footnotes)]).rstrip()


def _by_kind(results: Sequence[Result]) -> list[list[Result]]:
    names = dict.fromkeys(result.work.name for result in results)
    return [[result for result in results if result.work.name == name] for name in names]


def _grid(of_kind: Sequence[Result], title: str, columns: Sequence[Column], lines: Sequence[str]) -> Grid:
    """Lay columns out behind the sizes that tell the figures apart; the others go into the title."""
    works = [result.work for result in of_kind]
    keys = list(works[0].sizes)
    own = [key for key in keys if len({work.sizes[key] for work in works}) > 1] or keys[-1:]
    common = [f"{key} = {_size(works[0], key)}" for key in keys if key not in own]
    rows = [
        (*(_size(figure.work, key) for key in own), *(cell(figure) for _, cell in columns))
        for figure in measured(of_kind)
    ]
    names = (*own, *(name for name, _ in columns))
    return Grid(f"{', '.join([works[0].name, *common])}: {title}", names, tuple(rows), tuple(lines))


def _size(work: Workload, key: str) -> str:
    size = work.sizes[key]
    return f"{size:,}" if isinstance(size, int) else size


def _ratio_cell(peer: str, figure: Measurement) -> str:
    ratio = figure.ratio(peer)
    return NOTHING if ratio is None else format_ratio(ratio.spread)


def _share_cell(limit: str, figure: Measurement) -> str:
    share = figure.share(limit)
    return NOTHING if share is None else format_share(share.spread)


def _memory_cell(way: str, figure: Measurement) -> str:
    return f"{figure.peak_bytes[way] / 1e6:.1f}" if way in figure.peak_bytes else NOTHING


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return NOTHING
    giga = per_second / 1e9
    return f"{giga:.0f}" if giga >= 100 else f"{giga:.1f}"


def _rounds(pairs: int) -> str:
    return f"median of {pairs} pairs, in brackets the quartiles"


def _footnotes(results: Sequence[Result]) -> list[str]:
    """Return which forms of the peers were the fastest, the notes, and what was not measured."""
    figures = measured(results)
    forms: dict[str, list[str]] = {}
    for ratio in (ratio for figure in figures for ratio in figure.ratios if ratio.form):
        forms.setdefault(ratio.peer, []).append(ratio.form)
    lines = [f"{peer}: {' or '.join(dict.fromkeys(names))}" for peer, names in forms.items()]
    lines += dict.fromkeys(note for figure in figures for note in figure.notes)
    for result in results:
        if isinstance(result, Skipped):
            sizes = ", ".join(f"{key} = {_size(result.work, key)}" for key in result.work.sizes)
            lines.append(f"not measured: {sizes}: {result.reason}")
    return lines


def _limit_lines(figures: Sequence[Measurement]) -> list[str]:
    """Return the limits themselves, as measured beside the calls."""
    rates: dict[str, list[float]] = {}
    for share in (share for figure in figures for share in figure.shares):
        rates.setdefault(share.limit, []).append(share.rate)
    limits = [
        f"{name} {_rate(statistics.median(rates[limit]))} {unit}"
        for limit, (name, unit) in LIMITS.items()
        if limit in rates
    ]
    lines = [f"limits: {', '.join(limits)}"] if limits else []
    if any(share.limit == READ and share.spread.median > 1 for f in figures for share in f.shares):
        lines.append("more than all of read: from the caches")
    return lines
