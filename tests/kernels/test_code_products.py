"""Products on rows of codes, against plain loops over the numbers these stand for: every sum in its order."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paged_arrays import same
from qkv.kernels.attention_words import BLOCK_KEYS, GROUP
from qkv.kernels.code_products import LEVELS, MOST_KEYS, code_mix, code_scores
from qkv.kernels.codes import CODES, PER_CHANNEL, PER_GROUP, PER_ROW, Codes
from qkv.kernels.compiler import compiled
from qkv.kernels.host import HOST_TILE, VECTOR_WIDTH
from qkv.kernels.memory import at
from qkv.kernels.micro import CHAINS
from qkv.kernels.widening import half_numbers, widen_beside, widen_pairs
from row_loops import LANES, bits, fma, made, normal, score

KINDS: dict[str, tuple[Codes, Any]] = {
    "fp16": (CODES["fp16"][0], np.float16),
    "bf16": (CODES["bf16"][0], ml_dtypes.bfloat16),
    "fp8-e4m3": (CODES["fp8-e4m3"][0], ml_dtypes.float8_e4m3fn),
    "fp8-e5m2": (CODES["fp8-e5m2"][0], ml_dtypes.float8_e5m2),
    "int8": (CODES["int8"][0], np.int8),
    "keys of int8-kivi": (CODES["int8-kivi"][0], np.uint8),
    "keys of int4": (CODES["int4"][0], np.uint8),
    "values of int4": (CODES["int4"][1], np.uint8),
}
"""How codes are read, and their type in NumPy; those of two in a byte are unpacked first."""

VALUES = [kind for kind, (codes, _) in KINDS.items() if codes.steps != PER_CHANNEL]
KEYS = [kind for kind, (codes, _) in KINDS.items() if codes.steps != PER_GROUP]
NOWHERE = 16
"""No address that may be read."""


def bytes_of_rows(codes: Codes, dtype: Any, num_rows: int, depth: int) -> np.ndarray:
    """Rows of any codes; of floats those of random numbers, and a NaN in the last of more than two rows."""
    if np.issubdtype(dtype, np.integer):
        size = num_rows, depth // codes.halves
        return np.random.default_rng(0).integers(0, 256, size, np.uint8)
    numbers = normal(num_rows, depth, seed=7)
    numbers[2:, 3][-1:] = np.nan
    return numbers.astype(dtype).view(np.uint8)


def steps_of(codes: Codes, num_rows: int, depth: int) -> np.ndarray:
    """Steps as they are told: see `Codes.steps`. Each is a float16 number, as those in pages are."""
    groups = -(-depth // GROUP)
    sizes = {PER_ROW: num_rows, PER_CHANNEL: 2 * depth, PER_GROUP: 2 * BLOCK_KEYS * groups}
    return normal(sizes.get(codes.steps, 1), seed=5).astype(np.float16).astype(np.float32)


def numbers_of(codes: Codes, dtype: Any, stored: np.ndarray, steps: np.ndarray, depth: int) -> np.ndarray:
    """The numbers that rows of bytes stand for."""
    values = stored.view(dtype) if codes.halves == 1 else np.concatenate([stored & 15, stored >> 4], axis=1)
    values = values.astype(np.float32)
    if codes.steps == PER_ROW:
        return values * steps[: len(stored), None]
    if codes.steps == PER_CHANNEL:
        return values * steps[:depth] + steps[depth:]
    if codes.steps == PER_GROUP:
        both = steps.reshape(BLOCK_KEYS, -1, 2)[: len(stored)]
        factor, low = (np.repeat(both[..., which], GROUP, axis=1)[:, :depth] for which in range(2))
        return values * factor + low
    return values


def table_of(stored: np.ndarray) -> np.ndarray:
    """Where rows are, and behind the last that nothing is."""
    first = stored.__array_interface__["data"][0]
    return np.array([*(first + row * stored.shape[1] for row in range(len(stored))), NOWHERE], np.int64)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def scores_by(queries: int, sums: int, beside: int, codes: Codes) -> Any:
    product: Any = code_scores(queries, sums, beside, LANES, codes)

    @compiled()
    def run(table, steps, q, scores, num_keys, depth):
        product(table, table, at(steps, 0), at(q, 0), at(scores, 0), num_keys, depth)

    return run


def told(rows: np.ndarray, beside: int) -> np.ndarray:
    """Rows of what meets all the keys of a vector, as vectors: of each row in turn `CHAINS` numbers."""
    vectors = np.repeat(rows.reshape(len(rows), -1, 1, CHAINS), beside, axis=2)
    return np.ascontiguousarray(vectors.swapaxes(0, 1)).ravel()


def steps_told(codes: Codes, steps: np.ndarray, beside: int) -> np.ndarray:
    """Steps as `code_scores` takes them."""
    if codes.steps != PER_CHANNEL:
        return steps
    factor, low = steps.reshape(2, -1)
    units = np.repeat(np.array(codes.units[: codes.halves], np.float32), len(factor) // codes.halves)
    return told(np.stack([factor / units, low]), beside)


@pytest.mark.parametrize(
    ("kind", "queries", "sums", "beside"),
    [
        *((kind, 4, 16, beside) for kind in KEYS for beside in (1, 2)),
        *(("int8", *sizes) for sizes in ((1, 8, 1), (2, 8, 1), (2, 16, 1), (8, 8, 1))),
        *(("keys of int4", *sizes) for sizes in ((1, 16, 2), (2, 16, 2), (4, 8, 2), (8, 16, 2))),
    ],
)
def test_scores_are_chains_along_a_row_of_what_its_codes_stand_for(kind, queries, sums, beside):
    codes, dtype = KINDS[kind]
    run = scores_by(queries, sums, beside, codes)
    for depth in (16, 48):
        for num_keys in (1, 3, 8, 19):
            stored = bytes_of_rows(codes, dtype, num_keys, depth)
            steps, q = steps_of(codes, num_keys, depth), normal(queries, depth, seed=1)
            scores = np.full((num_keys + MOST_KEYS, LANES), np.nan, np.float32)
            table = table_of(stored)
            own_steps = steps_told(codes, steps, beside)
            padded = np.full((LANES, depth), np.nan, np.float32)
            padded[:queries] = q
            run(address(table), own_steps, told(padded, beside), scores.ravel(), num_keys, depth)
            k = numbers_of(codes, dtype, stored, steps, depth)
            expected = np.array([[score(key, query) for query in q] for key in k])
            assert same(scores[:num_keys, :queries], expected)


def mix_by(queries: int, vectors: int, width: int, codes: Codes) -> Any:
    product: Any = code_mix(queries, vectors, width, LANES, codes)

    @compiled()
    def run(table, steps, weights, output, output_row, num_keys, depth):
        product(table, table, at(steps, 0), at(weights, 0), at(output, 0), output_row, num_keys, depth)

    return run


@pytest.mark.parametrize(
    ("kind", "queries", "vectors", "width"),
    [
        *((kind, 4, 4, HOST_TILE.width) for kind in VALUES),
        *(("fp8-e4m3", *sizes) for sizes in ((4, 2, 4), (4, 2, 8), (4, 3, 8), (8, 1, 8), (4, 4, 16))),
        *(("values of int4", *sizes) for sizes in ((1, 8, 4), (2, 3, 8), (8, 1, 8), (8, 2, HOST_TILE.width))),
    ],
)
def test_mixed_values_are_one_chain_over_what_the_codes_stand_for(kind, queries, vectors, width):
    codes, dtype = KINDS[kind]
    run = mix_by(queries, vectors, width, codes)
    for depth in (32, 96, 128):  # halves that are part of a group, a group and a half, and whole groups
        for num_keys in (0, 1, 5):
            stored, output_row = bytes_of_rows(codes, dtype, num_keys, depth), depth + 3
            steps, weights = steps_of(codes, num_keys, depth), normal(num_keys + 1, LANES, seed=1)
            begun = normal(queries, output_row, seed=2)
            output, table = begun.copy(), table_of(stored)
            run(address(table), steps, weights.ravel(), output.ravel(), output_row, num_keys, depth)
            v = numbers_of(codes, dtype, stored, steps, depth)
            expected = begun.copy()  # what is behind a row stays as it was
            for query, d in np.ndindex(queries, depth):
                for key in range(num_keys):
                    expected[query, d] = fma(weights[key, query], v[key, d], expected[query, d])
            assert same(output, expected)


@pytest.mark.parametrize("kind", ["fp8-e4m3", "fp8-e5m2"])
def test_every_code_of_8_bits_is_its_number_in_both_products(kind):
    """Keys of one code and zeros, whose score is its number; a value of all codes, which is its own mix."""
    codes, dtype = KINDS[kind]
    every = np.arange(256, dtype=np.uint8)
    numbers = every.view(dtype).astype(np.float32)
    for depth in (16, 24):  # an even number of vectors, and an odd one
        stored, scores = np.zeros((256, depth), np.uint8), np.zeros((256 + MOST_KEYS, LANES), np.float32)
        stored[every, every % depth] = every
        q, table, run = np.ones((LANES, depth), np.float32), table_of(stored), scores_by(4, 8, 1, codes)
        run(address(table), np.zeros(1, np.float32), told(q, 1), scores.ravel(), 256, depth)
        assert same(scores[:256, :4].T, np.where(numbers == 0, np.float32(0), numbers)[None].repeat(4, 0))
    for width in {4, 8, HOST_TILE.width}:
        output, weights = np.full((4, 256), -0.0, np.float32), np.ones((1, LANES), np.float32)
        table, run = table_of(every[None]), mix_by(4, 2, width, codes)
        run(address(table), np.zeros(1, np.float32), weights.ravel(), output.ravel(), 256, 1, 256)
        assert same(output, numbers[None].repeat(4, 0))  # with the signs of its zeros


def test_queries_of_any_size_meet_codes_as_numbers():
    """2^127 times an e4m3 code of 2^-9 is 2^118, and times one of 0 is 0: neither is ever infinite."""
    codes, _ = KINDS["fp8-e4m3"]
    stored, q = np.zeros((2, 16), np.uint8), np.full((LANES, 16), 2.0**127, np.float32)
    stored[0, 0] = 1
    scores, table = np.zeros((2 + MOST_KEYS, LANES), np.float32), table_of(stored)
    scores_by(4, 8, 1, codes)(address(table), np.zeros(1, np.float32), told(q, 1), scores.ravel(), 2, 16)
    assert scores[:2, :4].tolist() == [[2.0**118] * 4, [0.0] * 4]


def test_a_score_of_half_bytes_worked_by_hand():
    """Byte 0x21 holds channel 0 = 1 and channel 8 = 2: (1 * 0.5 + 3) * 10 + (2 * 0.25 - 1) * 100 = -15.

    What is read of channel 8 is 32, and its step is told as 0.25 / 16.
    """
    stored, steps = np.zeros((1, 8), np.uint8), np.zeros((2, 16), np.float32)
    stored[0, 0] = 0x21
    steps[:, 0], steps[:, 8] = (0.5, 3.0), (0.25 / 16, -1.0)
    q, scores = np.zeros((LANES, 16), np.float32), np.zeros((1 + MOST_KEYS, LANES), np.float32)
    q[0, [0, 8]] = 10.0, 100.0
    table, run = table_of(stored), scores_by(1, 8, 1, CODES["int4"][0])
    run(address(table), told(steps, 1), told(q, 1), scores.ravel(), 1, 16)
    assert scores[0, 0] == -15.0


@pytest.mark.skipif(HOST_TILE.width != LEVELS, reason="this machine has no vectors of 16 numbers")
def test_the_last_four_bits_of_a_place_say_which_number_of_a_table_it_is():
    def write(writer: Any, x: Any, y: Any, count: Any) -> None:
        places = writer.builder.fptosi(writer.load(y), writer.int_type)
        writer.store(writer.look_up(writer.load(x), places), y)

    written: Callable[..., Any] = write
    table, places = normal(LEVELS), np.array([3, 0, 15, 16, 17, 255, 9, 9, *range(8)], np.float32)
    found = places.copy()
    made(LEVELS, written)(table, found, 0)
    assert bits(found) == bits(table[places.astype(int) % LEVELS])


def test_what_meets_two_keys_is_written_twice():
    """Halves of 0..15 with 20 numbers between the vectors, whose gaps stay as they were."""
    widen = widen_beside(half_numbers, 2, 2)

    @compiled()
    def run(codes, numbers):
        widen(codes, np.float32(0.5), at(numbers, 0), 20, 16)

    codes, numbers = np.arange(16, dtype=np.float16), np.full(40, 7, np.float32)
    run(address(codes), numbers)
    first, second = (np.arange(8) / 2).tolist(), (np.arange(8, 16) / 2).tolist()
    assert numbers.tolist() == [*first * 2, *[7] * 4, *second * 2, *[7] * 4]


def test_pairs_are_one_number_of_each_run_and_those_beyond_whole_vectors_are_left():
    @compiled()
    def run(first, second, numbers, count):
        return widen_pairs(first, second, at(numbers, 0), count)

    count = 2 * VECTOR_WIDTH + 1
    first, second = np.arange(count).astype(np.float16), -np.arange(count).astype(np.float16)
    numbers = np.full(2 * count, 7, np.float32)
    assert run(address(first), address(second), numbers, count) == count - 1
    expected = [sign * number for number in range(count - 1) for sign in (1, -1)]
    assert numbers.tolist() == [*expected, 7, 7]
