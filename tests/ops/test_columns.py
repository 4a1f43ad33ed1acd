"""Column sums tile by tile: those of the dense weights, in little memory, and blind to hidden slots."""

import tracemalloc

import numpy as np
import pytest

import eviction_reference as reference
from qkv import attend, use_backend
from qkv.errors import ShapeError
from qkv.ops.columns import attention_columns
from qkv.ops.operands import Operands

B, H, G, T, S, D = 2, 6, 3, 7, 11, 5
TILES = [(128, 512), (1, 1), (2, 3), (4, 4), (7, 11)]


def normal(seed: int, *shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        normal(0, B, H, T, D, dtype=dtype),
        normal(1, B, G, S, D, dtype=dtype),
        normal(2, B, G, S, D, dtype=dtype),
    )


RULES = {
    "no rule": {},
    "causal": {"causal": True},
    "causal top-left": {"causal": "top_left"},
    "window": {"window": 3},
    "window on both sides": {"window": (2, 1)},
    "mask": {"mask": np.random.default_rng(3).random((B, H, T, S)) < 0.4},
    "nothing visible": {"mask": np.zeros((1, 1), bool)},
    "bias": {"bias": np.where(normal(4, B, 1, T, S) < -1, -np.inf, normal(5, B, 1, T, S))},
    "softcap and scale": {"softcap": 2.0, "scale": 1.5},
    "a scale below 0": {"scale": -0.7, "causal": True},
    "sinks": {"sinks": normal(6, H), "causal": True},
    "sinks alone": {"sinks": normal(6, H), "mask": np.zeros((1, 1), bool)},
    "slopes": {"alibi_slopes": np.arange(1, H + 1) / 5, "causal": True},
    "lengths": {"causal": True, "q_lengths": [5, 2], "kv_lengths": [11, 7]},
    "lengths and window": {"window": 4, "q_lengths": [0, 7], "kv_lengths": [3, 9]},
}


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile[0]}x{tile[1]}")
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_columns_are_the_sums_of_the_weights_over_the_queries(rules, tile):
    q, k, v = inputs()
    _, weights, lse = attend(q, k, v, return_weights=True, return_lse=True, **rules)
    columns = attention_columns(Operands.of(q, k, v, **rules), lse, tile_queries=tile[0], tile_keys=tile[1])
    assert columns.shape == (B, H, S)
    np.testing.assert_allclose(columns, reference.column_sums(weights), atol=1e-12)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile[0]}x{tile[1]}")
def test_each_query_counts_by_its_factor(tile):
    q, k, v = inputs()
    factors = normal(7, B, T)
    _, weights, lse = attend(q, k, v, causal=True, return_weights=True, return_lse=True)
    columns = attention_columns(
        Operands.of(q, k, v, causal=True), lse, factors, tile_queries=tile[0], tile_keys=tile[1]
    )
    np.testing.assert_allclose(columns, reference.column_sums(weights, factors), atol=1e-12)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_float32_columns_follow_the_lse_of_either_backend(backend):
    q, k, v = inputs(np.float32)
    _, weights = attend(*(x.astype(np.float64) for x in (q, k, v)), causal=True, return_weights=True)
    with use_backend(backend):
        _, lse = attend(q, k, v, causal=True, return_lse=True)
    columns = attention_columns(Operands.of(q, k, v, causal=True), lse)
    assert columns.dtype == np.float32
    np.testing.assert_allclose(columns, reference.column_sums(weights), rtol=1e-5)


def test_the_last_queries_alone_give_the_columns_of_an_observation_window():
    q, k, v = inputs()
    _, weights, lse = attend(q, k, v, causal=True, return_weights=True, return_lse=True)
    window = Operands.of(q[:, :, -3:], k, v, causal=True)
    columns = attention_columns(window, lse[:, :, -3:])
    np.testing.assert_allclose(columns, reference.column_sums(weights[:, :, -3:]), atol=1e-12)


