"""From logits to a token: the rules in their order, each draw as often as it should be."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logit_rows import FLOATS, kept, log, rows
from qkv.errors import NumericError, OptionError
from qkv.ops.filters import keep_top_k, keep_top_p
from qkv.ops.sampling import Sampling, draw, sample


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def draws(logits: np.ndarray, sampling: Sampling, num_draws: int, seed: int = 0, **text: Any) -> np.ndarray:
    generator = rng(seed)
    ids = [sample(logits, sampling, generator, **text) for _ in range(num_draws)]
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


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_greedy_choice_of_plain_logits_is_that_with_a_bias_of_nothing(dtype: Any):
    biased = Sampling(logit_bias={0: 0.0})
    assert Sampling().takes_highest and not biased.takes_highest
    for seed in range(20):
        logits = rng(seed).integers(-7, 8, 101).astype(dtype)
        logits[rng(seed).integers(0, 101, 31)] = -np.inf
        assert sample(logits, Sampling(), rng()) == sample(logits, biased, rng())


def test_a_greedy_choice_takes_no_random_number():
    generator = rng()
    sample(log(0.5, 0.5), Sampling(), generator)
    assert generator.random() == rng().random()


def test_a_greedy_choice_looks_at_the_penalty_and_at_nothing_else():
    logits = np.array([2.0, 1.9, 1.0])
    narrow = Sampling(top_k=1, top_p=0.0, min_p=1.0, repetition_penalty=1.5)
    assert sample(logits, narrow, rng(), seen_ids=[0]) == 1
    assert sample(logits, narrow, rng()) == 0


# Filters


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("probabilities", "p", "nucleus"),
    [
        ([0.5, 0.41, 0.09], 0.9, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], 0.8, {0, 1, 2}),
        ([0.5, 0.3, 0.15, 0.05], 0, {0}),
        ([0.25] * 4, 0.5, {0, 1}),
    ],
    ids=str,
)
def test_all_of_the_nucleus_is_drawn_and_nothing_else(
    probabilities: list[float], p: float, nucleus: set[int], dtype: Any
):
    counts = draws(log(*probabilities).astype(dtype), Sampling(temperature=1.0, top_p=p), 300)
    assert set(np.flatnonzero(counts)) == nucleus


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


def test_temperature_acts_before_the_filters():
    """At .5, [.5, .3, .2] becomes [25, 9, 4] / 38: the first alone reaches .6, the third is 4/25 of it."""
    logits = log(0.5, 0.3, 0.2)
    assert draws(logits, Sampling(temperature=0.5, top_p=0.6), 100).tolist() == [100, 0, 0]
    assert draws(logits, Sampling(temperature=0.5, min_p=0.2), 500)[2] == 0
    assert draws(logits, Sampling(temperature=0.5, min_p=0.15), 500)[2] > 0


# Order


def test_a_bias_comes_behind_the_penalties_and_a_bad_word_behind_both():
    """Of 2 the penalty leaves 1, to which 3 is added; not half of 2 + 3."""
    logits, options = np.array([2.0, 3.5]), {"repetition_penalty": 2.0, "logit_bias": {0: 3.0}}
    assert sample(logits, Sampling(**options), rng(), [0]) == 0
    assert sample(np.array([2.0, 3.0]), Sampling(**{**options, "logit_bias": {0: 1.5}}), rng(), [0]) == 1
    assert sample(logits, Sampling(**options, bad_words=[[0]]), rng(), [0]) == 1


def test_repetition_comes_before_presence():
    """3 / 2 - 1 is below .75, while (3 - 1) / 2 is above it."""
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=1.0)
    assert sample(np.array([3.0, 0.75]), sampling, rng(), [0], num_new=1) == 1


def test_a_bias_comes_before_the_temperature():
    """At .5 a bias of log 2 weighs as log 4: [4, 1] / 5."""
    sampling = Sampling(temperature=0.5, logit_bias={0: math.log(2)})
    assert chi_square(draws(log(0.5, 0.5), sampling, 3000), np.array([0.8, 0.2])) < CRITICAL[1]


def test_the_filters_see_only_what_is_not_ruled_out():
    logits = log(0.5, 0.3, 0.1, 0.1)
    sampling = Sampling(temperature=1.0, top_k=1, bad_words=[[0]])
    assert draws(logits, sampling, 50).tolist() == [0, 50, 0, 0]
    sampling = Sampling(temperature=1.0, top_p=0.6, bad_words=[[0]])
    assert draws(logits, sampling, 50).tolist() == [0, 50, 0, 0]


# The text so far

FLAT = np.zeros(4)


def test_repetition_counts_the_prompt_and_presence_and_frequency_do_not():
    assert sample(np.array([2.0, 1.5]), Sampling(repetition_penalty=2.0), rng(), [0], num_new=0) == 1
    for sampling in (Sampling(presence_penalty=1.0), Sampling(frequency_penalty=1.0)):
        assert sample(np.array([2.0, 1.5]), sampling, rng(), [0, 0], num_new=0) == 0
        assert sample(np.array([2.0, 1.5]), sampling, rng(), [1, 0], num_new=1) == 1
    twice = Sampling(frequency_penalty=0.3)
    assert sample(np.array([2.0, 1.5]), twice, rng(), [0, 0], num_new=1) == 0
    assert sample(np.array([2.0, 1.5]), twice, rng(), [0, 0], num_new=2) == 1


def test_a_bad_word_may_begin_in_the_prompt():
    sampling = Sampling(bad_words=[[2, 3, 0]])
    assert sample(FLAT, sampling, rng(), [2, 3], num_new=1) == 1
    assert sample(FLAT, sampling, rng(), [2, 3, 3], num_new=2) == 0


def test_a_text_does_not_end_before_its_least_number_of_tokens():
    logits, sampling = np.array([0.0, 3.0, 2.0]), Sampling(min_tokens=2)
    chosen = [sample(logits, sampling, rng(), [1] * 5, num_new=n, end_ids={1, 999}) for n in range(4)]
    assert chosen == [2, 2, 1, 1]


def test_no_token_left_is_an_error_and_not_the_first_token():
    for sampling in (Sampling(bad_words=[[0], [1]]), Sampling(1.0, min_tokens=1, bad_words=[[0]])):
        with pytest.raises(OptionError, match="no token is left"):
            sample(np.zeros(2), sampling, rng(), end_ids=[1])


def test_each_call_has_its_own_seen_tokens_and_penalty():
    logits = np.array([2.0, 1.5, 1.0])
    assert [sample(logits, Sampling(repetition_penalty=p), rng(), [0]) for p in (1.0, 1.2, 1.5)] == [0, 0, 1]
    assert sample(logits, Sampling(repetition_penalty=1.5), rng(), [0, 1]) == 0
    assert sample(logits, Sampling(repetition_penalty=3.0), rng(), (n for n in [0, 1])) == 2


# Draws

CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 24: 51.18}
"""Chi-square values that a fair draw exceeds once in a thousand seeds, by degrees of freedom.

