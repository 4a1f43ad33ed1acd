"""The way back through a rotation: by hand and by central differences."""

import numpy as np
import pytest

from differences import central_differences
from qkv.ops.backend import use_backend
from qkv.ops.rotary import rotary_frequencies, rotary_table, rotate
from qkv.training.rotary import rotate_backward


def normal(*shape, seed=0, dtype: type = np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def test_a_quarter_turn_is_turned_back():
    assert rotate_backward(np.array([[1.0, 2.0]]), np.array([[0.0]]), np.array([[1.0]])).tolist() == [[2, -1]]


@pytest.mark.parametrize("pairs", [3, 2])  # all of the head, or its first numbers
def test_gradients_are_central_differences(pairs):
    x, d_y, cosines, sines = (
        normal(2, 5, 6),
        normal(2, 5, 6, seed=1),
        normal(5, pairs),
        normal(5, pairs, seed=2),
    )

    def loss():
        return float(np.sum(rotate(x, cosines, sines) * d_y))

    np.testing.assert_allclose(rotate_backward(d_y, cosines, sines), central_differences(loss, x), atol=1e-8)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_there_and_back_is_where_it_began(backend):
    x, turns = normal(3, 2, 11, 8, dtype=np.float32), rotary_table(rotary_frequencies(8), range(11))
    with use_backend(backend):
        np.testing.assert_allclose(rotate_backward(rotate(x, *turns), *turns), x, atol=1e-6)
