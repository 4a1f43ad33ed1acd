from typing import Any

import numpy as np
import pytest

import reference
from qkv.compat import torch_sdpa
from qkv.errors import OptionError, ShapeError


def counting_values(S):
    """Zero queries and keys weigh all visible values alike, so that outputs are plain means."""
    return np.arange(1.0, S + 1.0)[:, None]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
    ("T", "S", "means"), [(2, 5, [1, 1.5]), (5, 2, [1, 1.5, 1.5, 1.5, 1.5]), (1, 4, [1])], ids=str
)
def test_causal_puts_the_first_query_on_the_first_key(T, S, means):
    out = torch_sdpa(np.zeros((T, 1)), np.zeros((S, 1)), counting_values(S), is_causal=True)
    np.testing.assert_allclose(out[:, 0], means)


def test_bool_mask_lets_true_attend_and_float_mask_is_added():
    q, k, v = np.zeros((3, 1)), np.zeros((3, 1)), np.array([[1.0], [10.0], [100.0]])
    lower = np.tril(np.ones((3, 3), dtype=bool))
    np.testing.assert_allclose(torch_sdpa(q, k, v, lower)[:, 0], [1, 5.5, 37])
    added = torch_sdpa(q, k, v, lower.astype(np.float64))
    np.testing.assert_allclose(added[:, 0], [23.8897, 20.1817, 37], atol=1e-4)


def test_mask_of_integers_is_refused_as_pytorch_does():
    x = np.zeros((3, 1))
    with pytest.raises(TypeError, match=r"attn_mask must be bool.*not int64.*astype\(bool\)"):
        torch_sdpa(x, x, x, np.ones((3, 3), dtype=np.int64))


@pytest.mark.parametrize(
    "hidden", [np.array([[False] * 5, [True] * 5]), np.array([[-np.inf] * 5, [0.0] * 5])]
)
def test_row_that_may_see_nothing_is_zero(hidden):
    out = torch_sdpa(np.zeros((2, 1)), np.zeros((5, 1)), counting_values(5), hidden)
    np.testing.assert_allclose(out[:, 0], [0.0, 3.0])


def test_heads_share_keys_only_when_asked_to():
    q, k = np.zeros((1, 4, 2, 3)), np.zeros((1, 2, 5, 3))
    v = np.broadcast_to(np.array([10.0, 20.0])[None, :, None, None], (1, 2, 5, 1))
    np.testing.assert_allclose(torch_sdpa(q, k, v, enable_gqa=True)[0, :, 0, 0], [10, 10, 20, 20])
    with pytest.raises(ShapeError, match="enable_gqa=True"):
        torch_sdpa(q, k, v)
    with pytest.raises(ShapeError, match="multiple"):
        torch_sdpa(np.zeros((1, 4, 2, 3)), np.zeros((1, 3, 5, 3)), np.zeros((1, 3, 5, 1)), enable_gqa=True)


def test_leading_axes_broadcast_like_any_others():
    q, k, v = normal(2, 1, 3, 5, 7), normal(11, 1, 13, 7, seed=1), normal(2, 1, 3, 13, 2, seed=2)
    mask = normal(11, 1, 5, 13, seed=3) > 0
    out = torch_sdpa(q, k, v, mask)
    assert out.shape == (2, 11, 3, 5, 2)
    for b, h, g in np.ndindex(2, 11, 3):
        alone, _, _ = reference.attend(
            q[b, 0, g][None, None], k[h, 0][None, None], v[b, 0, g][None, None], mask=mask[h]
        )
        np.testing.assert_allclose(out[b, h, g], alone[0, 0], rtol=1e-12, atol=1e-13)


def test_grouped_heads_keep_any_number_of_batch_axes():
    q, k, v = normal(2, 3, 4, 5, 7), normal(3, 2, 13, 7, seed=1), normal(3, 2, 13, 11, seed=2)
    out = torch_sdpa(q, k, v, is_causal=True, enable_gqa=True)
    for b in range(2):
        options: dict[str, Any] = {"causal": "top_left"}
        expected, _, _ = reference.attend(q[b], k, v, **options)
        np.testing.assert_allclose(out[b], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (1, 7), (1, 5, 7), (3, 5, 1), (2, 1, 5, 7)], ids=str)
def test_mask_of_fewer_axes_is_aligned_to_the_last_ones(shape):
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4, seed=1), normal(2, 3, 7, 4, seed=2)
    bias = normal(*shape, seed=3)
    expected, _, _ = reference.attend(q, k, v, bias=bias)
    np.testing.assert_allclose(torch_sdpa(q, k, v, bias), expected, rtol=1e-12, atol=1e-13)


def test_mask_must_not_widen_the_batch():
    q, k, v = normal(3, 5, 4), normal(3, 7, 4), normal(3, 7, 4)
    with pytest.raises(ShapeError, match="not the other way round"):
        torch_sdpa(q, k, v, np.ones((2, 3, 5, 7), dtype=bool))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (None, [[1, 2], [2.049457, 3.049457], [3.206586, 4.206586]]),
        (0.0, [[1, 2], [2, 3], [3, 4]]),
        (-1.0, [[1, 2], [1.930114, 2.930114], [2.709008, 3.709008]]),
    ],
)
def test_scale_zero_and_negative_are_scales(scale, expected):
    q = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    k, v = q + 0.6, np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_allclose(torch_sdpa(q, k, v, is_causal=True, scale=scale), expected, atol=1e-6)


def test_what_pytorch_refuses_is_refused():
    x = np.zeros((3, 1))
    with pytest.raises(OptionError, match="not both"):
        torch_sdpa(x, x, x, np.ones((3, 3), dtype=bool), is_causal=True)
    with pytest.raises(OptionError, match="dropout"):
        torch_sdpa(x, x, x, None, 0.1)
    with pytest.raises(ShapeError, match="last axes"):
        torch_sdpa(x[0], x[0], x[0])
    with pytest.raises(ShapeError, match="heads, positions, D"):
        torch_sdpa(x, x, x, enable_gqa=True)


@pytest.mark.parametrize(("T", "S"), [(0, 5), (2, 0)])
def test_empty_axes_keep_their_shape(T, S):
    out = torch_sdpa(np.ones((3, T, 4)), np.ones((3, S, 4)), np.ones((3, S, 7)))
    assert out.shape == (3, T, 7)
    assert (out == 0).all()
