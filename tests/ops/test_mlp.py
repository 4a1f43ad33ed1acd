import math

import ml_dtypes
import numpy as np
import pytest

from attention_paths import normal
from qkv.ops.mlp import gated_mlp, gelu, gelu_tanh, mlp, silu
from qkv.ops.normal import normal_cdf

GRID = np.concatenate([np.linspace(-12, 12, 2401), np.array([0.46875, 4.0]) * math.sqrt(2), [-37.0, 37.0]])


def test_gelu_weighs_by_the_normal_distribution():
    exact = [x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in GRID]
    np.testing.assert_allclose(gelu(GRID), exact, rtol=1e-12, atol=0)


def test_the_normal_distribution_is_symmetric_and_ends_at_0_and_1():
    np.testing.assert_allclose(normal_cdf(GRID) + normal_cdf(-GRID), np.ones_like(GRID), rtol=1e-15)
    np.testing.assert_allclose(
        normal_cdf(GRID), [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in GRID], atol=1e-15
    )
    assert normal_cdf(np.array([-np.inf, -1e200, 0.0, 1e200, np.inf])).tolist() == [0, 0, 0.5, 1, 1]


def test_gelu_tanh_is_its_formula():
    exact = [x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) for x in GRID]
    np.testing.assert_allclose(gelu_tanh(GRID), exact, rtol=1e-12, atol=1e-15)


def test_silu_weighs_by_the_logistic_function():
    np.testing.assert_allclose(silu(GRID), [x / (1 + math.exp(-x)) for x in GRID], rtol=1e-14)


@pytest.mark.parametrize("activation", [silu, gelu, gelu_tanh])
def test_far_from_0_an_activation_is_the_identity_or_0_without_a_warning(activation):
    for dtype, far in (
        (np.float64, 1e4),
        (np.float32, 1e4),
        (np.float16, 6e4),
        (ml_dtypes.bfloat16, 2.0**40),
    ):
        x = np.array([far, -far, 0.0], dtype)
        assert activation(x).dtype == dtype
        assert activation(x).tolist() == [x[0], 0, 0]


def test_silu_and_gelu_of_the_largest_numbers_give_them_back():
    for dtype in (np.float64, np.float32):
        x = np.array([np.inf, np.finfo(dtype).max], dtype)
        assert (silu(x) == x).all()
        assert (gelu(x) == x).all()
        assert not silu(-x[1:]).any()
        assert not gelu(-x[1:]).any()


@pytest.mark.parametrize("activation", [silu, gelu, gelu_tanh])
def test_low_precision_is_exact_to_half_a_unit(activation):
    x = np.linspace(-5, 5, 101)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        rounded = x.astype(dtype)
        exact = activation(rounded.astype(float))
        half_a_unit = float(ml_dtypes.finfo(dtype).eps) / 2
        np.testing.assert_allclose(
            activation(rounded).astype(float), exact, rtol=half_a_unit * 1.001, atol=1e-6
        )


def test_an_mlp_is_two_projections_with_a_bend_between():
    w_in, w_out = (
        np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 2.0]]),
        np.array([[1.0, 10.0, 100.0], [1.0, 0.0, 0.0]]),
    )
    b_in, b_out = np.array([0.0, 0.0, -1.0]), np.array([0.5, 0.25])
    x = np.array([[2.0, 3.0]])  # widens to 5, -1, 6 and with the bias to 5, -1, 5
    assert mlp(x, w_in, w_out, b_in, b_out, activation=np.abs).tolist() == [[515.5, 5.25]]
    assert mlp(x, w_in, w_out, activation=np.abs).tolist() == [[615, 5]]


def test_a_gate_multiplies_what_it_lets_pass():
    # Two rows for the gate, and below them two for what it lets pass.
    gate_up = np.array([[1.0, 0.0], [0.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
    down, x = np.array([[1.0, 10.0]]), np.array([[2.0, 3.0]])
    assert gated_mlp(x, gate_up, down, activation=np.abs).tolist() == [[2 * 5 + 10 * 3 * -1]]
    biases = np.array([1.0, 0.0, 0.0, 2.0]), np.array([7.0])
    assert gated_mlp(x, gate_up, down, *biases, activation=np.abs).tolist() == [[3 * 5 + 10 * 3 * 1 + 7]]


def test_gpt2_bends_by_gelu_tanh_and_llama_gates_by_silu_unless_told_otherwise():
    x, (w_in, w_up), w_out = normal(1, 2, 3, 5), normal(2, 2, 7, 5), normal(3, 5, 7)
    np.testing.assert_allclose(mlp(x, w_in, w_out), gelu_tanh(x @ w_in.T) @ w_out.T)
    np.testing.assert_allclose(
        gated_mlp(x, np.concatenate([w_in, w_up]), w_out), (silu(x @ w_in.T) * (x @ w_up.T)) @ w_out.T
    )