def test_columns_worked_out_by_hand():
    # Equal scores, causal, two queries on four keys: 1/3 each for three keys, then 1/4 each for four.
    q, k = np.zeros((1, 1, 2, 3)), np.zeros((1, 1, 4, 3))
    operands, lse = Operands.of(q, k, k, causal=True), np.log([[[3.0, 4.0]]])
    np.testing.assert_allclose(attention_columns(operands, lse), [[[7 / 12] * 3 + [1 / 4]]])
    halved = attention_columns(operands, lse, factors=np.array([[0.5, 1.0]]))
    np.testing.assert_allclose(halved, [[[5 / 12] * 3 + [1 / 4]]])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_in_hidden_slots_changes_no_bit(poison):
    q, k, v = inputs(np.float32)
    rules = {"causal": True, "q_lengths": [5, 2], "kv_lengths": [9, 7]}
    _, lse = attend(q, k, v, return_lse=True, **rules)
    clean = attention_columns(Operands.of(q, k, v, **rules), lse)
    q[0, :, 5:], q[1, :, 2:], k[0, :, 9:], k[1, :, 7:] = (poison,) * 4
    v[:] = poison  # values are never looked at
    spoilt = attention_columns(Operands.of(q, k, v, **rules), lse)
    assert clean.tobytes() == spoilt.tobytes()
    assert not spoilt[0, :, 9:].any()


def test_a_visible_nan_is_not_hidden_and_reaches_no_key_that_its_query_cannot_see():
    q, k, v = inputs()
    q[1, 2, 3] = np.nan  # query 3 of 7 stands on key 7 of 11
    _, lse = attend(q, k, v, causal=True, return_lse=True)
    columns = attention_columns(Operands.of(q, k, v, causal=True), lse)
    assert np.isnan(columns[1, 2]).tolist() == [True] * 8 + [False] * 3
    assert np.isfinite(np.delete(columns[1], 2, axis=0)).all()
    assert np.isfinite(columns[0]).all()


def test_a_visible_key_that_no_score_can_reach_gets_nothing():
    q, k = np.ones((1, 1, 2, 3)), np.full((1, 1, 4, 3), -np.inf)
    columns = attention_columns(Operands.of(q, k, k), np.full((1, 1, 2), -np.inf))
    assert (columns == 0).all()


def test_a_query_of_factor_0_is_not_looked_at():
    q, k, v = inputs()
    q[:, :, 3] = np.nan
    _, lse = attend(q, k, v, causal=True, return_lse=True)
    columns = attention_columns(Operands.of(q, k, v, causal=True), lse, np.tile(np.arange(T) != 3, (B, 1)))
    assert np.isfinite(columns).all()


@pytest.mark.parametrize(("T", "S"), [(0, S), (T, 0), (0, 0)])
def test_empty_axes_keep_their_shape(T, S):
    q, k = np.ones((B, H, T, D)), np.ones((B, G, S, D))
    columns = attention_columns(Operands.of(q, k, k, causal=True), np.full((B, H, T), -np.inf))
    assert columns.shape == (B, H, S)
    assert not columns.any()


def test_memory_grows_with_positions_and_not_with_their_square():
    T = 8192
    q = k = np.zeros((1, 1, T, 2), np.float32)
    operands, lse = Operands.of(q, k, k, causal=True), np.log(np.arange(1, T + 1, dtype=np.float32))
    tracemalloc.start()
    columns = attention_columns(operands, lse[None, None])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6  # all weights are 268 MB
    np.testing.assert_allclose(
        columns[0, 0, [0, -1]], [sum(1 / n for n in range(1, T + 1)), 1 / T], rtol=1e-4
    )


def test_what_does_not_fit_the_queries_is_refused():
    q, k, v = inputs()
    operands = Operands.of(q, k, v)
    with pytest.raises(ShapeError, match=r"lse must fit the queries, \(2, 6, 7\), not \(2, 6, 11\)"):
        attention_columns(operands, np.zeros((B, H, S)))
    with pytest.raises(ShapeError, match=r"factors must fit the queries, \(2, 7\), not \(7,\)"):
        attention_columns(operands, np.zeros((B, H, T)), np.ones(T))
