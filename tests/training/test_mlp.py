"""The way back through a gate: by hand, by central differences, and compiled against the formula."""

import math

import numpy as np
import pytest

from differences import central_differences
from qkv.errors import ShapeError
from qkv.ops.backend import use_backend
from qkv.ops.mlp import gate
from qkv.training.mlp import gate_backward


def normal(*shape, seed=0, dtype: type = np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_a_gate_worked_by_hand(backend):
    gate_up = np.array([math.log(3), 0, 8, 8], np.float32)  # sigmoid(log 3) = 3/4, sigmoid(0) = 1/2
    with use_backend(backend):
        got = gate_backward(np.array([2, 2], np.float32), gate_up)
    slope = 3 / 4 * (1 + math.log(3) / 4)
    np.testing.assert_allclose(got, [2 * 8 * slope, 2 * 8 / 2, 2 * math.log(3) * 3 / 4, 0], rtol=1e-6)


def test_gradients_are_central_differences():
    gate_up, d_y = 3 * normal(2, 3, 10), normal(2, 3, 5, seed=1)

    def loss():
        return float(np.sum(gate(gate_up[..., :5], gate_up[..., 5:]) * d_y))

    np.testing.assert_allclose(gate_backward(d_y, gate_up), central_differences(loss, gate_up), atol=1e-8)


@pytest.mark.parametrize("shape", [(1,), (2, 5, 37), (3, 0, 7)])
def test_compiled_and_formula_agree(shape):
    d_y, gate_up = normal(*shape), 5 * normal(*shape[:-1], 2 * shape[-1], seed=1)
    with use_backend("compiled"):
        got = gate_backward(d_y.astype(np.float32), gate_up.astype(np.float32))
    assert (got.dtype, got.shape) == (np.float32, gate_up.shape)
    np.testing.assert_allclose(got, gate_backward(d_y, gate_up), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_far_from_0_a_gate_is_open_or_shut(backend):
    far = np.array([1000, -1000, 5, 7], np.float32)
    with use_backend(backend):
        d_gate_up = gate_backward(np.array([2, 2], np.float32), far)
    assert np.abs(d_gate_up).tolist() == [2 * 5, 0, 2 * 1000, 0]


def test_another_width_is_refused():
    with pytest.raises(ShapeError, match=r"gate_up must be \(2, 6\) for d_y \(2, 3\), got \(2, 7\)"):
        gate_backward(np.ones((2, 3)), np.ones((2, 7)))
