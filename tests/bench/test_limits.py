"""Shares of what the machine can do, by hand, and the work that finds it out."""

import numpy as np
import pytest

from qkv import use_backend
from qkv.bench.limits import (
    MATRIX,
    NUMPY_MATRIX,
    NUMPY_PRODUCT,
    OWN_PRODUCT,
    READ,
    READING,
    Limits,
    machine_limits,
)
from qkv.bench.measurement import Workload
from qkv.ops.backend import can_compile

WORK = Workload("attention", {"n": 7}, flops=30, num_bytes=10)
AMOUNTS = {NUMPY_PRODUCT: 60, OWN_PRODUCT: 60, READING: 40}


def limits(**options):
    return Limits(dict.fromkeys(AMOUNTS, lambda: None), AMOUNTS, **options)


def times(numpy_seconds, own_seconds):
    return {
        "qkv": (1.0, 2.0, 1.0),
        NUMPY_PRODUCT: (numpy_seconds,) * 3,
        OWN_PRODUCT: (own_seconds,) * 3,
        READING: (1.0, 1.0, 2.0),
    }


def test_shares_are_rates_over_the_limits_rates_round_by_round():
    matrix, read = limits().shares(times(1.0, 2.0), "qkv", WORK)
    # 30, 15 and 30 operations a second of 60; 10, 5 and 10 bytes a second of 40, 40 and 20.
    assert (matrix.limit, matrix.spread.median, matrix.spread.low, matrix.rate) == (MATRIX, 0.5, 0.375, 60.0)
    assert (read.limit, read.spread.median, read.spread.high, read.rate) == (READ, 0.25, 0.375, 40.0)


@pytest.mark.parametrize(("numpy_seconds", "own_seconds"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_matrix_rate_is_the_better_of_the_two_products(numpy_seconds, own_seconds):
    named = limits(names=(MATRIX, NUMPY_MATRIX))
    matrix, by_numpy = named.shares(times(numpy_seconds, own_seconds), "qkv", WORK)
    assert matrix.rate == 60.0
    assert by_numpy.limit == NUMPY_MATRIX
    assert by_numpy.rate == 60.0 / numpy_seconds
    assert by_numpy.spread.median == 0.5 * numpy_seconds


def test_what_is_not_counted_has_no_share():
    only_bytes = Workload("copy", {"n": 7}, num_bytes=10)
    assert [share.limit for share in limits().shares(times(1.0, 1.0), "qkv", only_bytes)] == [READ]


def test_without_limits_there_are_no_shares():
    assert Limits().shares({"qkv": (1.0, 1.0)}, "qkv", WORK) == ()


def test_the_limits_of_the_machine_do_the_work_they_are_credited_with():
    made = machine_limits(side=37, read_bytes=8 * 1009 + 5)
    assert made.amounts[READING] == 8 * 1009
    assert made.runs[READING]() == 1009  # an array of ones
    assert made.amounts[NUMPY_PRODUCT] == 2 * 37**3
    assert made.runs[NUMPY_PRODUCT]().shape == (37, 37)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.skipif(not can_compile(), reason="this machine has no fused multiply-add")
def test_both_products_of_the_machine_are_the_same():
    with use_backend("compiled"):
        made = machine_limits(side=37, read_bytes=80)
        np.testing.assert_allclose(made.runs[OWN_PRODUCT](), made.runs[NUMPY_PRODUCT](), atol=1e-5)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_with_the_kernels_turned_off_there_is_numpys_product_alone():
    with use_backend("numpy"):
        made = machine_limits(side=37, read_bytes=80)
    assert list(made.runs) == list(made.amounts) == [NUMPY_PRODUCT, READING]
