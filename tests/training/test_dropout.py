"""Which numbers dropout leaves out: how many, how independently, and the same ones everywhere."""

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.kernels.host import set_num_threads
from qkv.ops.backend import use_backend
from qkv.training.dropout import Dropout, _mixed


def drawn(rate, shape, seed=0):
    return Dropout(rate, np.random.default_rng(seed)).draw(shape)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_numbers_are_left_out_as_often_as_asked_and_the_others_scaled_up(rate):
    factors = drawn(rate, (101, 1009))
    assert set(np.unique(factors)) == {np.float32(0), np.float32(1 / (1 - rate))}
    # four standard deviations of so many draws
    assert abs((factors == 0).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / factors.size)


def test_a_rate_of_0_leaves_nothing_out():
    assert (drawn(0.0, (3, 5)) == 1).all()


def test_a_rate_next_to_1_is_no_error():
    assert drawn(1 - 2.0**-40, (3, 5)).shape == (3, 5)


def test_the_generator_decides():
    assert (drawn(0.5, (997,), seed=1) == drawn(0.5, (997,), seed=1)).all()
    assert 0.4 < (drawn(0.5, (997,), seed=1) == drawn(0.5, (997,), seed=2)).mean() < 0.6


def test_neighbours_and_later_draws_are_independent():
    dropout = Dropout(0.5, np.random.default_rng(3))
    first, second = (dropout.draw((100_003,)).astype(np.float64) - 1 for _ in range(2))  # 1 or -1
    bound = 4 / np.sqrt(100_003)
    for distance in (1, 2, 3, 16, 64, 192, 4096):
        assert abs(np.mean(first[:-distance] * first[distance:])) < bound
    assert abs(np.mean(first * second)) < bound


@pytest.mark.parametrize("shape", [(3, 5, 7), (0, 3), (131, 1511)])
def test_backends_and_threads_leave_out_the_same_numbers(shape):
    with use_backend("numpy"):
        expected = drawn(0.3, shape)
    assert (expected.shape, expected.dtype) == (shape, np.float32)
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            with use_backend("compiled"):
                assert (drawn(0.3, shape) == expected).all()
    finally:
        set_num_threads(None)


def test_a_hash_worked_by_hand():
    assert _mixed(np.array([0, 1], np.uint32)).tolist() == [0, 0x514E28B7]


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rates_without_a_meaning_are_refused(rate):
    with pytest.raises(OptionError, match="must be from 0 to below 1, not"):
        Dropout(rate, np.random.default_rng(0))
