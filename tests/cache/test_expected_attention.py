"""Expected attention: statistics, average rotation and score against their slow twins, and by hand."""

import numpy as np
import pytest

import eviction_reference as reference
from qkv import use_backend
from qkv.cache.expected_attention import (
    QueryStatistics,
    expected_scores,
    query_statistics,
    rotate_on_average,
    unrotate,
)
from qkv.errors import ShapeError
from qkv.ops.rotary import Rotary, rotary_table, rotate

H, G, T, S, D, D_v = 6, 3, 7, 11, 8, 5
ROTARY = {
    "whole head": Rotary((1.0, 0.5, 0.1, 0.01)),
    "part of the head, with a magnitude": Rotary((0.7, 0.02), magnitude=1.25),
}


@pytest.fixture(params=["numpy", "compiled"])
def backend(request: pytest.FixtureRequest):
    with use_backend(request.param):
        yield


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def statistics(seed: int = 0) -> QueryStatistics:
    return query_statistics(2 * normal(seed, H, T, D) + normal(seed + 1, H, 1, D))


@pytest.mark.usefixtures("backend")
def test_statistics_are_mean_and_covariance_per_query_head():
    q = normal(0, H, T, D)
    mean, covariance = query_statistics(q)
    for head in range(H):
        np.testing.assert_allclose(mean[head], q[head].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(covariance[head], np.cov(q[head].T, bias=True), atol=1e-5)


def test_statistics_worked_out_by_hand():
    # Queries (0, 0), (2, 4), (4, 2): mean (2, 2); deviations (-2, -2), (0, 2), (2, 0).
    mean, covariance = query_statistics(np.array([[[0.0, 0.0], [2.0, 4.0], [4.0, 2.0]]]))
    assert mean.tolist() == [[2.0, 2.0]]
    np.testing.assert_allclose(covariance, [[[8 / 3, 4 / 3], [4 / 3, 8 / 3]]], rtol=1e-6)


def test_statistics_of_no_query_are_refused():
    with pytest.raises(ShapeError, match=r"at least one query, not q of shape \(6, 0, 8\)"):
        query_statistics(np.zeros((H, 0, D)))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", ROTARY.values(), ids=ROTARY)
def test_unrotating_gives_back_what_was_rotated(rotary, interleaved):
    q, positions = normal(0, H, T, D), np.arange(100, 100 + 2 * T, 2)
    turned = rotate(q, *rotary_table(rotary, positions), interleaved=interleaved)
    assert np.abs(turned - q).max() > 0.5
    back = unrotate(turned, rotary, positions, interleaved=interleaved)
    np.testing.assert_allclose(back, q, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", ROTARY.values(), ids=ROTARY)
def test_average_rotation_is_the_mean_of_the_rotation_matrices(rotary, interleaved):
    before = statistics()
    after = rotate_on_average(before, rotary, 11, num_positions=5, interleaved=interleaved)
    R = np.mean(
        [reference.rotation(rotary.frequencies, rotary.magnitude, p, D, interleaved) for p in range(11, 16)],
        axis=0,
    )
    for head in range(H):
        np.testing.assert_allclose(after.mean[head], R @ before.mean[head], atol=1e-5)
        np.testing.assert_allclose(after.covariance[head], R @ before.covariance[head] @ R.T, atol=1e-5)


def test_average_rotation_over_one_position_is_the_rotation_there():
    before, rotary = statistics(), ROTARY["whole head"]
    after = rotate_on_average(before, rotary, 23, num_positions=1)
    np.testing.assert_allclose(after.mean, rotate(before.mean, *rotary_table(rotary, [23])), atol=1e-6)


def test_the_next_512_positions_are_the_default():
    before, rotary = statistics(), ROTARY["whole head"]
    default = rotate_on_average(before, rotary, 9).mean
    assert (default == rotate_on_average(before, rotary, 9, num_positions=512).mean).all()
    assert (default != rotate_on_average(before, rotary, 9, num_positions=513).mean).any()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("options", [{}, {"sinks": 3}, {"epsilon": 0.02}, {"scale": 0.1}, {"sinks": S - 1}])
def test_scores_are_expected_attention_times_the_length_of_the_value(options):
    k, v = normal(3, G, S, D), normal(4, G, S, D_v)
    queries = statistics()
    scores = expected_scores(queries, k, v, **options)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, reference.expected(*queries, k, v, **options), rtol=1e-4)


def test_a_spread_of_queries_raises_long_keys_worked_out_by_hand():
    # Mean 0, variance 2, scale 1: E[exp(q k)] = exp(k^2). For k = 0 and k = sqrt(ln 3): 1 to 3.
    # At scale 1/2 the exponent is k^2/4: 1 to 3^(1/4).
    queries = QueryStatistics(np.zeros((1, 1), np.float32), np.full((1, 1, 1), 2, np.float32))
    k, v = np.array([[[0.0], [np.sqrt(np.log(3.0))]]]), np.ones((1, 2, 1))
    np.testing.assert_allclose(expected_scores(queries, k, v, scale=1.0), [[0.25, 0.75]], rtol=1e-6)
    share = 1 / (1 + 3**0.25)
    np.testing.assert_allclose(expected_scores(queries, k, v, scale=0.5), [[share, 1 - share]], rtol=1e-6)


def test_expected_attention_is_the_mean_of_the_exponentials_over_normal_queries():
    rng = np.random.default_rng(5)
    q = rng.multivariate_normal([0.3, -0.2], [[0.5, 0.2], [0.2, 0.4]], size=200_000)
    k = normal(6, 1, S, 2)
    means = np.exp(q @ k[0].T / np.sqrt(2)).mean(axis=0)
    scores = expected_scores(query_statistics(q[None]), k, np.ones((1, S, 1)))
    np.testing.assert_allclose(scores[0], means / means.sum(), rtol=0.02)


@pytest.mark.parametrize("rotary", ROTARY.values(), ids=ROTARY)
def test_from_rotated_queries_to_scores_it_is_what_hidden_states_and_query_weights_give(rotary):
    # kvpress's way: mean and covariance of the hidden states, mapped by the query weights.
    E, skipped, positions = 13, 4, np.arange(S)
    hidden, weights = normal(7, S, E).astype(np.float64), normal(8, H, D, E) / 4
    k, v = normal(3, G, S, D), normal(4, G, S, D_v)
    R = np.mean(
        [reference.rotation(rotary.frequencies, rotary.magnitude, S + n, D, False) for n in range(512)],
        axis=0,
    )
    mean = weights @ hidden[skipped:].mean(axis=0) @ R.T
    spread = np.cov(hidden[skipped:].T, bias=True)
    covariance = np.stack([R @ w @ spread @ w.T @ R.T for w in weights])

    q = rotate(hidden @ weights.swapaxes(1, 2), *rotary_table(rotary, positions))
    plain = unrotate(q, rotary, positions)[:, skipped:]
    queries = rotate_on_average(query_statistics(plain), rotary, S)
    np.testing.assert_allclose(
        expected_scores(queries, k, v, sinks=4),
        reference.expected(mean, covariance, k, v, sinks=4),
        rtol=1e-3,
    )


def test_sinks_get_the_highest_score_of_their_head_and_take_no_share():
    k, v, queries = normal(3, G, S, D), normal(4, G, S, D_v), statistics()
    scores = expected_scores(queries, k, v, sinks=4)
    np.testing.assert_array_equal(scores[:, 4:], expected_scores(queries, k[:, 4:], v[:, 4:]))
    np.testing.assert_array_equal(scores[:, :4], np.repeat(scores[:, 4:].max(axis=1)[:, None], 4, axis=1))


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_nothing_but_sinks_is_no_error(num_tokens):
    scores = expected_scores(
        statistics(), np.ones((G, num_tokens, D)), np.ones((G, num_tokens, D_v)), sinks=3
    )
    assert (scores == np.zeros((G, num_tokens))).all()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_key_that_is_not_finite_spoils_its_own_score_alone(poison):
    k, v, queries = normal(3, G, S, D), normal(4, G, S, D_v), statistics()
    spoilt = k.copy()
    spoilt[1, 5] = poison
    scores, without = (
        expected_scores(queries, spoilt, v),
        expected_scores(queries, np.delete(k, 5, axis=1), np.delete(v, 5, axis=1)),
    )
    assert np.argwhere(~np.isfinite(scores)).tolist() == [[1, 5]]
    np.testing.assert_allclose(np.delete(scores[1], 5), without[1], rtol=1e-6)


def test_a_key_of_infinite_expectation_leaves_the_others_their_shares():
    queries = QueryStatistics(np.ones((1, 1), np.float32), np.ones((1, 1, 1), np.float32))
    k, v = np.array([[[1.0], [np.inf], [2.0]]]), np.ones((1, 3, 1))
    scores = expected_scores(queries, k, v)
    assert np.isnan(scores[0, 1])
    np.testing.assert_array_equal(scores[:, [0, 2]], expected_scores(queries, k[:, [0, 2]], v[:, [0, 2]]))


@pytest.mark.usefixtures("backend")
def test_a_query_that_is_not_a_number_makes_all_scores_of_its_heads_nan_without_a_warning():
    q = normal(0, H, T, D)
    q[4, 2, 1] = np.inf
    scores = expected_scores(query_statistics(q), normal(3, G, S, D), normal(4, G, S, D_v))
    assert np.isnan(scores).all(axis=1).tolist() == [False, False, True]


def test_expected_scores_leave_their_inputs_as_they_were():
    k, v, queries = normal(3, G, S, D), normal(4, G, S, D_v), statistics()
    copies = [x.copy() for x in (*queries, k, v)]
    expected_scores(rotate_on_average(queries, ROTARY["whole head"], 7), k, v, sinks=2)
    assert all((x == copy).all() for x, copy in zip((*queries, k, v), copies, strict=True))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ShapeError, match="H = 6 must be a multiple of the key heads G = 4"):
        expected_scores(statistics(), np.ones((4, S, D)), np.ones((4, S, D_v)))
