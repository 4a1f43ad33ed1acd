"""The way back through a linear map: by hand, by central differences, and compiled against the formula."""

import numpy as np
import pytest

from differences import central_differences
from qkv.errors import ShapeError
from qkv.ops.backend import use_backend
from qkv.training.projection import project_backward, project_plain


def normal(*shape, seed=0, dtype: type = np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_two_rows_worked_by_hand(backend):
    x, weight = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8], [0, 1]], np.float32)
    d_y = np.array([[1, 0, 2], [0, 10, 0]], np.float32)
    with use_backend(backend):
        assert project_plain(x, weight).tolist() == [[17, 23, 2], [39, 53, 4]]
        d_x, d_weight = project_backward(d_y, x, weight)
    assert d_x.tolist() == [[5, 8], [70, 80]]
    assert d_weight.tolist() == [[1, 2], [30, 40], [2, 4]]


def test_gradients_are_central_differences():
    x, weight, d_y = normal(2, 3, 5), normal(7, 5, seed=1), normal(2, 3, 7, seed=2)

    def loss():
        return float(np.sum(project_plain(x, weight) * d_y))

    d_x, d_weight = project_backward(d_y, x, weight)
    np.testing.assert_allclose(d_x, central_differences(loss, x), atol=1e-8)
    np.testing.assert_allclose(d_weight, central_differences(loss, weight), atol=1e-8)


def test_compiled_and_formula_agree_and_keep_their_shapes():
    x, weight, d_y = normal(2, 31, 67), normal(41, 67, seed=1), normal(2, 31, 41, seed=2)
    exact = project_plain(x, weight), *project_backward(d_y, x, weight)
    with use_backend("compiled"):
        narrow = [array.astype(np.float32) for array in (d_y, x, weight)]
        got = project_plain(*narrow[1:]), *project_backward(*narrow)
    for one, other in zip(got, exact, strict=True):
        assert (one.dtype, one.shape) == (np.float32, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_shapes_that_do_not_fit_are_refused(backend):
    ones = (np.ones(shape, np.float32) for shape in [(2, 3), (2, 5), (5, 3)])
    with use_backend(backend), pytest.raises(ShapeError, match=r"got \(2, 3\), \(2, 5\) and \(5, 3\)"):
        project_backward(*ones)
    rows = (np.ones(shape, np.float32) for shape in [(2, 3), (4, 5), (3, 5)])
    with use_backend(backend), pytest.raises(ShapeError, match="must have the same rows"):
        project_backward(*rows)
