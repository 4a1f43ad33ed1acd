"""Made-up numbers, as a reader sees them."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from made_up_figures import BY_NUMPY, CACHE, FOLDED, REPORT, SKIPPED, attention
from qkv.bench.limits import READ
from qkv.bench.measurement import Share
from qkv.bench.stopwatch import Spread
from qkv.bench.tables import (
    Grid,
    format_ratio,
    format_seconds,
    format_share,
    grids,
    markdown,
    terminal_table,
)

FIGURES = REPORT.results[:3]


def printed(grid: Grid):
    written = io.StringIO()
    Console(file=written, width=80).print(terminal_table(grid))
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_a_table_says_how_many_times_as_fast_as_each_peer():
    ratios, _ = grids(FIGURES, pairs=15)
    assert ratios.title == "prefill, H = 8: times as fast as"
    assert ratios.columns == ("n", "NumPy", "PyTorch")
    assert ratios.rows == (
        ("1,024", "12.3 (12-13)", "2.04 (2.0-2.2)"),
        ("4,096", "-", "0.99 (0.9-1.0)"),
    )


def test_below_it_stand_the_rounds_the_forms_and_what_was_not_measured():
    ratios, _ = grids(FIGURES, pairs=15)
    assert ratios.footnotes == (
        "median of 15 pairs, in brackets the quartiles",
        "PyTorch: groups folded or enable_gqa",
        "not measured: H = 8, n = 8,192: needs 9.9 GB of memory; 2.0 GB are free",
    )


def test_the_roofline_says_what_each_call_achieved_and_what_the_limits_are():
    _, roofline = grids(FIGURES, pairs=15)
    assert roofline.title == "prefill, H = 8: what a call achieved"
    assert roofline.columns == ("n", "time", "GFLOP/s", "GB/s", "of matrix", "of read")
    assert roofline.rows[0] == ("1,024", "4.0 ms", "250", "5.0", "83% (80-86)", "5% (4-6)")
    assert roofline.footnotes == ("limits: matrix 300 GFLOP/s, read 44.0 GB/s",)


def test_more_than_the_read_bandwidth_is_explained():
    figure = replace(FIGURES[0], shares=(Share(READ, Spread(1.2, 1.1, 1.3), 44e9),))
    assert grids([figure], pairs=15)[1].footnotes[-1] == "more than all of read: from the caches"


def test_memory_has_a_table_of_its_own_and_what_was_not_counted_a_dash():
    ratios, memory = grids([CACHE], pairs=15)
    assert (ratios.rows, ratios.footnotes[1:]) == ((("25", "103 (99-108)"),), ("one layer",))
    assert (memory.columns, memory.rows) == (("n", "MB qkv"), (("25", "1.5"),))
    assert "| 25 | 103 (99-108) | 2.00 s | - | - | 1.5 |" in markdown(replace(REPORT, results=(CACHE,)))


def test_sizes_that_all_share_stand_in_the_title_and_the_others_in_columns():
    (ratios, _) = grids([attention(7, (BY_NUMPY,)), attention(7, (FOLDED,))], pairs=2)
    assert (ratios.title, ratios.columns[0]) == ("prefill, H = 8: times as fast as", "n")


def test_a_kind_of_which_nothing_was_measured_still_says_why():
    (ratios,) = grids([SKIPPED], pairs=15)
    assert (ratios.rows, ratios.columns) == ((), ("n",))
    assert "2.0 GB are free" in ratios.footnotes[-1]


def test_the_terminal_shows_every_cell_within_80_columns():
    widest = Spread(99.94, 98.7, 123.4)
    ratios = tuple(
        replace(BY_NUMPY, peer=peer, spread=widest)
        for peer in ("NumPy", "PyTorch", "onnxruntime", "own full")
    )
    figures = [
        replace(figure, work=replace(figure.work, sizes={"D": D, "n": 8192}))
        for figure, D in ((attention(8192, ratios), 64), (attention(8192, ratios), 128))
    ]
    for grid in grids(figures, pairs=15):
        lines = printed(grid)
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)
        for row, line in zip(grid.rows, lines[2:], strict=False):
            assert re.sub(r"\s+", " ", line).strip() == " ".join(row)


def test_markdown_is_one_table_for_each_kind_with_every_column():
    text = markdown(replace(REPORT, results=FIGURES))
    assert text.splitlines() == [
        "Some CPU, 2 cores, 32 MiB cache, 24 GiB memory, 2 threads, Linux x86_64  ",
        "Python 3.11.7, numpy 2.4.6, openblas 0.3  ",
        "a note",
        "",
        "**prefill, H = 8: times as fast as each other way, and what a call achieved**",
        "",
        "| n | NumPy | PyTorch | time | GFLOP/s | GB/s | of matrix | of read |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 1,024 | 12.3 (12-13) | 2.04 (2.0-2.2) | 4.0 ms | 250 | 5.0 | 83% (80-86) | 5% (4-6) |",
        "| 4,096 | - | 0.99 (0.9-1.0) | 4.0 ms | 250 | 5.0 | 83% (80-86) | 5% (4-6) |",
        "",
        "median of 15 pairs, in brackets the quartiles; PyTorch: groups folded or enable_gqa; "
        "not measured: H = 8, n = 8,192: needs 9.9 GB of memory; 2.0 GB are free; "
        "limits: matrix 300 GFLOP/s, read 44.0 GB/s",
    ]


RATIOS = {
    (0.2849, 0.25, 0.51): "0.28 (0.2-0.5)",
    (1.0, 1.0, 1.0): "1.00 (1.0-1.0)",
    (9.994, 9.0, 11.0): "9.99 (9.0-11.0)",
    (9.996, 9.0, 11.0): "10.0 (9-11)",
    (99.97, 90.0, 110.0): "100 (90-110)",
    (1234.0, 1000.0, 2000.0): "1234 (1000-2000)",
}


@pytest.mark.parametrize(("spread", "shown"), RATIOS.items())
def test_a_ratio_has_three_digits(spread, shown):
    assert format_ratio(Spread(*spread)) == shown


def test_times_and_shares_read_in_units_that_suit_them():
    assert [format_seconds(s) for s in (12.0, 1.0, 0.0123, 0.001, 0.0004)] == [
        "12.00 s",
        "1.00 s",
        "12.3 ms",
        "1.0 ms",
        "400 µs",
    ]
    assert format_share(Spread(1.234, 0.0, 2.0)) == "123% (0-200)"
