"""From logits to a token: each filter keeps what it says, each draw falls as often as it should."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkv.errors import NumericError, OptionError
from qkv.ops.sampling import (
    Sampling,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    sample,
)

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
# Multiples of 1/8 are exact in every type, and close enough to tie now and then.
eighths = st.integers(-64, 64).map(lambda n: n / 8)
rows = arrays(np.float64, st.integers(1, 13), elements=eighths)


def kept(filtered: np.ndarray) -> set[int]:
    return {int(token_id) for token_id in np.flatnonzero(filtered > -np.inf)}


def log(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def draws(logits: np.ndarray, sampling: Sampling, num_draws: int, seed: int = 0) -> np.ndarray:
    generator = rng(seed)
    ids = [sample(logits, sampling, generator) for _ in range(num_draws)]
    return np.bincount(ids, minlength=len(logits))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic; tokens of probability 0 must not have been drawn at all."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * counts.sum()
    return float(((counts[possible] - expected) ** 2 / expected).sum())


# Greedy


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("temperature", [0, 0.0, 1e-8])
def test_no_temperature_takes_the_most_likely_token_and_of_equals_the_first(dtype: Any, temperature: float):
    sampling = Sampling(temperature=temperature)
    assert sampling.is_greedy
    assert sample(np.array([-1, 2.5, 0, 2.5], dtype), sampling, rng()) == 1
    assert sample(np.array([3, 3, 3], dtype), sampling, rng()) == 0


def test_a_greedy_choice_takes_no_random_number():
    generator = rng()
    sample(log(0.5, 0.5), Sampling(), generator)
    assert generator.random() == rng().random()


def test_a_greedy_choice_looks_at_the_penalty_and_at_nothing_else():
    logits = np.array([2.0, 1.9, 1.0])
    narrow = Sampling(top_k=1, top_p=0.0, min_p=1.0, repetition_penalty=1.5)
    assert sample(logits, narrow, rng(), seen_ids=[0]) == 1
    assert sample(logits, narrow, rng()) == 0


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
    ],
    ids=str,
)
def test_the_nucleus_ends_with_the_token_that_crosses_p(
    probabilities: list[float], p: float, nucleus: set[int], dtype: Any
):
    logits = np.array(log(*probabilities), dtype)
    assert kept(keep_top_p(logits.astype(np.float64), p)) == nucleus
    counts = draws(logits, Sampling(temperature=1.0, top_p=p), 300)
    assert set(np.flatnonzero(counts)) == nucleus


def test_probabilities_that_reach_p_exactly_are_the_nucleus():
    for scale in (1.0, 3.0, 0.1):
        assert kept(keep_top_p(log(0.5 * scale, 0.3 * scale, 0.2 * scale), 0.8)) == {0, 1}


@settings(deadline=None)
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


def test_top_k_comes_first_and_top_p_counts_what_it_left():
    """Of [.4, .3, .2, .1] top-k 2 leaves 4/7 and 3/7: then .5 is reached by the first alone."""
    logits = log(0.4, 0.3, 0.2, 0.1)
    assert kept(keep_top_p(keep_top_k(logits, 2), 0.5)) == {0}
    counts = draws(logits, Sampling(temperature=1.0, top_k=2, top_p=0.5), 200)
    assert counts.tolist() == [200, 0, 0, 0]


def test_one_token_left_by_top_k_outlives_any_top_p():
    for top_p in (0.8, 1e-8, 0.0):
        counts = draws(log(0.2, 0.5, 0.3), Sampling(temperature=1.0, top_k=1, top_p=top_p), 100)
        assert counts.tolist() == [0, 100, 0]


@pytest.mark.parametrize(
    ("min_p", "survivors"),
    [(0, {0, 1, 2}), (0.4, {0, 1, 2}), (0.5, {0, 1}), (0.6, {0, 1}), (0.61, {0}), (1, {0})],
)
def test_min_p_keeps_what_is_likely_enough_next_to_the_most_likely(min_p: float, survivors: set[int]):
    assert kept(keep_min_p(log(0.5, 0.3, 0.2), min_p)) == survivors


def test_temperature_acts_before_the_filters():
    """At .5, [.5, .3, .2] becomes [25, 9, 4] / 38: the first alone reaches .6, the third is 4/25 of it."""
    logits = log(0.5, 0.3, 0.2)
    assert draws(logits, Sampling(temperature=0.5, top_p=0.6), 100).tolist() == [100, 0, 0]
    assert draws(logits, Sampling(temperature=0.5, min_p=0.2), 500)[2] == 0
    assert draws(logits, Sampling(temperature=0.5, min_p=0.15), 500)[2] > 0


@settings(deadline=None)
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


# Repetition penalty


def test_a_seen_token_becomes_less_likely_whatever_its_sign_and_once():
    got = penalise_repetition(np.array([2, -1, 0.5]), [0, 1, 1], 1.5)
    np.testing.assert_allclose(got, [4 / 3, -1.5, 0.5])
    assert penalise_repetition(np.array([0.0, 4.0]), [0, 1], 2.0).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("penalty", [0.5, 1.5])
@settings(deadline=None)
@given(logits=rows, seen=st.lists(st.integers(0, 12)))
def test_a_penalty_beyond_one_only_lowers_and_one_below_only_raises(
    penalty: float, logits: np.ndarray, seen: list[int]
):
    seen = [token_id for token_id in seen if token_id < len(logits)]
    before = logits.copy()
    change = penalise_repetition(logits, seen, penalty) - logits
    assert (change * (1 if penalty > 1 else -1) <= 0).all()
    assert not change[[token_id for token_id in range(len(logits)) if token_id not in seen]].any()
    np.testing.assert_array_equal(logits, before)


@settings(deadline=None)
@given(logits=rows, seen=st.lists(st.integers(0, 12)))
def test_a_penalty_of_one_changes_no_bit(logits: np.ndarray, seen: list[int]):
    seen = [token_id for token_id in seen if token_id < len(logits)]
    assert penalise_repetition(logits, seen, 1.0).tobytes() == logits.tobytes()


def test_each_call_has_its_own_seen_tokens_and_penalty():
    logits = np.array([2.0, 1.5, 1.0])
    assert [sample(logits, Sampling(repetition_penalty=p), rng(), [0]) for p in (1.0, 1.2, 1.5)] == [0, 0, 1]
    assert sample(logits, Sampling(repetition_penalty=1.5), rng(), [0, 1]) == 0
    assert sample(logits, Sampling(repetition_penalty=3.0), rng(), (n for n in [0, 1])) == 2


# Draws

CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}
"""Chi-square values that a fair draw exceeds once in a thousand seeds, by degrees of freedom."""


LOGITS = log(0.4, 0.05, 0.3, 0.15, 0.1)


def test_tokens_are_drawn_as_often_as_their_probabilities_say():
    counts = draws(LOGITS, Sampling(temperature=1.0), 20_000)
    assert chi_square(counts, np.exp(LOGITS)) < CRITICAL[4]


@pytest.mark.parametrize(
    ("sampling", "probabilities"),
    [
        (Sampling(temperature=0.5), [0.16, 0.0025, 0.09, 0.0225, 0.01]),
        (Sampling(temperature=2.0), [0.4**0.5, 0.05**0.5, 0.3**0.5, 0.15**0.5, 0.1**0.5]),
        (Sampling(temperature=1.0, top_k=3), [0.4, 0, 0.3, 0.15, 0]),
        (Sampling(temperature=1.0, top_p=0.8), [0.4, 0, 0.3, 0.15, 0]),
        (Sampling(temperature=1.0, min_p=0.3), [0.4, 0, 0.3, 0.15, 0]),
        (Sampling(temperature=1.0, top_k=4, top_p=0.9, min_p=0.3), [0.4, 0, 0.3, 0.15, 0]),
    ],
    ids=str,
)
def test_what_the_filters_leave_is_drawn_in_its_old_proportions(
    sampling: Sampling, probabilities: list[float]
):
    exact = np.array(probabilities) / sum(probabilities)
    assert chi_square(draws(LOGITS, sampling, 3000), exact) < CRITICAL[int((exact > 0).sum()) - 1]


def test_a_penalised_token_is_drawn_as_often_as_its_new_logit_says():
    generator, sampling = rng(), Sampling(temperature=1.0, repetition_penalty=2.0)
    ids = [sample(np.array([2.0, -1.0, 0.5]), sampling, generator, [0, 1]) for _ in range(3000)]
    exact = np.exp([1.0, -2.0, 0.5])
    assert chi_square(np.bincount(ids, minlength=3), exact / exact.sum()) < CRITICAL[2]


class Fixed:
    """A generator that gives the same number every time."""

    def __init__(self, number: float) -> None:
        self.random = lambda: number


@pytest.mark.parametrize(
    ("number", "token_id"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (np.nextafter(1.0, 0.0), 3)]
)
def test_a_draw_is_the_first_token_whose_sum_exceeds_the_random_number(number: float, token_id: int):
    assert draw(np.array([0.0, 0.25, 0.0, 0.75, 0.0]), Fixed(number)) == token_id  # type: ignore[arg-type]


@settings(deadline=None)
@given(logits=rows, number=st.floats(0, 1, exclude_max=True))
def test_a_token_that_was_filtered_out_is_never_drawn(logits: np.ndarray, number: float):
    logits = keep_top_k(logits, 2)
    assert sample(logits, Sampling(temperature=1.0), Fixed(number)) in kept(logits)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1e-5, 1e-4])
def test_a_tiny_temperature_overflows_to_nothing_but_the_same_choice(temperature: float):
    logits = np.array([-3e4, 6e4, 5.9e4, -6e4], np.float32)
    assert draws(logits, Sampling(temperature=temperature), 50).tolist() == [0, 50, 0, 0]


# Seeds


def run(seed: int | None, num_draws: int = 40) -> list[int]:
    sampling = Sampling(temperature=1.0, seed=seed)
    generator = sampling.generator()
    return [sample(np.zeros(101), sampling, generator) for _ in range(num_draws)]


def test_a_seed_gives_the_same_draws_again_and_another_seed_others():
    assert run(42) == run(42)
    assert run(42) != run(43)


def test_runs_without_a_seed_differ_from_each_other_and_from_seed_zero():
    runs = [run(None), run(None), run(None), run(0)]
    assert len({tuple(ids) for ids in runs}) == 4


def test_a_seeded_run_does_not_notice_its_neighbours():
    alone = run(42)
    for neighbour_seed in (None, 42, 7):
        generators = [Sampling(seed=seed).generator() for seed in (42, neighbour_seed)]
        sampling, together = Sampling(temperature=1.0), []
        for _ in range(40):
            ids = [sample(np.zeros(101), sampling, generator) for generator in generators]
            together.append(ids[0])
        assert together == alone


# Whatever the type


choices = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 1.7]),
        "top_k": st.none() | st.integers(1, 15),
        "top_p": st.floats(0, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
    }
)


@settings(deadline=None)
@given(logits=rows, options=choices, seed=st.integers(0, 2**32), seen=st.lists(st.integers(0, 12)))
def test_every_float_type_chooses_the_same(
    logits: np.ndarray, options: dict[str, Any], seed: int, seen: list[int]
):
    seen = [token_id for token_id in seen if token_id < len(logits)]
    chosen = {sample(logits.astype(dtype), Sampling(**options), rng(seed), seen) for dtype in FLOATS}
    assert len(chosen) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("number", [0.1, 0.5, 0.9, 0.99999])
def test_a_hundred_thousand_tokens_keep_their_shares_in_every_float_type(dtype: Any, number: float):
    """Summed up in half precision, shares of 1/100003 would end far below 1."""
    logits = np.zeros(100_003, dtype)
    assert sample(logits, Sampling(temperature=1.0), Fixed(number)) == int(number * 100_003)  # type: ignore[arg-type]


@settings(deadline=None)
@given(logits=rows, seed=st.integers(0, 2**32))
def test_a_top_k_of_one_is_the_most_likely_token(logits: np.ndarray, seed: int):
    for sampling in (Sampling(temperature=1.3, top_k=1), Sampling(temperature=1.3, top_p=0.0)):
        assert sample(logits, sampling, rng(seed)) == int(np.argmax(logits))


@settings(deadline=None)
@given(logits=rows, options=choices, seed=st.integers(0, 2**32))
def test_sampling_writes_nothing_into_the_logits(logits: np.ndarray, options: dict[str, Any], seed: int):
    logits.flags.writeable = False
    assert 0 <= sample(logits, Sampling(**options), rng(seed), [0]) < len(logits)


# What is refused


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": math.nan}, "temperature must be 0"),
        ({"temperature": math.inf}, "temperature must be 0"),
        ({"top_k": 0}, "top_k must be a whole number"),
        ({"top_k": -2}, "top_k must be a whole number"),
        ({"top_p": 1.5}, "top_p must be from 0 to 1"),
        ({"top_p": -0.1}, "top_p must be from 0 to 1"),
        ({"top_p": math.nan}, "top_p must be from 0 to 1"),
        ({"min_p": 1.1}, "min_p must be from 0 to 1"),
        ({"min_p": -1e-9}, "min_p must be from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be positive"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be positive"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
    ids=str,
)
def test_a_value_without_a_meaning_is_refused_by_name(options: dict[str, Any], rule: str):
    with pytest.raises(OptionError, match=rule) as caught:
        Sampling(**options)
    assert str(caught.value).endswith(f"not {next(iter(options.values()))}")


def test_the_ends_of_every_range_are_allowed():
    Sampling(temperature=0, top_k=1, top_p=0, min_p=0, repetition_penalty=1e-9, seed=0)
    Sampling(temperature=1e9, top_k=10**9, top_p=1, min_p=1, repetition_penalty=1e9, seed=2**64)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error_and_not_a_token(wrong, temperature):
    logits = np.array([0.0, wrong, 1.0])
    with pytest.raises(NumericError, match="weights"):
        sample(logits, Sampling(temperature=temperature), np.random.default_rng(0))


@pytest.mark.parametrize("top_k", [0, -1, 2.5])
def test_top_k_must_count_tokens(top_k):
    with pytest.raises(OptionError, match="top_k must be a whole number"):
        Sampling(temperature=1.0, top_k=top_k)
