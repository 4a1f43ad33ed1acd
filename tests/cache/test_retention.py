"""What stays: exactly the budget, in order, with the first and the last tokens always in."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eviction_reference as reference
from qkv.cache.retention import Eviction, always_kept, keep, layer_budgets
from qkv.errors import OptionError

EVICTIONS = get_args(Eviction)
SCORES = st.sampled_from([-np.inf, -1.5, 0.0, -0.0, 0.25, 2.0, np.inf, np.nan])  # few, so that many are equal


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int]:
    G, S = draw(st.integers(1, 3)), draw(st.integers(0, 13))
    scores = draw(st.lists(st.lists(SCORES, min_size=S, max_size=S), min_size=G, max_size=G))
    budget = draw(st.integers(1, 14))
    sinks = draw(st.integers(0, budget))
    return np.array(scores, np.float32).reshape(G, S), budget, sinks, draw(st.integers(0, budget - sinks))


@given(cases())
def test_exactly_the_budget_stays_in_order_with_the_first_and_the_last_always_in(case):
    scores, budget, sinks, recent = case
    (G, S), kept = scores.shape, keep(scores, budget, sinks, recent)
    assert kept.shape == (G, min(budget, S))
    assert (np.diff(kept, axis=1) > 0).all()
    protected = {*range(min(sinks, S)), *range(max(S - recent, 0), S)}
    assert all(protected <= set(row) <= set(range(S)) for row in kept.tolist())


@given(cases())
def test_the_lowest_scores_go_and_the_earlier_of_two_equal_ones(case):
    assert keep(*case).tolist() == reference.keep(*case)


def test_keeping_worked_out_by_hand():
    scores = np.array([[9.0, 1, 5, 3, 3, 2, 0], [0.0, 7, 6, 5, 4, 3, 2]])
    # First one and last one stay; of 1 5 3 3 2 the two best are 5 and the later 3; of 7 6 5 4 3, 7 and 6.
    assert keep(scores, budget=4, sinks=1, recent=1).tolist() == [[0, 2, 4, 6], [0, 1, 2, 6]]


def test_a_nan_score_is_kept_before_every_number_but_not_before_infinity():
    assert keep(np.array([[np.nan, 3.0, np.inf, 2.0]]), budget=2).tolist() == [[0, 2]]
    assert keep(np.array([[np.nan, np.nan, 9.0, np.nan]]), budget=2).tolist() == [[1, 3]]


def test_equal_scores_keep_sinks_and_the_most_recent_as_streaming_does():
    sinks, recent = always_kept("streaming", 7)
    assert keep(np.zeros((2, 20)), 7, sinks).tolist() == [[0, 1, 2, 3, 17, 18, 19]] * 2
    assert (keep(np.zeros((2, 20)), 7, sinks, recent) == keep(np.zeros((2, 20)), 7, sinks)).all()


def test_the_scores_are_left_as_they_were():
    scores = np.array([[1.0, np.nan, 0.0]])
    keep(scores, 1)
    np.testing.assert_array_equal(scores, [[1.0, np.nan, 0.0]])


@pytest.mark.parametrize(("budget", "sinks", "recent"), [(4, 3, 2), (1, 0, 2), (4, -1, 2), (4, 1, -1)])
def test_a_budget_without_room_for_what_is_always_kept_is_refused(budget, sinks, recent):
    with pytest.raises(OptionError, match=f"budget of {budget} cannot hold {sinks} first and {recent} last"):
        keep(np.zeros((1, 9)), budget, sinks, recent)


@pytest.mark.parametrize(
    ("eviction", "budget", "sinks", "kept"),
    [
        ("streaming", 100, None, (4, 96)),
        ("streaming", 100, 0, (0, 100)),
        ("h2o", 101, None, (0, 50)),
        ("h2o", 10, 7, (7, 3)),  # the recent half gives way
        ("snapkv", 100, None, (0, 50)),
        ("snapkv", 1000, None, (0, 64)),
        ("pyramidkv", 1000, 3, (3, 64)),
        ("tova", 10, None, (0, 1)),
        ("knorm", 10, None, (0, 0)),
        ("expected", 10, None, (4, 0)),
        ("snapkv", 1, None, (0, 1)),
    ],
)
def test_what_is_always_kept_is_as_published(eviction, budget, sinks, kept):
    assert always_kept(eviction, budget, sinks) == kept


@pytest.mark.parametrize("eviction", EVICTIONS)
@given(st.integers(1, 3000), st.integers(0, 40), st.integers(1, 50))
def test_every_layer_can_hold_what_is_always_kept_and_the_mean_is_the_budget(eviction, extra, sinks, L):
    budget = sinks + extra
    budgets, always = layer_budgets(eviction, budget, L, sinks), always_kept(eviction, budget, sinks)
    assert len(budgets) == L
    assert sum(budgets) == L * budget
    assert all(isinstance(tokens, int) and tokens >= max(1, sum(always)) for tokens in budgets)
    assert list(budgets) == sorted(budgets, reverse=True)


def test_the_pyramid_worked_out_by_hand():
    # The window of 64 stays everywhere. Of the other 200 the last layer gets 200 // 20 = 10, the first
    # 390; five layers lie (390 - 10) / 4 = 95 apart.
    assert layer_budgets("pyramidkv", 264, 5) == (454, 359, 264, 169, 74)
    assert layer_budgets("pyramidkv", 264, 1) == (264,)
    assert layer_budgets("h2o", 264, 5) == (264,) * 5


def test_an_unknown_eviction_and_a_budget_of_sinks_alone_are_refused():
    with pytest.raises(OptionError, match="one of streaming, h2o, snapkv, tova, knorm"):
        always_kept("lru", 10)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="streaming=4 must keep more than its 4 sinks"):
        layer_budgets("streaming", 4, 3)
    with pytest.raises(OptionError, match="tova=8 must keep more than its 8 sinks"):
        always_kept("tova", 8, sinks=8)
