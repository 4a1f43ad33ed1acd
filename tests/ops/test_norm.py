import ml_dtypes
import numpy as np
import pytest

import reference
from attention_paths import normal
from qkv.ops.norm import layer_norm, rms_norm

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
ONES, ZEROS = np.ones(4), np.zeros(4)


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    assert rms_norm(np.array([3.0, 4.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0, 4.0]), 0.0).tolist() == [
        1.2,
        3.2,
        0,
        0,
    ]
    assert rms_norm(np.array([[1.0, 1.0, 1.0, 1.0]]), ONES, eps=3.0).tolist() == [[0.5] * 4]


def test_layer_norm_gives_mean_0_and_variance_1_before_weight_and_bias():
    x = np.array([1.0, 1.0, 3.0, 3.0])
    assert layer_norm(x, ONES, ZEROS, eps=0.0).tolist() == [-1, -1, 1, 1]
    assert layer_norm(x, 2 * ONES, 5 + ZEROS, eps=0.0).tolist() == [3, 3, 7, 7]
    assert layer_norm(x, ONES, ZEROS, eps=3.0).tolist() == [-0.5, -0.5, 0.5, 0.5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_give_what_the_loops_give_in_the_dtype_that_came(dtype):
    x, weight, bias = (normal(n, *shape, dtype=dtype) for n, shape in enumerate([(2, 3, 7), (7,), (7,)]))
    half_a_unit = max(float(ml_dtypes.finfo(dtype).eps) / 2, 1e-12) * (4 if dtype == np.float32 else 1)
    for got, expected in (
        (rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)),
        (layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5)),
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(float), expected, rtol=half_a_unit, atol=4e-7)


@pytest.mark.parametrize(
    "norm", [lambda x: rms_norm(x, ONES, 1e-6), lambda x: layer_norm(x, ONES, ZEROS, 1e-6)]
)
def test_a_row_of_zeros_stays_zeros(norm):
    assert norm(np.zeros((2, 4))).tolist() == [[0.0] * 4] * 2


def test_squares_beyond_float16_do_not_overflow():
    x = np.array([300.0, -300.0, 300.0, -300.0], np.float16)  # 90 000, float16 ends at 65 504
    assert rms_norm(x, ONES, 1e-6).tolist() == [1, -1, 1, -1]
    assert layer_norm(x, ONES, ZEROS, 1e-6).tolist() == [1, -1, 1, -1]


def test_a_float32_weight_keeps_the_dtype_of_x():
    x = normal(1, 3, 4, dtype=ml_dtypes.bfloat16)
    assert rms_norm(x, ONES.astype(np.float32), 1e-6).dtype == ml_dtypes.bfloat16
    assert layer_norm(x, ONES.astype(np.float32), ZEROS, 1e-6).dtype == ml_dtypes.bfloat16


def test_integers_are_refused():
    with pytest.raises(TypeError, match="x must be float64, float32, float16 or bfloat16, not int64"):
        rms_norm(np.arange(4), ONES, 1e-6)
