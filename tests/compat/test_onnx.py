from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference
from qkv.compat import onnx_attention
from qkv.errors import OptionError, ShapeError


def zero_problem(T, S, B=1):
    """Zero queries and keys weigh all visible values 1, 2, 3, ... alike: outputs are plain means."""
    v = np.broadcast_to(np.arange(1.0, S + 1.0).reshape(1, 1, S, 1), (B, 1, S, 1))
    return np.zeros((B, 1, T, 1)), np.zeros((B, 1, S, 1)), v


def with_past(q, k, v, past_length) -> dict[str, Any]:
    past, new = np.s_[:, :, :past_length], np.s_[:, :, past_length:]
    return {"Q": q, "K": k[new], "V": v[new], "past_key": k[past], "past_value": v[past]}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def assert_means(expected, *args, **options):
    Y, *_ = onnx_attention(*args, **options)
    np.testing.assert_allclose(Y[:, 0, :, 0], expected, rtol=1e-12)


def test_without_a_cache_the_first_query_stands_on_the_first_key():
    assert_means([[1, 1.5]], *zero_problem(2, 5), is_causal=1)


def test_with_a_past_the_first_query_stands_behind_it():
    # Four new keys for two queries: the last query does not stand on the last key.
    problem = with_past(*zero_problem(2, 7), past_length=3)
    assert_means([[2.5, 3]], **problem, is_causal=1)
    assert_means([[4, 4]], **problem, is_causal=0)


def test_with_lengths_the_last_query_stands_on_the_last_real_key_of_its_row():
    problem = zero_problem(2, 5, B=3)
    lengths = np.array([3, 5, 1])
    assert_means([[1.5, 2], [2.5, 3], [0, 1]], *problem, nonpad_kv_seqlen=lengths, is_causal=1)
    assert_means([[2, 2], [3, 3], [1, 1]], *problem, nonpad_kv_seqlen=lengths)


@pytest.mark.parametrize(
    ("left", "right", "is_causal", "means"),
    [
        (2, 1, 0, [1.5, 2, 2.5, 3.5]),
        (2, 0, 0, [1, 1.5, 2, 3]),
        (0, -1, 0, [3.5, 4, 4.5, 5]),
        (-1, 1, 0, [1.5, 2, 2.5, 3]),
        (2, 1, 1, [1, 1.5, 2, 3]),
        (-1, -1, 0, [3.5] * 4),
    ],
)
def test_window_counts_keys_on_each_side_of_the_own_one(left, right, is_causal, means):
    options: dict[str, Any] = {"left_window_size": left, "right_window_size": right, "is_causal": is_causal}
    assert_means([means], *zero_problem(4, 6), **options)


def test_window_moves_with_the_cache():
    window: dict[str, Any] = {"left_window_size": 1, "right_window_size": 0}
    assert_means([[3.5, 4.5]], **with_past(*zero_problem(2, 7), past_length=3), **window)
    lengths = np.array([3, 5])
    assert_means([[1.5, 2.5], [3.5, 4.5]], *zero_problem(2, 5, B=2), nonpad_kv_seqlen=lengths, **window)


# Scores 3 and 0 of one query, capped at 2: 2 tanh(1.5) = 1.810297.
@pytest.mark.parametrize(
    ("mode", "with_bool", "with_float"),
    [
        (0, [3, 0], [3, 0]),
        (1, [1.810297, 0], [1.810297, 0]),
        (2, [1.810297, -np.inf], [0.810297, 2]),
        (3, [1, 0], [0.233312, 0.766688]),
    ],
)
def test_fourth_output_is_the_step_that_the_mode_names(mode, with_bool, with_float):
    q, k = np.ones((1, 1, 1, 1)), np.array([3.0, 0.0]).reshape(1, 1, 2, 1)
    options: dict[str, Any] = {"scale": 1.0, "softcap": 2.0, "qk_matmul_output_mode": mode}
    for mask, expected in ((np.array([[True, False]]), with_bool), (np.array([[-1.0, 2.0]]), with_float)):
        *_, shown = onnx_attention(q, k, k, mask, **options)
        assert shown.shape == (1, 1, 1, 2)
        np.testing.assert_allclose(shown.ravel(), expected, atol=1e-6)


