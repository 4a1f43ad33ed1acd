"""The way back through RMSNorm: by central differences, by hand, and compiled against the formula."""

import numpy as np
import pytest

from differences import central_differences
from qkv.errors import ShapeError
from qkv.ops.backend import use_backend
from qkv.ops.norm import rms_norm
from qkv.training.norm import rms_norm_backward


def normal(*shape, seed=0, dtype: type = np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def test_the_gradient_of_a_row_worked_by_hand():
    # r = 2; normed = (1, 1); g = (4, 0), of which mean(g * normed) = 2 goes along x.
    d_x, d_weight = rms_norm_backward(np.array([4.0, 0.0]), np.array([2.0, 2.0]), np.ones(2), eps=0.0)
    assert d_x.tolist() == [(4 - 2) / 2, (0 - 2) / 2]
    assert d_weight.tolist() == [4, 0]


@pytest.mark.parametrize("eps", [1e-6, 0.7])
def test_gradients_are_central_differences(eps):
    x, weight, d_y = normal(2, 3, 7), normal(7, seed=1), normal(2, 3, 7, seed=2)

    def loss():
        return float(np.sum(rms_norm(x, weight, eps) * d_y))

    d_x, d_weight = rms_norm_backward(d_y, x, weight, eps)
    np.testing.assert_allclose(d_x, central_differences(loss, x), atol=1e-8)
    np.testing.assert_allclose(d_weight, central_differences(loss, weight), atol=1e-8)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_what_comes_beside_the_norm_is_added(backend):
    d_y, x, d_skip = (normal(5, 13, seed=n, dtype=np.float32) for n in range(3))
    with use_backend(backend):
        alone, d_weight = rms_norm_backward(d_y, x, x[0], 1e-5)
        both, same = rms_norm_backward(d_y, x, x[0], 1e-5, d_skip)
    np.testing.assert_allclose(both, alone + d_skip, rtol=1e-6, atol=1e-6)
    assert (d_weight == same).all()


@pytest.mark.parametrize("shape", [(3,), (2, 5, 131), (1, 0, 7)])
def test_compiled_and_formula_agree_and_keep_their_shapes(shape):
    d_y, x, weight = normal(*shape), normal(*shape, seed=1), normal(shape[-1], seed=2)
    exact = rms_norm_backward(d_y, x, weight, 1e-5)
    with use_backend("compiled"):
        d_y, x, weight = (array.astype(np.float32) for array in (d_y, x, weight))
        got = rms_norm_backward(d_y, x, weight, 1e-5)
    for one, other in zip(got, exact, strict=True):
        assert (one.dtype, one.shape) == (np.float32, other.shape)
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_inputs_are_never_written(backend):
    arrays = [normal(5, 7, seed=n, dtype=np.float32) for n in range(3)]
    before = [array.copy() for array in arrays]
    with use_backend(backend):
        rms_norm_backward(arrays[0], arrays[1], arrays[1][0].copy(), 1e-5, arrays[2])
    assert all((array == same).all() for array, same in zip(arrays, before, strict=True))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"d_y \(2, 3\), x \(2, 4\), weight \(4,\)"):
        rms_norm_backward(np.ones((2, 3)), np.ones((2, 4)), np.ones(4), 1e-5)
    with pytest.raises(ShapeError, match=r"weight \(2,\)"):
        rms_norm_backward(np.ones((2, 4)), np.ones((2, 4)), np.ones(2), 1e-5)
    with pytest.raises(ShapeError, match=r"d_skip \(4,\)"):
        rms_norm_backward(np.ones((2, 4)), np.ones((2, 4)), np.ones(4), 1e-5, np.ones(4))
