"""The published scores: against their slow twins, and by hand."""

import numpy as np
import pytest

import eviction_reference as reference
from qkv.cache.importance import (
    accumulate,
    decay_factors,
    heavy_hitter_scores,
    key_norm_scores,
    last_query_scores,
    observed_scores,
)
from qkv.errors import OptionError, ShapeError
from qkv.ops import attend
from qkv.ops.columns import attention_columns
from qkv.ops.operands import Operands

H, G, T, S, D = 6, 3, 7, 11, 5


def uniform(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, np.float32)


def causal_step(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random queries (H, S, D) and keys (G, S, D) of one text."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(H, S, D)).astype(np.float32), rng.normal(size=(G, S, D)).astype(np.float32)


def step_columns(q: np.ndarray, k: np.ndarray, decay: float) -> np.ndarray:
    """What a step's queries give each key: (H, S), the last query standing on the last key."""
    _, lse = attend(q[None], k[None], k[None], causal=True, return_lse=True)
    factors = decay_factors(q.shape[1], decay)[None]
    return attention_columns(Operands.of(q[None], k[None], k[None], causal=True), lse, factors)[0]


def test_every_score_is_float32_with_one_number_per_key_head_and_token():
    columns, ages = uniform(0, H, S), np.arange(S, 0, -1) + np.zeros((G, 1), int)
    for scores in (
        key_norm_scores(uniform(1, G, S, D)),
        observed_scores(columns, G, window=3),
        last_query_scores(columns, G),
        accumulate(uniform(2, G, T), columns, num_queries=S - T, decay=0.9),
        heavy_hitter_scores(uniform(3, G, S), ages, "age"),
    ):
        assert scores.shape == (G, S)
        assert scores.dtype == np.float32


def test_the_key_norm_is_minus_the_root_of_the_sum_of_squares():
    k = uniform(0, G, S, D) - 0.5
    np.testing.assert_allclose(key_norm_scores(k), reference.key_norms(k), rtol=1e-6)


def test_a_key_too_long_to_square_scores_lowest_and_one_of_nan_nan():
    k = np.ones((1, 3, 4), np.float32)
    k[0, 0], k[0, 2, 1] = 1e30, np.nan
    np.testing.assert_array_equal(key_norm_scores(k), [[-np.inf, -2.0, np.nan]])


def test_keys_of_float16_are_squared_in_float32():
    assert key_norm_scores(np.full((1, 1, 4), 1e4, np.float16)).item() == -2e4


@pytest.mark.parametrize("window", [0, 1, 4, S - 1, S, S + 1])
def test_observed_scores_pool_the_mean_over_the_group(window):
    columns = uniform(0, H, S)
    np.testing.assert_allclose(
        observed_scores(columns, G, window), reference.observed(columns, G, window), rtol=1e-6
    )


def test_observed_scores_worked_out_by_hand():
    # Two query heads share a key head: means 1 2 3 4 5 | 9. Pool of 5 over the five before the window:
    # (1+2+3)/5, (1+2+3+4)/5, 15/5, (2+3+4+5)/5, (3+4+5)/5; the window gets the highest of them.
    columns = np.array([[0.0, 1, 2, 3, 4, 9], [2.0, 3, 4, 5, 6, 9]])
    np.testing.assert_allclose(observed_scores(columns, 1, window=1), [[1.2, 2.0, 3.0, 2.8, 2.4, 3.0]])


def test_what_the_window_gives_itself_does_not_leak_into_the_tokens_before_it():
    columns = uniform(0, H, S)
    louder = columns.copy()
    louder[:, -3:] += 100
    assert (observed_scores(louder, G, 3) == observed_scores(columns, G, 3)).all()


def test_last_query_scores_are_the_same_for_every_key_head():
    weights = uniform(0, H, S)
    np.testing.assert_allclose(last_query_scores(weights, G), reference.last_query(weights, G), rtol=1e-6)


def test_decay_factors_count_back_from_the_last_query():
    np.testing.assert_allclose(decay_factors(4, 0.9), [0.729, 0.81, 0.9, 1.0], rtol=1e-6)
    assert decay_factors(3, 1.0).tolist() == [1, 1, 1]
    assert decay_factors(0, 0.9).shape == (0,)


def test_accumulating_worked_out_by_hand():
    # Two queries at decay 1/2 quarter the old score; query heads 1 3 and 2 4 are averaged to 2 and 3.
    score = np.array([[8.0]])
    columns = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert accumulate(score, columns, num_queries=2, decay=0.5).tolist() == [[4.0, 3.0]]
    assert accumulate(score, columns, num_queries=2).tolist() == [[10.0, 3.0]]


def test_accumulating_leaves_the_old_scores_as_they_were():
    score = uniform(0, G, T)
    before = score.copy()
    accumulate(score, uniform(1, H, S), num_queries=S - T, decay=0.9)
    assert (score == before).all()


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("cuts", [[S], [7, 4], [3, 1, 2, 5], [1] * S])
def test_accumulated_attention_is_the_same_however_the_text_is_cut_into_steps(decay, cuts):
    q, k = causal_step(seed=1)
    _, weights = attend(q[None], k[None], k[None], causal=True, return_weights=True)
    score, start = np.zeros((G, 0), np.float32), 0
    for count in cuts:
        stop = start + count
        columns = step_columns(q[:, start:stop], k[:, :stop], decay)
        score, start = accumulate(score, columns, count, decay), stop
    np.testing.assert_allclose(score, reference.heavy_hitters(weights[0], G, decay), rtol=1e-5)


def test_each_query_gives_away_one_in_all():
    # Undecayed, the sums over all keys are the number of queries, for each key head.
    q, k = causal_step(seed=2)
    score = accumulate(np.zeros((G, 0)), step_columns(q, k, decay=1.0), num_queries=S)
    np.testing.assert_allclose(score.sum(axis=1), [S] * G, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.9, 0.5])
