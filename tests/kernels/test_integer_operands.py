"""Queries and weights as whole numbers: against plain loops, to the bit, and as near as is said."""

from typing import Any

import numpy as np
import pytest

from qkv.kernels.compiler import compiled
from qkv.kernels.integer_operands import GROUPS, LARGEST, group_weights, row_weights, whole_rows
from qkv.kernels.integer_products import PAIRS
from qkv.kernels.memory import at
from row_loops import LANES, bits, fma, normal

HIDDEN = np.float32(-np.inf)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def whole(numbers: np.ndarray, top: np.float32, largest: int = LARGEST) -> np.ndarray:
    """The nearest whole numbers, of which ``largest`` stands for ``top``."""
    factor = np.float32(largest) / top if top > 2.0**-100 else np.float32(0)
    return np.rint(numbers.astype(np.float64) * np.float64(factor)).astype(np.int64)


def rows_by(rows: int) -> Any:
    write: Any = whole_rows(rows)

    @compiled()
    def run(x, steps, lows, words, scales, totals, largest, depth):
        write(at(x, 0), steps, lows, words, at(scales, 0), at(totals, 0), largest, depth)

    return run


def written(x: np.ndarray, steps: np.ndarray, lows: np.ndarray, largest: int = LARGEST) -> tuple:
    rows, depth = x.shape
    words = np.full((rows + 1, depth), 77, np.int16)
    scales, totals = np.full((2, rows), np.nan, np.float32)
    told = steps.astype(np.float16), lows.astype(np.float16)
    rows_by(rows)(
        x.ravel(), *map(address, told), address(words), scales, totals, np.float32(largest), depth
    )  # fmt: skip
    assert (words[-1] == 77).all()  # behind the last row nothing is written
    return words[:-1].astype(np.int64), scales, totals


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("largest", [LARGEST, 3000])
def test_rows_times_steps_become_the_nearest_whole_numbers(rows: int, largest: int):
    for depth in (16, 80):
        x, steps, lows = normal(rows, depth), *np.abs(normal(2, depth, seed=1)).astype(np.float16)
        words, scales, totals = written(x, steps, lows, largest)
        products = x * steps.astype(np.float32)
        for row in range(rows):
            top = np.abs(products[row]).max()
            assert words[row].tolist() == whole(products[row], top, largest).tolist()
            assert np.abs(words[row]).max() == largest
            assert bits(scales[row]) == bits(top / np.float32(largest))
            back = words[row] * scales[row].astype(np.float64)
            assert np.abs(back - products[row]).max() <= 0.5001 * scales[row]
            expected = x[row].astype(np.float64) @ lows.astype(np.float64)
            assert totals[row] == pytest.approx(expected, abs=1e-5)


def test_rows_of_zeros_and_of_what_is_next_to_nothing_become_zeros():
    x, ones = np.zeros((2, 16), np.float32), np.ones(16)
    x[1] = 2.0**-126
    words, scales, totals = written(x, ones, ones)
    assert not words.any() and scales[0] == 0 and totals[0] == 0 and np.isfinite(scales).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_with_what_is_no_finite_number_is_none_and_leaves_the_others(wrong: float):
    x, ones = normal(4, 32), np.ones(32)
    expected = written(x, ones, np.zeros(32))
    x[2, 9] = wrong
    _, scales, totals = written(x, ones, np.zeros(32))
    assert np.isnan(scales[2]) and np.isnan(totals[2])
    others = [0, 1, 3]
    assert bits(scales[others]) == bits(expected[1][others])


def paired(words: np.ndarray) -> np.ndarray:
    """Pairs of words as they are read: (keys, lanes)."""
    return words.view(np.int16).reshape(*words.shape, 2).swapaxes(-1, -2).reshape(-1, LANES).astype(np.int64)


@compiled()
def _row_weights(weights, marks, factors, pairs, scales, num_keys):
    row_weights(at(weights, 0), at(marks, 0), at(factors, 0), pairs, at(scales, 0), num_keys)


