"""Products as calls of a program: the bits of `matmul`, whatever stands around their arrays."""

import numpy as np
import pytest

from qkv.kernels.few_rows import MOST_ROWS, product_call
from qkv.kernels.host import set_num_threads
from qkv.kernels.matmul import matmul, matmul_plain
from qkv.kernels.panels import pack
from qkv.kernels.program import Program

SIZES = [(37, 23), (101, 67), (257, 131)]
"""E_out and E_in: less than a panel or two, and several shares."""


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def apart(rows, width):
    """Rows with NaN between them, which nobody may read or overwrite."""
    whole = np.full((rows, width + 3), np.nan, np.float32)
    return whole[:, :width], whole[:, width:]


@pytest.fixture(params=[1, 2])
def num_threads(request):
    set_num_threads(request.param)
    yield request.param
    set_num_threads(None)


def run(x, weight, y, *rest, **options):
    Program([product_call(x, weight, y, *rest, **options)]).run()


def test_a_product_worked_out_by_hand():
    weight, y = pack(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]], np.float32)), np.zeros((1, 3), np.float32)
    residual = np.array([[100.0, 200.0, 300.0]], np.float32)
    x, bias = np.array([[1.0, 2.0]], np.float32), np.array([10.0, 20.0, 30.0], np.float32)
    run(x, weight, y, bias, residual)
    assert y.tolist() == [[111.0, 223.0, 336.0]]


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_are_those_of_matmul(num_threads, form, size):
    (E_out, E_in) = size
    weight = pack(normal(E_out, E_in, seed=1), form)
    for rows in (1, 2, 3, 7, 8, 9, 13, MOST_ROWS):
        (x, _), (y, beside) = apart(rows, E_in), apart(rows, E_out)
        x[:] = normal(rows, E_in, seed=rows)
        run(x, weight, y)
        assert y.tobytes() == matmul(x, weight).tobytes() == matmul_plain(x, weight).tobytes(), rows
        assert np.isnan(beside).all()


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_bias_is_added_first_and_what_is_there_last(has_bias):
    weight, bias = pack(normal(101, 67)), normal(101, seed=2) if has_bias else None
    x, (y, _) = normal(5, 67, seed=3), apart(5, 101)
    y[:] = there = normal(5, 101, seed=4)
    run(x, weight, y, bias, residual=y)
    assert y.tobytes() == (there + matmul(x, weight, bias)).tobytes()


def test_a_row_of_nothing_but_minus_zero_keeps_its_signs():
    weight, y = pack(np.ones((3, 5), np.float32)), np.ones((1, 3), np.float32)
    x = np.full((1, 5), -0.0, np.float32)
    run(x, weight, y)
    assert y.tobytes() == matmul(x, weight).tobytes()
