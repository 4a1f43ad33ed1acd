"""Attention by hand: small inputs whose answers were worked out on paper."""

from typing import Any

import numpy as np
import pytest

from attention_paths import normal
from qkv import use_backend
from qkv.ops import alibi_slopes, attend, scaled_dot_product_attention
from qkv.ops.attention import attend_by, tiled_path
from qkv.ops.rotary import rotary_frequencies, rotary_table, rotate

X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
Y = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
LOWER = np.array([[True, False, False], [True, True, False], [True, True, True]])


def close(got: np.ndarray, expected: Any) -> bool:
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    return True


def counting(num_keys: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys that all match alike, and the values start, start + 1, ...: outputs are plain means."""
    return np.zeros((num_keys, 1)), np.arange(start, start + num_keys, dtype=float)[:, None]


def mean_seen(num_queries: int, num_keys: int, start: int = 0, **options: Any) -> list[float]:
    k, v = counting(num_keys, start)
    return attend(np.zeros((num_queries, 1)), k, v, **options).ravel().tolist()


def test_a_row_that_may_see_nothing_is_zero_and_a_bad_query_is_not_hidden():
    seen = np.array([[True, False, False], [True, True, False], [False, False, False]])
    expected = [[1, 2], [2.339523, 3.339523], [0, 0]]
    assert close(attend(X, X, Y, mask=seen), expected)
    assert close(attend(X, X, Y, bias=np.where(seen, 0, -np.inf)), expected)
    q = X.copy()
    q[1] = np.nan
    output = attend(q, X, Y, mask=seen)
    assert np.isnan(output[1]).all()
    assert (output[[0, 2]] == attend(X, X, Y, mask=seen)[[0, 2]]).all()


@pytest.mark.parametrize(("bad_key", "bad_value"), [(np.nan, np.nan), (np.nan, 5.0), (1.0, np.inf)])
def test_a_masked_slot_may_hold_anything(bad_key, bad_value):
    k, v = X.copy(), Y.copy()
    k[2], v[2] = bad_key, bad_value
    seen = np.array([True, True, False])
    assert close(attend(X, k, v, mask=seen), [[1.660477, 2.660477], [2.339523, 3.339523], [2, 3]])
    assert (attend(X, k, v, mask=seen) == attend(X, X, Y, mask=seen)).all()


def test_the_last_query_stands_on_the_last_key():
    assert mean_seen(2, 5, start=1, causal=True) == [2.5, 3.0]
    assert mean_seen(1, 4, start=1, causal=True) == [2.5]
    assert mean_seen(5, 2, start=1, causal=True) == [0, 0, 0, 1, 1.5]


def test_top_left_puts_the_first_query_on_the_first_key():
    assert mean_seen(2, 5, start=1, causal="top_left") == [1, 1.5]
    assert mean_seen(5, 2, start=1, causal="top_left") == [1, 1.5, 1.5, 1.5, 1.5]


def test_lengths_align_each_row_on_its_own_last_key():
    k, v = (np.stack([x, x])[:, None] for x in counting(5))
    output = attend(np.zeros((2, 1, 3, 1)), k, v, causal=True, q_lengths=[3, 2], kv_lengths=[5, 3])
    assert output[..., 0].tolist() == [[[1, 1.5, 2]], [[0.5, 1, 0]]]


def test_true_in_a_mask_means_may_attend():
    k, v = np.zeros((3, 1)), np.array([[1.0], [10.0], [100.0]])
    assert close(attend(k, k, v, mask=LOWER).ravel(), [1, 5.5, 37])


def test_a_window_counts_the_querys_own_key():
    assert mean_seen(6, 6, window=3) == [0, 0.5, 1, 2, 3, 4]
    assert mean_seen(1, 6, window=3) == mean_seen(1, 6, window=np.int64(3)) == pytest.approx([4])
    assert mean_seen(6, 6, window=100) == mean_seen(6, 6, causal=True) == [0, 0.5, 1, 1.5, 2, 2.5]
    assert mean_seen(6, 6, window=None) == [2.5] * 6


def test_a_pair_of_reaches_leaves_the_querys_own_key_out_of_the_count():
    assert mean_seen(6, 6, window=(2, 0)) == mean_seen(6, 6, window=3)
    assert mean_seen(6, 6, window=(0, 0)) == [0, 1, 2, 3, 4, 5]
    assert mean_seen(6, 6, window=(1, 2)) == [1, 1.5, 2.5, 3.5, 4, 4.5]
    assert mean_seen(6, 6, window=(1, 2), causal=True) == [0, 0.5, 1.5, 2.5, 3.5, 4.5]
    assert mean_seen(6, 6, window=(None, 1)) == [0.5, 1, 1.5, 2, 2.5, 2.5]


def test_the_cap_acts_before_the_mask():
    k, v = np.zeros((2, 1)), np.array([[1.0], [101.0]])
    assert attend(k, k, v, mask=np.array([True, False]), softcap=1.0).tolist() == [[1], [1]]


def test_a_cap_of_2_turns_3_into_1_81():
    q, k = np.array([[1.0]]), np.array([[3.0], [0.0]])
    _, weights, lse = attend(q, k, k, softcap=2.0, scale=1.0, return_weights=True, return_lse=True)
    assert close(weights, [[0.859398, 0.140602]])
    assert close(lse, [np.log(np.exp(1.810297) + 1)])


def test_the_scale_acts_before_the_cap_and_the_bias_after_it():
    q, k = np.array([[1.0]]), np.array([[6.0], [0.0]])
    bias = np.array([0.0, 1.810297])
    _, weights = attend(q, k, k, softcap=2.0, scale=0.5, bias=bias, return_weights=True)
    assert close(weights, [[0.5, 0.5]])


def test_each_key_head_serves_neighbouring_query_heads():
    q, k = np.zeros((1, 4, 1, 2)), np.zeros((1, 2, 3, 2))
    v = np.broadcast_to(np.array([10.0, 20.0])[:, None, None], (1, 2, 3, 1))
    assert attend(q, k, v).ravel().tolist() == [10, 10, 20, 20]


def test_a_scale_of_zero_or_less_is_a_scale():
    q, k = np.arange(1, 7).reshape(3, 2) / 10, np.arange(7, 13).reshape(3, 2) / 10
    expected = {
        None: [[1, 2], [2.049457, 3.049457], [3.206586, 4.206586]],
        0.0: [[1, 2], [2, 3], [3, 4]],
        -1.0: [[1, 2], [1.930114, 2.930114], [2.709008, 3.709008]],
    }
    for scale, output in expected.items():
        assert close(attend(q, k, Y, causal=True, scale=scale), output)


def test_a_sink_takes_its_share_once_and_unscaled():
    q, k = np.ones((1, 2, 1, 4)), np.zeros((1, 1, 3, 4))
    sinks = np.log([1.0, 9.0])
    output, weights, lse = attend(
        q, k, np.ones_like(k), sinks=sinks, scale=0.1, return_weights=True, return_lse=True
    )
    assert close(output[0, :, 0, 0], [0.75, 0.25])
    assert close(weights[0, :, 0], [[0.25] * 3, [1 / 12] * 3])
    assert close(np.exp(lse), [[[4], [12]]])
    assert (attend(q, k, np.ones_like(k), sinks=sinks.tolist(), scale=0.1) == output).all()


def test_alibi_lowers_scores_by_slope_times_distance():
    q, k = np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 4, 2))
    _, weights = attend(q, k, k, alibi_slopes=[0.25], causal=True, return_weights=True)
    unnormalised = np.exp([-0.75, -0.5, -0.25, 0])
    assert close(weights.ravel(), unnormalised / unnormalised.sum())


def test_alibi_slopes_of_any_number_of_heads_can_be_given_as_they_are():
    q = normal(1, 1, 6, 5, 2)
    by_list = attend(q, q, q, alibi_slopes=alibi_slopes(6))
    assert (by_list == attend(q, q, q, alibi_slopes=np.array(alibi_slopes(6)))).all()


def test_what_is_asked_for_comes_back_in_order():
    q = normal(1, 2, 3, 5, 7, dtype=np.float16)
    output, weights, lse = attend(q, q, q, causal=True, return_weights=True, return_lse=True)
    assert [x.shape for x in (output, weights, lse)] == [(2, 3, 5, 7), (2, 3, 5, 5), (2, 3, 5)]
    assert [x.dtype for x in (output, weights, lse)] == [np.float16, np.float16, np.float32]
    with use_backend("numpy"):  # the kernels, which have no weights, add up in another order
        assert (attend(q, q, q, causal=True) == output).all()
        pair = attend(q, q, q, causal=True, return_lse=True)
    assert all((x == y).all() for x, y in zip(pair, (output, lse), strict=True))
    pair = scaled_dot_product_attention(q, q, q, causal=True)
    assert all((x == y).all() for x, y in zip(pair, (output, weights), strict=True))


def test_weights_say_which_values_were_mixed():
    output, weights = scaled_dot_product_attention(X, X, Y, LOWER, scale=0.5)
    assert close(weights @ Y, output)
    assert close(weights.sum(-1), [1, 1, 1])
    assert (weights[~LOWER] == 0).all()
    assert close(weights[1], np.array([1, np.exp(0.5), 0]) / (1 + np.exp(0.5)))


def test_a_number_type_of_numpy_as_softcap_or_scale_does_not_widen_the_result():
    q = normal(1, 3, 5, dtype=np.float32)
    output, lse = attend(q, q, q, softcap=np.float64(2), scale=np.float64(0.5), return_lse=True)
    assert (output.dtype, lse.dtype) == (np.float32, np.float32)


def test_distance_is_all_that_attention_sees_of_rotary_positions():
    q, k, v = normal(1, 1, 3, 7, 8), normal(2, 1, 3, 7, 8), normal(3, 1, 3, 7, 8)
    here, there = (rotary_table(rotary_frequencies(8), range(start, start + 7)) for start in (0, 50))
    near, far = (attend(rotate(q, *at), rotate(k, *at), v, causal=True) for at in (here, there))
    np.testing.assert_allclose(near, far, atol=1e-5)


def test_the_tiled_path_has_no_weights_to_return():
    assert attend_by(tiled_path, X, X, Y).weights is None
