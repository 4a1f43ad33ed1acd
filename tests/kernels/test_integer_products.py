"""Products of whole numbers with rows of codes are exact, and scaled once: against plain integers."""

from typing import Any

import numpy as np
import pytest

from qkv.kernels.attention_words import GROUP
from qkv.kernels.codes import INTEGERS, PER_CHANNEL, PER_GROUP, PER_ROW, IntegerCodes
from qkv.kernels.compiler import compiled
from qkv.kernels.integer_operands import LARGEST
from qkv.kernels.integer_products import MOST_SUMS, PAIRS, integer_mix, integer_scores
from qkv.kernels.memory import at
from row_loops import LANES, bits, fma, normal

KEYS = {element: keys for element, (keys, _) in INTEGERS.items()}
VALUES = {"int8": INTEGERS["int8"][1], "int4": INTEGERS["int4"][1]}
COUNTS = 1, 2, 4, 8
NOWHERE = 16
"""No address that may be read."""


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def stored_rows(codes: IntegerCodes, num_rows: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random bytes, the largest and least codes among them, and the whole numbers they hold."""
    stored = np.random.default_rng(0).integers(0, 256, (num_rows, depth // codes.halves), np.uint8)
    stored[0, :4] = 0, 255, 127, 128
    if codes.halves == 2:
        return stored, np.concatenate([stored & 15, stored >> 4], axis=1).astype(np.int64)
    return stored, stored.view(np.int8 if codes.is_signed else np.uint8).astype(np.int64)


def table_of(stored: np.ndarray, behind: int) -> np.ndarray:
    """Where rows are, and what is behind the last."""
    first = address(stored)
    return np.array([*(first + row * stored.shape[1] for row in range(len(stored))), behind], np.int64)


def words(*shape: int) -> np.ndarray:
    """Whole numbers of 16 bits, the largest and the least among them."""
    drawn = np.random.default_rng(1).integers(-LARGEST, LARGEST + 1, shape)
    drawn.ravel()[:2] = LARGEST, -LARGEST
    return drawn


def scores_by(queries: int, codes: IntegerCodes) -> Any:
    product: Any = integer_scores(queries, LANES, codes)

    @compiled()
    def run(table, factors, q, scales, lows, scores, num_keys, depth):
        product(
            table, table, at(factors, 0), q, at(scales, 0), at(lows, 0), at(scores, 0), num_keys, depth
        )  # fmt: skip

    return run


@pytest.mark.parametrize("queries", COUNTS)
@pytest.mark.parametrize("element", KEYS)
def test_a_score_is_an_exact_sum_that_is_scaled_and_has_something_added(element: str, queries: int):
    codes = KEYS[element]
    run = scores_by(queries, codes)
    for depth in (32, 96):
        for num_keys in (1, 2, 7, 8, 19):
            stored, numbers = stored_rows(codes, num_keys, depth)
            q = words(queries, depth)
            scales, lows, factors = (normal(count, seed=seed) for seed, count in enumerate((8, 8, num_keys)))
            scores = np.full((num_keys + MOST_SUMS, LANES), np.nan, np.float32)
            table, told = table_of(stored, NOWHERE), q.astype(np.int16)
            run(address(table), factors, address(told), scales, lows, scores.ravel(), num_keys, depth)
            sums = (numbers @ q.T).astype(np.int32).astype(np.float32)
            for key, query in np.ndindex(num_keys, queries):
                if codes.steps == PER_ROW:
                    expected = sums[key, query] * scales[query] * factors[key]
                else:
                    assert codes.steps == PER_CHANNEL
                    expected = fma(sums[key, query], scales[query], lows[query])
                assert bits(scores[key, query]) == bits(expected)
            assert np.isnan(scores[:num_keys, queries:]).all()


def mix_by(queries: int, codes: IntegerCodes) -> Any:
    product: Any = integer_mix(queries, LANES, codes)

    @compiled()
    def run(table, weights, scales, lows, output, output_row, num_keys, depth):
        product(
            table, table, weights, at(scales, 0), at(lows, 0), at(output, 0), output_row, num_keys, depth
        )  # fmt: skip

    return run


@pytest.mark.parametrize("queries", COUNTS)
@pytest.mark.parametrize("element", VALUES)
def test_output_grows_by_exact_sums_that_are_scaled(element: str, queries: int):
    codes = VALUES[element]
    run = mix_by(queries, codes)
    for depth in (16, 32, 96, 128):  # less than a group, halves of one and of several
        groups = -(-depth // GROUP) if codes.steps == PER_GROUP else 1
        for num_keys in (1, 2, 5, 64):
            stored, numbers = stored_rows(codes, num_keys, depth)
            weights = np.zeros((groups, PAIRS, 2, LANES), np.int64)
            weights.reshape(groups, 2 * PAIRS, LANES)[:, :num_keys] = words(groups, num_keys, LANES)
            told = np.ascontiguousarray(weights.swapaxes(2, 3).astype(np.int16))
            scales, lows = normal(groups, LANES, seed=1), normal(groups, LANES, seed=2)
            output_row = depth + 3
            begun = normal(queries, output_row, seed=3)
            output, table = begun.copy(), table_of(stored, address(stored))
            run(
                address(table), address(told), scales.ravel(), lows.ravel(), output.ravel(),
                output_row, num_keys, depth,
            )  # fmt: skip
            expected = begun.copy()  # what is behind a row stays as it was
            for query, d in np.ndindex(queries, depth):
                group = d // GROUP if codes.steps == PER_GROUP else 0
                own = weights[group].reshape(-1, LANES)[:num_keys, query]
                total = np.float32(np.int32(own @ numbers[:, d]))
                before = begun[query, d]
                before = before + lows[group, query] if codes.steps == PER_GROUP else before
                expected[query, d] = fma(total, scales[group, query], before)
            assert bits(output) == bits(expected)


def test_a_score_of_half_bytes_worked_by_hand():
    """Byte 0x21 holds channel 0 = 1 and channel 16 = 2: (1 * 10 + 2 * 100) * 0.5 + 3 = 108."""
    stored, q = np.zeros((1, 16), np.uint8), np.zeros((1, 32), np.int16)
    stored[0, 0] = 0x21
    q[0, [0, 16]] = 10, 100
    scores, table = np.zeros((1 + MOST_SUMS, LANES), np.float32), table_of(stored, NOWHERE)
    run, scale, low = scores_by(1, KEYS["int4"]), np.full(1, 0.5, np.float32), np.full(1, 3, np.float32)
    run(address(table), low, address(q), scale, low, scores.ravel(), 1, 32)
    assert scores[0, 0] == 108