The seeds are fixed: a test that passes does so always."""

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


def test_penalties_and_bias_move_the_draws_as_their_logits_say():
    """Of [2, -1, .5, 0, 1]: halved, doubled; less 1/2 and twice 1/4; plus 1; and one ruled out."""
    sampling = Sampling(
        temperature=1.0,
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={3: 1.0},
        bad_words=[[2, 4]],
    )
    logits, exact = np.array([2.0, -1.0, 0.5, 0.0, 1.0]), np.exp([1.0, -2.0, 0.25 - 0.5 - 0.5, 1.0, -np.inf])
    counts = draws(logits, sampling, 4000, seen_ids=[0, 1, 2, 2], num_new=2)
    assert chi_square(counts, exact / exact.sum()) < CRITICAL[3]


def test_neighbouring_draws_know_nothing_of_each_other():
    """All 25 pairs of a token and its next come as often as their product says."""
    generator, exact = rng(), np.exp(LOGITS)
    ids = np.array([sample(LOGITS, Sampling(temperature=1.0), generator) for _ in range(20_001)])
    pairs = np.bincount(5 * ids[:-1:2] + ids[1::2], minlength=25)
    assert chi_square(pairs, np.outer(exact, exact).ravel()) < CRITICAL[24]


def test_the_draws_of_many_seeds_are_as_fair_as_those_of_one():
    """The first draw of each seed, and of each choice: what independent requests see."""
    sampling = Sampling(temperature=1.0)
    for generators in (
        [Sampling(seed=seed).generator() for seed in range(3000)],
        [Sampling(seed=42).generator(index) for index in range(3000)],
    ):
        ids = [sample(LOGITS, sampling, generator) for generator in generators]
        assert chi_square(np.bincount(ids, minlength=5), np.exp(LOGITS)) < CRITICAL[4]


class Fixed:
    """A generator that gives the same number every time."""

    def __init__(self, number: float) -> None:
        self.random = lambda: number


@pytest.mark.parametrize(
    ("number", "token_id"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (np.nextafter(1.0, 0.0), 3)]
)
def test_a_draw_is_the_first_token_whose_sum_exceeds_the_random_number(number: float, token_id: int):
    assert draw(np.array([0.0, 0.25, 0.0, 0.75, 0.0]), Fixed(number)) == token_id  # type: ignore[arg-type]


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


def test_every_draw_takes_one_number_whatever_it_is_drawn_from():
    """So the draw after t tokens is the same, whatever was left to choose from before."""
    one, other = rng(), rng()
    for _ in range(7):
        sample(log(0.5, 0.5), Sampling(temperature=1.0, top_k=1), one)
        sample(np.zeros(1009), Sampling(temperature=1.0), other)
    assert one.random() == other.random()


def chosen(generator: np.random.Generator, num_draws: int = 40) -> list[int]:
    return [sample(np.zeros(101), Sampling(temperature=1.0), generator) for _ in range(num_draws)]


def test_several_choices_of_one_seed_differ_and_come_again():
    first, again = ([chosen(Sampling(seed=42).generator(index)) for index in range(3)] for _ in range(2))
    assert first == again
    assert len({tuple(ids) for ids in first}) == 3
    assert first[0] == run(42)
    assert chosen(Sampling(seed=43).generator(1)) not in first


def test_several_choices_without_a_seed_differ_each_time():
    runs = [chosen(Sampling().generator(index)) for index in (0, 1, 0, 1)]
    assert len({tuple(ids) for ids in runs}) == 4


# Whatever the type


choices = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 1.7]),
        "top_k": st.none() | st.integers(1, 15),
        "top_p": st.floats(0, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logit_bias": st.sampled_from([{}, {0: 1.5}]),
    }
)


@given(logits=rows, options=choices, seed=st.integers(0, 2**32), seen=st.lists(st.integers(0, 12)))
def test_every_float_type_chooses_the_same(
    logits: np.ndarray, options: dict[str, Any], seed: int, seen: list[int]
):
    seen = [token_id for token_id in seen if token_id < len(logits)]
    chosen = {
        sample(logits.astype(dtype), Sampling(**options), rng(seed), seen, num_new=len(seen))
        for dtype in FLOATS
    }
    assert len(chosen) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("number", [0.1, 0.5, 0.9, 0.99999])
def test_a_hundred_thousand_tokens_keep_their_shares_in_every_float_type(dtype: Any, number: float):
    """Summed up in half precision, shares of 1/100003 would end far below 1."""
    logits = np.zeros(100_003, dtype)
    assert sample(logits, Sampling(temperature=1.0), Fixed(number)) == int(number * 100_003)  # type: ignore[arg-type]


@given(logits=rows, seed=st.integers(0, 2**32))
def test_a_top_k_of_one_is_the_most_likely_token(logits: np.ndarray, seed: int):
    for sampling in (Sampling(temperature=1.3, top_k=1), Sampling(temperature=1.3, top_p=0.0)):
        assert sample(logits, sampling, rng(seed)) == int(np.argmax(logits))


@given(logits=rows, options=choices, seed=st.integers(0, 2**32))
def test_sampling_writes_nothing_into_the_logits(logits: np.ndarray, options: dict[str, Any], seed: int):
    logits.flags.writeable = False
    assert 0 <= sample(logits, Sampling(**options), rng(seed), [0]) < len(logits)


# Values


def test_a_sampling_is_a_value_of_its_own():
    bias: Any = {np.int64(7): 1}
    words: Any = [[5, np.int64(3)]]
    seed: Any = np.int64(3)
    sampling = Sampling(logit_bias=bias, bad_words=words, seed=seed)
    bias[np.int64(7)], words[0][0] = 2, 6
    assert sampling == Sampling(logit_bias={7: 1.0}, bad_words=((5, 3),), seed=3)
    assert sampling != Sampling(logit_bias={7: 2.0}, bad_words=((5, 3),), seed=3)
    assert hash(sampling) == hash(Sampling(logit_bias={7: 1.0}, bad_words=((5, 3),), seed=3))
    assert pickle.loads(pickle.dumps(sampling)) == sampling


def test_rarer_options_go_by_name():
    assert Sampling(0.5, 3, 0.9, 0.1, 1.2, 7) == Sampling(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.2, seed=7
    )
    with pytest.raises(TypeError):
        Sampling(0.5, 3, 0.9, 0.1, 1.2, 7, 0.5)  # type: ignore[call-arg]


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
        ({"repetition_penalty": 0}, "repetition_penalty must be from 1e-09 to 1e"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be from 1e-09 to 1e"),
        ({"repetition_penalty": math.inf}, "repetition_penalty must be from 1e-09 to 1e"),
        ({"presence_penalty": math.inf}, "presence_penalty must be from -1e"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be from -1e"),
        ({"temperature": "hot"}, "temperature must be 0"),
        ({"temperature": True}, "temperature must be 0"),
        ({"top_p": None}, "top_p must be from 0 to 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, or None"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, or None"),
        ({"min_tokens": -1}, "min_tokens must be a whole number of at least 0, not -1"),
        ({"min_tokens": None}, "min_tokens must be a whole number of at least 0, not None"),
        ({"logprobs": -1}, "logprobs must be a whole number of at least 0, or None"),
        ({"logprobs": True}, "logprobs must be a whole number of at least 0, or None"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias must map token ids to numbers from -1e"),
        ({"logit_bias": {"7": 1.0}}, "logit_bias must map token ids to numbers from -1e"),
        ({"logit_bias": {7: math.inf}}, "logit_bias must map token ids to numbers from -1e"),
        ({"logit_bias": {7: None}}, "logit_bias must map token ids to numbers from -1e"),
        ({"logit_bias": [(7, 1.0)]}, "logit_bias must map token ids to numbers from -1e"),
        ({"bad_words": [[]]}, "bad_words must be sequences of at least one token id"),
        ({"bad_words": [5, 7]}, "bad_words must be sequences of at least one token id"),
        ({"bad_words": [[5, -7]]}, "bad_words must be sequences of at least one token id"),
        ({"bad_words": ["five"]}, "bad_words must be sequences of at least one token id"),
        ({"bad_words": 5}, "bad_words must be sequences of at least one token id"),
    ],
    ids=str,
)
def test_a_value_without_a_meaning_is_refused_by_name(options: dict[str, Any], rule: str):
    with pytest.raises(OptionError, match=rule) as caught:
        Sampling(**options)
    assert str(caught.value).endswith(f"not {next(iter(options.values()))!r}")


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


@pytest.mark.parametrize(
    ("options", "name"),
    [({"logit_bias": {3: 1.0, 0: 2.0}}, "logit_bias"), ({"bad_words": [[0], [3, 1]]}, "bad_words")],
    ids=str,
)
def test_ids_that_the_model_does_not_have_are_refused_by_name(options: dict[str, Any], name: str):
    sampling = Sampling(**options)
    sampling.check_ids(V=4)
    with pytest.raises(OptionError, match=f"{name} must name token ids from 0 to 2, not 3"):
        sampling.check_ids(V=3)
    with pytest.raises(OptionError, match=f"{name} must name token ids from 0 to 2, not 3"):
        sample(np.zeros(3), sampling, rng())
