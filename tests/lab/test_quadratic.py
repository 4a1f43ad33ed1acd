"""(g) with a clock that stands still until work is done, and with ways that do something else."""

import numpy as np
import pytest

from clocks import Clock
from lab_results import as_result
from qkv.bench.textbook import textbook
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.quadratic import KERNEL, QUADRATIC, TEXTBOOK, TILED, Quadratic, measure, own_ways, slope

SETTINGS = Quadratic(H=2, lengths=(128, 256, 512), short=(7, 31), pairs=3)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
ONES = 1e-6
"""Seconds of one score; more than the rounding of the clock."""


def timed_ways(clock, seconds, functions=None):
    """Ways whose time is what a function of n says."""

    def timed(name):
        way = (functions or {}).get(name, textbook)

        def run(q, k, v):
            clock.now += seconds[name](q.shape[1])
            return way(q, k, v)

        return run

    return {name: timed(name) for name in seconds}


FAST_KERNEL = {
    TEXTBOOK: lambda n: 4 * ONES * n**2,
    TILED: lambda n: 4 * ONES * n**2,
    KERNEL: lambda n: ONES * n**2,
}


def tried(seconds, functions=None):
    clock = Clock()
    instruments = Instruments(stopwatch=clock.stopwatch(pairs=3))
    ways = timed_ways(clock, seconds, {TILED: own_ways()[TILED]} | (functions or {}))
    measured = measure(SETTINGS, instruments, ways=ways)
    return measured, Row.of(QUADRATIC, as_result(QUADRATIC, SETTINGS, measured)).ruling


def test_memory_falls_to_n_and_time_stays_n_squared():
    measured, ruling = tried(FAST_KERNEL)
    assert [one.verdict for one in ruling.parts] == [H, H, H, F, H, F, H, OPEN]
    assert ruling.verdict is Verdict.HOLDS_ONLY_IF
    assert measured.value("textbook_time_slope") == pytest.approx(2.0)
    assert measured.value("kernel_speedup") == pytest.approx(4.0)
    assert measured.value("short_kernel_speedup") == pytest.approx(4.0)
    assert measured.value("apart") < 1e-5


def test_the_textbooks_peak_is_the_scores_it_writes_down():
    clock = Clock()
    measured = measure(
        Quadratic(H=2, lengths=(512, 1024), short=(7,), pairs=2),
        Instruments(stopwatch=clock.stopwatch(pairs=2)),
        ways=timed_ways(clock, FAST_KERNEL, {TILED: own_ways()[TILED]}),
    )
    scores = 4 * 2 * 1024**2
    assert 2 * scores <= measured.series["textbook_bytes"][-1] <= 4 * scores
    assert 1.8 < measured.value("textbook_bytes_slope") < 2.1


def test_tiles_that_write_every_score_down_save_nothing():
    _, ruling = tried(FAST_KERNEL, {TILED: textbook})
    assert ruling.parts[1].verdict is F


def test_a_kernel_as_slow_as_the_textbook_fails_and_one_slower_on_short_texts_does_not_pay_there():
    _, ruling = tried(FAST_KERNEL | {KERNEL: FAST_KERNEL[TEXTBOOK]})
    assert ruling.parts[4].verdict is F
    _, ruling = tried(FAST_KERNEL | {KERNEL: lambda n: 0.01 + ONES * n**2})
    assert (ruling.parts[4].verdict, ruling.parts[5].verdict) == (H, H)


def test_the_short_text_on_which_a_kernel_gains_least_is_the_one_that_counts():
    # 7 tokens: 4 * 49 by 49 + 147; 31 tokens: 4 * 961 by 961 + 147.
    measured, _ = tried(FAST_KERNEL | {KERNEL: lambda n: ONES * (n**2 + 147)})
    assert measured.value("short_kernel_speedup") == pytest.approx(1.0)


def test_a_way_that_computes_something_else_decides_nothing():
    _, ruling = tried(FAST_KERNEL, {KERNEL: lambda q, k, v: textbook(q, k, v, causal=True)})
    assert ruling.verdict is Verdict.NOT_TESTABLE


def test_without_a_kernel_its_parts_are_open():
    seconds = {name: one for name, one in FAST_KERNEL.items() if name != KERNEL}
    _, ruling = tried(seconds)
    assert [one.verdict for one in ruling.parts] == [H, H, H, F, OPEN, OPEN, H, OPEN]


def test_a_slope_is_the_exponent():
    assert slope([3, 9, 27], [2.0 * 3**1.5, 2.0 * 9**1.5, 2.0 * 27**1.5]) == pytest.approx(1.5)


def test_own_ways_agree():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 31, 64), np.float32)
    outputs = [way(q, k, v) for way in own_ways().values()]
    for other in outputs[1:]:
        np.testing.assert_allclose(other, outputs[0], atol=1e-5)
