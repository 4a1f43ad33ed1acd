"""Gradients of weights: every number one chain over the rows, however the work is cut."""

import numpy as np
import pytest

from qkv.kernels.host import HOST_TILE, Tile, num_threads, set_num_threads
from qkv.kernels.matmul import matmul_plain, pack
from qkv.kernels.weight_gradients import BLOCK_DEPTH, BLOCK_PANELS, FEW_OPERATIONS, STRIPS, weight_gradient

TILES = (Tile(6, 2, 4), Tile(6, 2, 8), Tile(8, 2, 16))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bits(y):
    return y.view(np.uint32).tolist()


def plain(d_y, x):
    return matmul_plain(np.ascontiguousarray(d_y.T), pack(np.ascontiguousarray(x.T)))


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def test_two_rows_worked_by_hand():
    d_y, x = np.array([[1, 0, 2], [0, 10, 0]], np.float32), np.array([[1, 2], [3, 4]], np.float32)
    assert weight_gradient(d_y, x).tolist() == [[1, 2], [30, 40], [2, 4]]


def test_rows_are_summed_in_order_with_one_rounding_each():
    ones = np.ones((3, 1), np.float32)
    assert weight_gradient(np.array([[2.0**24], [1], [1]], np.float32), ones).tolist() == [[2.0**24]]
    assert weight_gradient(np.array([[1], [1], [2.0**24]], np.float32), ones).tolist() == [[2.0**24 + 2]]
    tiny = np.float32(2.0**-12)
    x, d_y = np.array([[-1], [1 + tiny]], np.float32), np.array([[1], [1 - tiny]], np.float32)
    assert weight_gradient(d_y, x).tolist() == [[-(2.0**-24)]]  # rounded before, (1 + t)(1 - t) is 1


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"width{tile.width}")
@pytest.mark.parametrize("rows", [1, 7, BLOCK_DEPTH, BLOCK_DEPTH + 37])
@pytest.mark.parametrize(("E_out", "E_in"), [(1, 1), (5, 131), (73, 47), (67, 41)])
def test_results_are_plain_chains_at_every_vector_width(tile, rows, E_out, E_in):
    d_y, x = normal(rows, E_out), normal(rows, E_in, seed=1)
    assert bits(weight_gradient(d_y, x, tile)) == bits(plain(d_y, x))


def test_more_columns_than_are_copied_at_once_are_all_there():
    E_in = BLOCK_PANELS * HOST_TILE.columns + 67
    d_y, x = normal(53, 3 * STRIPS + 1), normal(53, E_in, seed=1)
    assert bits(weight_gradient(d_y, x)) == bits(plain(d_y, x))


@pytest.mark.parametrize(("E_out", "E_in"), [(67, 131), (601, 31), (3, 1031)])
def test_bits_do_not_depend_on_the_number_of_threads(threads, E_out, E_in):
    d_y, x = normal(521, E_out), normal(521, E_in, seed=1)
    assert d_y.size * E_in > FEW_OPERATIONS
    threads(1)
    alone = bits(weight_gradient(d_y, x))
    threads(2)
    assert num_threads() == 2
    assert bits(weight_gradient(d_y, x)) == alone


def test_nan_stays_in_its_column():
    d_y, x = normal(11, 37), normal(11, 67, seed=1)
    clean = weight_gradient(d_y, x)
    d_y[3, 5], x[7, 61] = np.nan, np.nan
    got = weight_gradient(d_y, x)
    assert np.isnan(got[5]).all()
    assert np.isnan(got[:, 61]).all()
    rest = np.ix_(np.arange(37) != 5, np.arange(67) != 61)
    assert bits(got[rest].copy()) == bits(clean[rest].copy())


@pytest.mark.parametrize(("rows", "E_out", "E_in"), [(0, 3, 5), (7, 0, 5), (7, 3, 0)])
def test_empty_axes_are_legal(rows, E_out, E_in):
    got = weight_gradient(normal(rows, E_out), normal(rows, E_in))
    assert got.shape == (E_out, E_in)
    assert not got.any()


def test_strides_and_read_only_memory_change_nothing_and_nothing_is_written():
    d_y, x = normal(26, 2, 41), normal(26, 2, 67, seed=1)
    expected = bits(weight_gradient(d_y[::-2, 1].copy(), x[::-2, 1].copy()))
    before = bits(d_y), bits(x)
    assert bits(weight_gradient(d_y[::-2, 1], x[::-2, 1])) == expected
    assert bits(weight_gradient(np.asfortranarray(d_y[::-2, 1]), np.asfortranarray(x[::-2, 1]))) == expected
    d_y.flags.writeable = x.flags.writeable = False
    assert bits(weight_gradient(d_y[::-2, 1], x[::-2, 1])) == expected
    assert (bits(d_y), bits(x)) == before
