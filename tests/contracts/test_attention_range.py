"""Scores of any size: nothing overflows, nothing underflows to nothing; asked of every path."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference
from attention_paths import PATHS, normal, tiled_by
from qkv.ops import causal_mask

LOW_PRECISION = [np.float16, ml_dtypes.bfloat16]


@pytest.fixture(params=list(PATHS.values()), ids=list(PATHS))
def path(request: pytest.FixtureRequest) -> Any:
    return request.param


def eight_keys_of_score_minus_200() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.ones((8, 1)), np.full((8, 1), -200.0), np.arange(1.0, 9.0)[:, None]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("tile_keys", range(1, 9))
@pytest.mark.parametrize("tile_queries", [1, 3, 8])
def test_hidden_tiles_before_very_negative_scores_do_not_count(tile_queries, tile_keys, dtype):
    q, k, v = (x.astype(dtype) for x in eight_keys_of_score_minus_200())
    run = tiled_by(tile_queries, tile_keys)
    causal = [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]
    window_4 = [1, 1.5, 2, 2.5, 3.5, 4.5, 5.5, 6.5]
    assert run(q, k, v, causal=True, scale=1.0)[0].ravel().tolist() == causal
    assert run(q, k, v, window=4, scale=1.0)[0].ravel().tolist() == window_4
    # as masks no tile is skipped, and with the keys turned round the hidden tiles come first
    seen = causal_mask(8)
    assert run(q, k, v, mask=seen, scale=1.0)[0].ravel().tolist() == causal
    assert run(q, k[::-1], v[::-1], mask=seen[:, ::-1], scale=1.0)[0].ravel().tolist() == causal


def test_a_later_tile_with_much_higher_scores_replaces_what_was_seen(path):
    q, k, v = np.ones((1, 1)), np.array([[-300.0], [0.0], [500.0], [499.0], [-1e5]]), np.eye(5)
    weights = np.array([0, 0, 1, np.exp(-1), 0]) / (1 + np.exp(-1))
    output, lse = path(q, k, v, scale=1.0)
    np.testing.assert_allclose(output[0], weights, rtol=1e-12, atol=1e-80)
    np.testing.assert_allclose(lse, [500 + np.log1p(np.exp(-1))], rtol=1e-14)


def test_a_hidden_key_does_not_win_over_a_very_low_score(path):
    q, k, v = np.array([[-20000.0], [0.0]]), np.array([[1.0], [0.0]]), np.array([[1.0], [100.0]])
    output, _ = path(q, k, v, mask=np.array([True, False]), scale=1.0)
    assert output.ravel().tolist() == [1.0, 1.0]


def test_dot_products_beyond_float16_choose_the_larger_one(path):
    q = np.full((1, 128), 300, np.float16)  # dots 11 520 000 and 11 481 600, float16 ends at 65 504
    k = np.stack([np.full(128, 300), np.full(128, 299)]).astype(np.float16)
    output, _ = path(q, k, np.array([[1, 2], [3, 4]], np.float16))
    assert output.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_a_causal_plane_and_a_padding_plane_may_both_hide(path, dtype):
    q, k, v = normal(1, 3, 2, dtype=dtype), normal(2, 3, 2, dtype=dtype), np.eye(3).astype(dtype)
    not_padding = np.array([False, True, True])
    as_mask, _ = path(q, k, v, mask=not_padding, causal=True)
    lowest = ml_dtypes.finfo(dtype).min
    planes = [np.where(seen, 0, lowest).astype(np.float32) for seen in (causal_mask(3), not_padding)]
    as_bias, _ = path(q, k, v, bias=planes[0], mask=not_padding)
    assert as_mask.astype(float)[0].tolist() == [0, 0, 0]
    assert as_mask.astype(float)[1].tolist() == [0, 1, 0]
    assert np.isfinite(as_mask.astype(float)).all()
    assert (as_bias[1:] == as_mask[1:]).all()
    assert np.isfinite(path(q, k, v, bias=planes[0] + planes[1])[0].astype(float)).all()


def textbook(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The formula with every step in the inputs' own precision."""
    dtype = q.dtype.type
    scores = (q @ k.T).astype(dtype) * dtype(1 / np.sqrt(q.shape[-1]))
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return (weights @ v).astype(dtype)


@cache
def draws(dtype: Any, magnitude: float) -> list[tuple[tuple[np.ndarray, ...], np.ndarray, float]]:
    """Thirty times q, k and v, the exact output, and the textbook's error: inf for an overflow."""
    result = []
    for seed in range(0, 90, 3):
        q, k = ((magnitude * normal(seed + n, 1, 1, size, 64)).astype(dtype) for n, size in ((0, 7), (1, 23)))
        v = normal(seed + 2, 1, 1, 23, 5, dtype=dtype)
        exact = reference.attend(q, k, v)[0]
        with np.errstate(all="ignore"):
            error = np.abs(textbook(q[0, 0], k[0, 0], v[0, 0]).astype(float) - exact).max()
        result.append(((q, k, v), exact, np.inf if np.isnan(error) else error))
    return result


@pytest.mark.parametrize("magnitude", [1, 3, 10, 300])
@pytest.mark.parametrize("dtype", [*LOW_PRECISION, np.float32])
def test_large_scores_cost_at_most_twice_the_error_of_the_textbook(path, dtype, magnitude):
    errors = []
    for inputs, exact, _ in draws(dtype, magnitude):
        output, lse = path(*inputs)
        assert np.isfinite(output.astype(float)).all()
        assert np.isfinite(lse).all()
        errors.append(np.abs(output.astype(float) - exact).max())
    of_textbook = [error for *_, error in draws(dtype, magnitude)]
    assert max(errors) <= 2 * max(of_textbook)
    assert np.mean(errors) <= 2 * np.mean(of_textbook)
