"""The way back through a look-up: by hand, by central differences, and compiled to the bit."""

import numpy as np
import pytest

from differences import central_differences
from qkv.errors import ShapeError
from qkv.ops.backend import use_backend
from qkv.ops.embedding import embed
from qkv.training.embedding import embed_backward


def test_each_id_s_row_gets_what_came_to_its_places():
    d_x = np.array([[[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]])
    assert embed_backward(d_x, np.array([[2, 0, 2]]), V=4).tolist() == [[2, 20], [0, 0], [5, 50], [0, 0]]


def test_gradients_are_central_differences():
    generator = np.random.default_rng(0)
    ids, table, d_x = (
        generator.integers(0, 5, (2, 7)),
        generator.normal(size=(5, 3)),
        generator.normal(size=(2, 7, 3)),
    )

    def loss():
        return float(np.sum(embed(ids, table) * d_x))

    np.testing.assert_allclose(embed_backward(d_x, ids, 5), central_differences(loss, table), atol=1e-8)


@pytest.mark.parametrize("E", [1, 31, 67])
def test_compiled_and_formula_give_the_same_bits(E):
    generator = np.random.default_rng(0)
    d_x, ids = generator.normal(size=(3, 101, E)).astype(np.float32), generator.integers(0, 11, (3, 101))
    results = []
    for backend in ("numpy", "compiled"):
        with use_backend(backend):
            results.append(embed_backward(d_x, ids.astype(np.int32), 13))
    assert results[0].shape == (13, E)
    assert results[0].tobytes() == results[1].tobytes()


def test_no_ids_leave_no_gradient():
    assert not embed_backward(np.ones((2, 0, 3), np.float32), np.ones((2, 0), int), 5).any()


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_ids_outside_the_table_and_missing_rows_are_refused(backend):
    with use_backend(backend):
        with pytest.raises(ShapeError, match="ids must be from 0 to 4, but range from -1 to 3"):
            embed_backward(np.ones((2, 3), np.float32), np.array([-1, 3]), 5)
        with pytest.raises(ShapeError, match="but range from 3 to 5"):
            embed_backward(np.ones((2, 3), np.float32), np.array([5, 3]), 5)
        with pytest.raises(ShapeError, match=r"for ids \(2,\), got \(3, 3\)"):
            embed_backward(np.ones((3, 3), np.float32), np.array([1, 3]), 5)
