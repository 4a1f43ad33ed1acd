"""Each filter keeps what it says, of equals the lower ids, and changes nothing that it keeps."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logit_rows import FLOATS, kept, log, rows
from qkv.ops.filters import FIRST_LOOK, keep_min_p, keep_top_k, keep_top_p, most_likely

# Nucleus


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("probabilities", "p", "nucleus"),
    [
        ([0.5, 0.41, 0.09], 0.9, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], 0.8, {0, 1, 2}),
        ([0.5, 0.3, 0.15, 0.05], 0.6, {0, 1}),
        ([0.5, 0.3, 0.15, 0.05], 0, {0}),
        ([0.5, 0.3, 0.15, 0.05], 1e-8, {0}),
        ([0.5, 0.3, 0.15, 0.05], 1e-4, {0}),
        ([0.5, 0.3, 0.15, 0.05], 1, {0, 1, 2, 3}),
        ([0.25] * 4, 0.5, {0, 1}),
        ([0.05, 0.5, 0.15, 0.3], 0.6, {1, 3}),
        ([0.4, 0.0, 0.3, 0.3], 0.75, {0, 2, 3}),
    ],
    ids=str,
)
def test_the_nucleus_ends_with_the_token_that_crosses_p(
    probabilities: list[float], p: float, nucleus: set[int], dtype: Any
):
    with np.errstate(divide="ignore"):
        logits = log(*probabilities).astype(dtype)
    assert kept(keep_top_p(logits.astype(np.float64), p)) == nucleus


def test_probabilities_that_reach_p_exactly_are_the_nucleus():
    for scale in (1.0, 3.0, 0.1):
        assert kept(keep_top_p(log(0.5 * scale, 0.3 * scale, 0.2 * scale), 0.8)) == {0, 1}


@given(logits=rows, p=st.floats(0, 1))
def test_the_nucleus_is_the_smallest_set_of_most_likely_tokens_that_reaches_p(logits: np.ndarray, p: float):
    nucleus = kept(keep_top_p(logits, p))
    exact = [math.exp(x) for x in logits]
    share = {token_id: value / math.fsum(exact) for token_id, value in enumerate(exact)}
    covered = math.fsum(share[token_id] for token_id in nucleus)
    assert nucleus
    assert covered >= p - 1e-9
    least = min(nucleus, key=lambda token_id: (share[token_id], -token_id))
    assert len(nucleus) == 1 or p == 1 or covered - share[least] < p
    assert all(logits[token_id] <= logits[least] for token_id in set(share) - nucleus)


def nucleus_of(logits: np.ndarray, p: float) -> set[int]:
    """One token after another, the most likely first, until p is reached."""
    shares = [math.exp(x) for x in logits]
    total, covered, nucleus = math.fsum(shares), 0.0, set()
    for token_id in sorted(range(len(logits)), key=lambda one: (-logits[one], one)):
        nucleus.add(token_id)
        covered += shares[token_id] / total
        if covered >= p:
            break
    return nucleus


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 0.97, 0.9999])
def test_a_nucleus_of_thousands_is_found_whole(p: float):
    """Some have more tokens than are sorted at first."""
    logits = np.random.default_rng(0).normal(size=5003).round(3)
    logits[::7] = -np.inf
    assert kept(keep_top_p(logits, p)) == nucleus_of(logits, p)
    assert p < 0.1 or len(nucleus_of(logits, p)) > FIRST_LOOK


def test_the_nucleus_of_equals_is_the_lower_ids():
    assert kept(keep_top_p(np.zeros(1009), 0.3)) == set(range(303))


# Top-k, min-p


def test_top_k_keeps_the_k_largest_and_of_equals_the_lower_ids():
    logits = np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    assert [kept(keep_top_k(logits, k)) for k in range(1, 6)] == [
        {1},
        {1, 2},
        {1, 2, 4},
        {1, 2, 3, 4},
        {0, 1, 2, 3, 4},
    ]


def test_more_than_all_tokens_are_all_tokens():
    np.testing.assert_array_equal(keep_top_k(log(0.5, 0.3, 0.2), 7), log(0.5, 0.3, 0.2))


def test_top_k_counts_only_what_may_be_chosen():
    assert kept(keep_top_k(np.array([-np.inf, 1.0, -np.inf, 2.0, 0.0]), 4)) == {1, 3, 4}


@pytest.mark.parametrize(
    ("min_p", "survivors"),
    [(0, {0, 1, 2}), (0.4, {0, 1, 2}), (0.5, {0, 1}), (0.6, {0, 1}), (0.61, {0}), (1, {0})],
)
def test_min_p_keeps_what_is_likely_enough_next_to_the_most_likely(min_p: float, survivors: set[int]):
    assert kept(keep_min_p(log(0.5, 0.3, 0.2), min_p)) == survivors


# All of them


@given(logits=rows, k=st.integers(1, 15), p=st.floats(0, 1), min_p=st.floats(0, 1))
def test_no_filter_changes_what_it_keeps_or_drops_the_most_likely(
    logits: np.ndarray, k: int, p: float, min_p: float
):
    before = logits.copy()
    for filtered in (keep_top_k(logits, k), keep_top_p(logits, p), keep_min_p(logits, min_p)):
        survivors = sorted(kept(filtered))
        np.testing.assert_array_equal(filtered[survivors], logits[survivors])
        assert int(np.argmax(logits)) in survivors
    np.testing.assert_array_equal(logits, before)


rows_with_gaps = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.125, 2.0]), min_size=1, max_size=23).map(
    np.array
)


@given(logits=rows_with_gaps, count=st.integers(1, 25))
def test_the_most_likely_come_in_order_and_of_equals_the_lower_id_first(logits: np.ndarray, count: int):
    expected = sorted(range(len(logits)), key=lambda one: (-logits[one], one))[:count]
    assert most_likely(logits, count).tolist() == expected
