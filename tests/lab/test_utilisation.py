"""(l) by hand, against the planner's own comparison, and with pages as long as runs."""

import numpy as np
import pytest

from lab_results import as_result
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.utilisation import UTILISATION, Paging, bars, draw_stream, in_pages, in_runs, measure
from qkv.planner.allocators import CountedPages, PooledPages

SETTINGS = Paging(drawn=1000, ends=60, seeds=2)
H, F = Verdict.HOLDS, Verdict.FAILS


def tried(settings=SETTINGS, **broken):
    measured = measure(settings, Instruments(), **broken)
    return measured, Row.of(UTILISATION, as_result(UTILISATION, settings, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def test_over_95_percent_holds_and_60_to_80_percent_before_does_not(found):
    _, ruling = found
    assert [one.verdict for one in ruling.parts] == [H, F, F, F, H]
    assert ruling.verdict is Verdict.HOLDS_ONLY_IF


def test_what_is_set_aside_comes_near_the_papers_bars(found):
    measured, _ = found
    for name, percent in (("max", 20.4), ("power_of_two", 26.8), ("oracle", 38.2), ("paged", 96.3)):
        assert abs(100 * measured.value(name) - percent) < 4, name


def test_the_best_without_an_oracle_counts_and_the_rest_is_waste(found):
    measured, _ = found
    assert measured.value("contiguous") == measured.value("power_of_two") > measured.value("max")
    assert measured.value("wasted") == pytest.approx(1 - measured.value("max"))


def test_requests_by_hand():
    # Two requests of 2 + 2 tokens at a time in 8 slots hold 2 or 3 tokens each: 5 of 8 on average.
    by_hand = Paging(slots=8, longest=4, ends=100)
    assert in_runs("oracle", np.array([[2, 2]]), by_hand).token_states == 5 / 8


def test_pages_as_long_as_the_longest_request_are_runs_set_aside_for_it():
    _, ruling = tried(Paging(P=2048, long_page=2048, drawn=1000, ends=60, seeds=2))
    assert ruling.parts[0].verdict is F and ruling.parts[4].verdict is F


class Miscounting(CountedPages):
    """Has a tenth of its pages only on paper."""

    @property
    def num_free(self):
        return max(0, super().num_free - self.num_pages // 10)


def test_a_pool_that_gives_out_other_pages_than_it_has_decides_nothing():
    _, ruling = tried(make_pages=lambda num_pages, _: Miscounting(num_pages))
    assert ruling.verdict is Verdict.NOT_TESTABLE


def test_the_pool_holds_what_the_stream_left_in_it():
    pools = []

    def make_pages(num_pages, page_nbytes):
        pools.append(PooledPages(num_pages, page_nbytes))
        return pools[-1]

    stream = draw_stream("sharegpt", SETTINGS, Instruments(), 0)
    used = in_pages(stream, SETTINGS, 16, make_pages)
    assert 0.9 < used.token_states < 1
    assert pools[0].pool.peak_nbytes <= SETTINGS.slots


def test_bars_add_up_to_all_slots(found):
    series = found[0].series
    kinds = np.array([series[kind] for kind in ("token_states", "reserved", "internal", "external")])
    assert series["strategy"] == ["max", "power of two", "oracle", "pages of 16", "pages of 256"]
    assert kinds.sum(axis=0) == pytest.approx(np.ones(5))
    assert bars({"one": [in_runs("max", np.array([[2, 2]]), Paging(slots=8, longest=4, ends=50))]})[
        "strategy"
    ] == ["one"]


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