def test_row_that_may_see_nothing_is_zero_in_output_and_weights():
    mask = np.array([[False] * 5, [True] * 5])
    Y, _, _, weights = onnx_attention(*zero_problem(2, 5), mask, qk_matmul_output_mode=3)
    np.testing.assert_allclose(Y.ravel(), [0, 3], rtol=1e-12)
    np.testing.assert_allclose(weights[0, 0], [[0] * 5, [0.2] * 5])


def test_three_axes_hold_the_heads_side_by_side():
    q, k, v = normal(2, 6, 5, 3), normal(2, 2, 7, 3, seed=1), normal(2, 2, 7, 4, seed=2)
    past_key, past_value = normal(2, 2, 3, 3, seed=3), normal(2, 2, 3, 4, seed=4)
    expected = onnx_attention(q, k, v, None, past_key, past_value, is_causal=1, opset=24)
    Q, K, V = (x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in (q, k, v))
    Y, *rest = onnx_attention(
        Q, K, V, None, past_key, past_value, is_causal=1, q_num_heads=6, kv_num_heads=2, opset=24
    )
    np.testing.assert_array_equal(Y, expected[0].transpose(0, 2, 1, 3).reshape(2, 5, 24))
    for one, other in zip(rest, expected[1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_present_is_past_and_new_together():
    _, k, v = (normal(2, 3, 7, 5, seed=seed) for seed in range(3))
    problem = with_past(normal(2, 3, 2, 5), k, v, past_length=4)
    _, present_key, present_value, _ = onnx_attention(**problem)
    np.testing.assert_array_equal(present_key, k)
    np.testing.assert_array_equal(present_value, v)


def test_shorter_mask_hides_the_keys_it_does_not_reach():
    assert_means([[2, 2]], *zero_problem(2, 5), np.array([[True, True, True], [False, True, False]]))
    assert_means([[1.5, 2]], *zero_problem(2, 5), np.array([[0.0, 0.0], [-np.inf, 0.0]]))
    assert_means([[1, 1]], *zero_problem(2, 5), np.array([True]))
    with pytest.raises(ShapeError, match="mask"):
        onnx_attention(*zero_problem(2, 5), np.array([[True] * 3] * 2), opset=23)
    with pytest.raises(ShapeError, match="must reach nonpad_kv_seqlen's 4 keys"):
        onnx_attention(*zero_problem(2, 5), np.array([[True] * 3] * 2), nonpad_kv_seqlen=np.array([4]))


def test_mask_of_three_axes_begins_with_the_heads():
    q, k, v = np.zeros((2, 2, 1, 1)), np.zeros((2, 2, 3, 1)), normal(2, 2, 3, 1)
    mask = np.array([[[True, False, False]], [[False, True, False]]])
    Y, *_ = onnx_attention(q, k, v, mask)
    np.testing.assert_array_equal(Y[:, 0, 0], v[:, 0, 0])
    np.testing.assert_array_equal(Y[:, 1, 0], v[:, 1, 1])


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 7), (5, 7), (6, 1, 7), (2, 1, 5, 7)], ids=str)
@pytest.mark.parametrize("is_causal", [0, 1])
def test_mask_is_broadcast_before_the_causal_order_applies(shape, is_causal):
    q, k, v = normal(2, 6, 5, 3), normal(2, 2, 7, 3, seed=1), normal(2, 2, 7, 4, seed=2)
    bias = normal(*shape, seed=3)
    Y, *_ = onnx_attention(q, k, v, bias, is_causal=is_causal, scale=0.4, softcap=0.8, opset=23)
    options: dict[str, Any] = {
        "bias": bias,
        "causal": "top_left" if is_causal else False,
        "scale": 0.4,
        "softcap": 0.8,
    }
    expected, _, _ = reference.attend(q, k, v, **options)
    np.testing.assert_allclose(Y, expected, rtol=1e-12, atol=1e-13)


def test_keys_hidden_by_a_float_mask_are_not_read():
    q, k, v = normal(1, 1, 2, 3), normal(1, 1, 4, 3, seed=1), normal(1, 1, 4, 3, seed=2)
    mask = np.array([0.0, -np.inf, 0.0, 0.0])
    clean, *_ = onnx_attention(q, k, v, mask)
    k[:, :, 1], v[:, :, 1] = np.nan, np.inf
    np.testing.assert_array_equal(onnx_attention(q, k, v, mask)[0], clean)