def test_plain_sums_favour_old_keys_under_uniform_attention_while_age_and_decay_do_not(decay):
    # Every query gives each key it sees the same weight; keys are as old as many queries could see them.
    weight, num_queries = 0.25, 400
    ages = np.array([[400, 40, 20]])
    score = decayed = np.zeros((1, 3), np.float32)
    for query in range(num_queries):
        column = np.where(num_queries - query <= ages, weight, 0)
        score = accumulate(score, column, num_queries=1)
        decayed = accumulate(decayed, column, num_queries=1, decay=decay)
    plain = heavy_hitter_scores(score, ages, "sum")[0]
    np.testing.assert_allclose(plain / plain[2], [20, 2, 1])  # the ratio of their ages
    assert (heavy_hitter_scores(score, ages, "age") == weight).all()
    forgetful = heavy_hitter_scores(decayed, ages, "decay")[0]
    assert forgetful[0] / forgetful[2] <= 1 / (1 - decay**20) + 1e-6  # 1.14 at 0.9
    assert forgetful.max() <= weight / (1 - decay) * (1 + 1e-6)


def test_an_old_favourite_that_is_no_longer_looked_at_loses_only_where_old_queries_count_less():
    # 90 queries look at the old key, then 10 at the new one.
    sums, decayed = np.zeros((1, 2)), np.zeros((1, 2))
    for query in range(100):
        column = np.array([[1.0, 0.0]] if query < 90 else [[0.0, 1.0]])
        sums, decayed = accumulate(sums, column, 1), accumulate(decayed, column, 1, decay=0.9)
    ages = np.array([[100, 10]])
    assert heavy_hitter_scores(sums, ages, "sum").argmax() == 0
    assert heavy_hitter_scores(sums, ages, "age").argmax() == 1  # 90/100 against 10/10
    assert heavy_hitter_scores(decayed, ages, "decay").argmax() == 1


def test_nan_in_one_column_stays_in_its_key_head_and_its_reach():
    columns = np.ones((H, S), np.float32)
    columns[0, 4] = np.nan
    assert np.isnan(accumulate(np.zeros((G, S)), columns, 1)).nonzero() == (np.array([0]), np.array([4]))
    spoilt = np.isnan(observed_scores(columns, G, window=0))
    assert spoilt.nonzero()[1].tolist() == [2, 3, 4, 5, 6]
    assert not spoilt[1:].any()


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ShapeError, match="H = 6 must be a multiple of the key heads G = 4"):
        observed_scores(uniform(0, 6, S), 4, window=1)


def test_scores_of_more_tokens_than_the_sums_have_are_refused():
    with pytest.raises(ShapeError, match="all 12 tokens that have scores, not S = 11"):
        accumulate(np.zeros((G, S + 1)), uniform(0, H, S), 1)


def test_an_unknown_scoring_is_refused():
    with pytest.raises(OptionError, match="sum, age or decay, not 'mean'"):
        heavy_hitter_scores(np.ones((1, 1)), np.ones((1, 1), int), "mean")  # pyright: ignore[reportArgumentType]
