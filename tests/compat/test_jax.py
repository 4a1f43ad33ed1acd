from typing import Any

import numpy as np
import pytest

import reference
from qkv.compat import jax_attention
from qkv.errors import OptionError


def zero_problem(T=2, S=5):
    """Zero queries and keys weigh all visible values 1, 2, 3, ... alike: outputs are plain means."""
    return np.zeros((1, T, 1, 1)), np.zeros((1, S, 1, 1)), np.arange(1.0, S + 1.0).reshape(1, S, 1, 1)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


TOP_LEFT: dict[str, Any] = {"causal": "top_left"}
ONLY_FOURTH = np.array([[False] * 5, [False, False, False, True, False]])


@pytest.mark.parametrize(
    ("options", "means"),
    [
        ({"is_causal": True}, [1, 1.5]),
        ({"local_window_size": 1}, [1.5, 2]),
        ({"local_window_size": np.int64(1)}, [1.5, 2]),
        ({"local_window_size": 0}, [1, 2]),
        ({"local_window_size": (1, 0)}, [1, 1.5]),
        ({"local_window_size": (0, 3)}, [2.5, 3.5]),
        ({"local_window_size": (0, 3), "is_causal": True}, [1, 2]),
        ({"key_value_seq_lengths": [2]}, [1.5, 1.5]),
        ({"query_seq_lengths": [1]}, [3, 0]),
        ({"query_seq_lengths": [1], "key_value_seq_lengths": [4], "is_causal": True}, [1, 0]),
    ],
    ids=str,
)
def test_order_window_and_lengths_start_at_the_first_key(options, means):
    np.testing.assert_allclose(jax_attention(*zero_problem(), **options).ravel(), means, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_row_that_may_see_nothing_is_the_mean_of_all_values(dtype):
    q, k, v = (x.astype(dtype) for x in zero_problem())
    np.testing.assert_allclose(jax_attention(q, k, v, mask=ONLY_FOURTH).ravel(), [3.0, 4.0], rtol=1e-3)
    # All keys count, also those beyond the row's length.
    out = jax_attention(q, k, v, mask=ONLY_FOURTH, key_value_seq_lengths=[2])
    np.testing.assert_allclose(out.ravel(), [3.0, 3.0], rtol=1e-3)
    np.testing.assert_allclose(
        jax_attention(q, k, v, key_value_seq_lengths=[0]).ravel(), [3.0, 3.0], rtol=1e-3
    )


def test_bias_of_minus_infinity_is_lower_than_a_hidden_score():
    q, k, v = zero_problem()
    bias = np.where(ONLY_FOURTH, 0.0, -np.inf)
    np.testing.assert_array_equal(jax_attention(q, k, v, bias).ravel(), [np.nan, 4.0])
    # The one key that is not -inf is hidden, and gets all the weight because of it.
    np.testing.assert_array_equal(jax_attention(q, k, v, bias, ~ONLY_FOURTH).ravel(), [np.nan, 4.0])


@pytest.mark.parametrize("G", [1, 2, 6])
def test_heads_stand_behind_positions_and_share_keys(G):
    q, k, v = normal(2, 5, 6, 3), normal(2, 7, G, 3, seed=1), normal(2, 7, G, 3, seed=2)
    bias, mask = normal(2, 1, 5, 7, seed=3), normal(6, 1, 7, seed=4) > -1
    out = jax_attention(q, k, v, bias, mask, scale=-0.3, is_causal=True, local_window_size=(4, 2))
    heads_first = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    options: dict[str, Any] = {"bias": bias, "mask": mask, "scale": -0.3, "window": (4, 2)}
    expected, _, lse = reference.attend(*heads_first, **options, **TOP_LEFT)
    expected = np.where((lse == -np.inf)[..., None], np.repeat(v.mean(1), 6 // G, 1)[:, :, None], expected)
    np.testing.assert_allclose(out, expected.transpose(0, 2, 1, 3), rtol=1e-12, atol=1e-13)


def test_batch_axis_may_be_absent():
    q, k, v = normal(5, 4, 3), normal(7, 2, 3, seed=1), normal(7, 2, 3, seed=2)
    mask = normal(4, 5, 7, seed=3) > 0
    out = jax_attention(q, k, v, mask=mask)
    assert out.shape == (5, 4, 3)
    np.testing.assert_array_equal(out, jax_attention(q[None], k[None], v[None], mask=mask[None])[0])


def test_slots_beyond_the_length_are_not_read():
    q, k, v = normal(1, 2, 1, 3), normal(1, 5, 1, 3, seed=1), normal(1, 5, 1, 3, seed=2)
    clean = jax_attention(q, k, v, key_value_seq_lengths=[4])
    k[:, 4], v[:, 4] = np.nan, np.inf
    np.testing.assert_array_equal(jax_attention(q, k, v, key_value_seq_lengths=[4]), clean)


def test_row_that_may_see_nothing_reads_every_value():
    q, k, v = zero_problem()
    v[0, 4] = np.inf
    np.testing.assert_allclose(jax_attention(q, k, v, mask=ONLY_FOURTH).ravel(), [np.inf, 4.0])


def test_no_keys_give_zero():
    assert (jax_attention(np.ones((2, 1, 3)), np.ones((0, 1, 3)), np.ones((0, 1, 3))) == 0).all()


def test_negative_window_is_refused():
    with pytest.raises(OptionError, match="not negative, not"):
        jax_attention(*zero_problem(), local_window_size=(-1, 0))