def weighed_rows(weights: np.ndarray, marks: np.ndarray, factors: np.ndarray) -> tuple:
    num_keys = len(weights)
    pairs, scales = np.full((PAIRS, LANES), 77, np.int32), np.full(LANES, np.nan, np.float32)
    _row_weights(weights.ravel().copy(), marks.ravel(), factors, address(pairs), scales, num_keys)
    used = -(-num_keys // 2)
    assert (pairs[used:] == 77).all()
    return paired(pairs[:used]), scales


@pytest.mark.parametrize("num_keys", [1, 2, 63, 64])
def test_weights_times_a_factor_of_each_key_are_whole_numbers_of_their_lane(num_keys: int):
    weights, factors = np.abs(normal(num_keys, LANES)), np.abs(normal(num_keys, seed=1))
    weights[:, 3] = 0
    words, scales = weighed_rows(weights, weights, factors)
    products = weights * factors[:, None]
    for lane in range(LANES):
        top = products[:, lane].max()
        assert words[:num_keys, lane].tolist() == whole(products[:, lane], top).tolist()
        assert bits(scales[lane]) == bits(top / np.float32(LARGEST))
    assert not words[num_keys:].any()  # a key without a partner


def test_a_hidden_key_is_0_whatever_its_factor_is_and_a_nan_that_is_seen_is_told_by_the_scale():
    weights, factors = np.abs(normal(4, LANES)), np.array([1, np.nan, 2, 1], np.float32)
    marks = np.zeros_like(weights)
    marks[1, :7] = HIDDEN
    weights[1, :7] = 0
    words, scales = weighed_rows(weights, marks, factors)
    assert not words[1, :7].any() and np.isnan(scales[7]) and np.isfinite(scales[:7]).all()
    seen = [0, 2, 3]
    expected = weighed_rows(weights[seen], marks[seen], factors[seen])
    assert words[seen][:, :7].tolist() == expected[0][:3, :7].tolist()
    assert bits(scales[:7]) == bits(expected[1][:7])


def groups_by(beside: int) -> Any:
    weigh: Any = group_weights(beside)

    @compiled()
    def run(weights, marks, steps, lows, products, pairs, scales, totals, num_keys, groups):
        weigh(
            at(weights, 0), at(marks, 0), at(steps, 0), at(lows, 0), at(products, 0), pairs,
            at(scales, 0), at(totals, 0), num_keys, groups,
        )  # fmt: skip

    return run


def weighed_groups(weights: Any, marks: Any, steps: Any, lows: Any, beside: int) -> tuple:
    num_keys, groups = steps.shape
    pairs = np.full((groups + 1, PAIRS, LANES), 77, np.int32)
    scales, totals = np.full((2, groups + 1, LANES), 77, np.float32)
    room = np.zeros(num_keys * GROUPS * LANES, np.float32)
    groups_by(beside)(
        weights.ravel(), marks.ravel(), steps.ravel(), lows.ravel(), room, address(pairs),
        scales.ravel(), totals.ravel(), num_keys, groups,
    )  # fmt: skip
    assert (pairs[-1] == 77).all() and (scales[-1] == 77).all() and (totals[-1] == 77).all()
    words = np.stack([paired(own[: -(-num_keys // 2)]) for own in pairs[:-1]])
    return words, scales[:-1], totals[:-1]


@pytest.mark.parametrize("beside", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 4, 7])
def test_weights_times_steps_are_whole_numbers_of_their_lane_and_group(groups: int, beside: int):
    lanes = LANES // beside
    for num_keys in (1, 5, 64):
        weights = np.abs(normal(num_keys, LANES))
        steps, lows = np.abs(normal(num_keys, groups, seed=1)), normal(num_keys, groups, seed=2)
        words, scales, totals = weighed_groups(weights, weights, steps, lows, beside)
        for group, lane in np.ndindex(groups, lanes):
            products = weights[:, lane] * steps[:, group]
            top = products.max()
            assert words[group, :num_keys, lane].tolist() == whole(products, top).tolist()
            assert bits(scales[group, lane]) == bits(top / np.float32(LARGEST))
            total = np.float32(0)
            for weight, low in zip(weights[:, lane], lows[:, group], strict=True):
                total = fma(weight, low, total)
            assert bits(totals[group, lane]) == bits(total)
        assert not words[:, num_keys:, :lanes].any()


@pytest.mark.parametrize("beside", [1, 2])
def test_what_a_lane_does_not_see_reaches_none_of_its_groups(beside: int):
    weights, lanes = np.abs(normal(5, LANES)), LANES // beside
    steps, lows = np.abs(normal(5, 4, seed=1)), normal(5, 4, seed=2)
    marks = np.zeros_like(weights)
    marks[2, 1:], weights[2, 1:] = HIDDEN, 0
    steps[2, 1] = lows[2, 1] = np.nan
    words, scales, totals = weighed_groups(weights, marks, steps, lows, beside)
    assert not words[:, 2, 1:lanes].any()
    assert np.isnan(totals[1, 0]) and np.isfinite(np.delete(totals[:, 0], 1)).all()
    seen = [0, 1, 3, 4]
    expected = weighed_groups(weights[seen], marks[seen], steps[seen], lows[seen], beside)
    for got, other in ((words[:, seen], expected[0][:, :4]), (scales, expected[1]), (totals, expected[2])):
        assert got[..., 1:lanes].tolist() == other[..., 1:lanes].tolist()