@pytest.mark.parametrize("q_dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=str)
@pytest.mark.parametrize("v_dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=str)
def test_output_has_the_dtype_of_the_queries_and_each_cache_its_own(q_dtype, v_dtype):
    q, k, v = normal(1, 1, 2, 3), normal(1, 1, 4, 3, seed=1), normal(1, 1, 4, 3, seed=2)
    Y, present_key, present_value, shown = onnx_attention(
        q.astype(q_dtype), k.astype(q_dtype), v.astype(v_dtype)
    )
    assert (Y.dtype, present_key.dtype, shown.dtype) == (q_dtype,) * 3
    assert present_value.dtype == v_dtype
    exact, _, _ = reference.attend(q, k, v)
    coarsest = max(float(ml_dtypes.finfo(dtype).eps) for dtype in (q_dtype, v_dtype))
    np.testing.assert_allclose(Y.astype(np.float64), exact, atol=4 * coarsest)


def test_double_softmax_is_computed_in_double():
    q, k = (normal(1, 1, 3, 5, seed=seed).astype(np.float32) for seed in range(2))
    k = np.concatenate([k] * 100, axis=2)
    *_, scores = onnx_attention(q, k, k, qk_matmul_output_mode=2)
    exact = np.apply_along_axis(reference.softmax, -1, scores.astype(np.float64)).astype(np.float32)
    shown = {
        precision: onnx_attention(q, k, k, softmax_precision=precision, qk_matmul_output_mode=3)[3]
        for precision in (None, 1, 10, 11, 16)
    }
    np.testing.assert_array_equal(shown[11], exact)
    assert not np.array_equal(shown[1], exact)
    for narrower in (1, 10, 16):
        np.testing.assert_array_equal(shown[narrower], shown[None])


def test_product_beyond_float16_is_shown_infinite_and_still_attends():
    q = np.full((1, 1, 1, 128), 300, dtype=np.float16)
    k = np.stack([q[0, 0, 0], q[0, 0, 0] - 1])[None, None]
    v = np.array([[1, 2], [3, 4]], dtype=np.float16)[None, None]
    Y, _, _, shown = onnx_attention(q, k, v, scale=1.0)
    assert Y.ravel().tolist() == [1, 2]
    assert (shown == np.inf).all()


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (OptionError, "opset 23", {"opset": 22}),
        (OptionError, "opset 24", {"opset": 23, "nonpad_kv_seqlen": np.array([5])}),
        (OptionError, "opset 25", {"opset": 24, "left_window_size": 2}),
        (OptionError, "opset 25", {"opset": 24, "right_window_size": 0}),
        (OptionError, "three axes", {"opset": 25, "q_num_heads": 1}),
        (OptionError, "go together", {"past_key": np.zeros((1, 1, 2, 1))}),
        (
            OptionError,
            "cannot go with past_key",
            {
                "past_key": np.zeros((1, 1, 2, 1)),
                "past_value": np.zeros((1, 1, 2, 1)),
                "nonpad_kv_seqlen": np.array([5]),
            },
        ),
        (OptionError, "qk_matmul_output_mode", {"qk_matmul_output_mode": 4}),
        (OptionError, "softmax_precision", {"softmax_precision": 7}),
        (OptionError, "softcap", {"softcap": -1.0}),
        (OptionError, "negative", {"left_window_size": -2}),
        (ShapeError, "with 2 heads", {"opset": 24, "kv_num_heads": 2}),
        (TypeError, "attn_mask must be bool", {"attn_mask": np.ones((2, 5), dtype=np.int32)}),
        (ShapeError, "must broadcast", {"attn_mask": np.ones((2, 6), dtype=bool)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_operator_does_not_allow_is_refused(error, message, options):
    with pytest.raises(error, match=message):
        onnx_attention(*zero_problem(2, 5), **options)


def test_three_axes_need_the_number_of_heads():
    flat = np.zeros((1, 2, 6))
    for heads in ({}, {"q_num_heads": 4, "kv_num_heads": 2}):
        with pytest.raises(ShapeError, match="number of heads"):
            onnx_attention(flat, flat, flat, **heads)
