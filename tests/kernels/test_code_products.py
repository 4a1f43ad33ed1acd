"""Products on rows of codes, against plain loops over the numbers these stand for: every sum in its order."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paged_arrays import same
from qkv.kernels.code_products import MOST_KEYS, code_mix, code_scores
from qkv.kernels.codes import CODES, Codes
from qkv.kernels.compiler import compiled
from qkv.kernels.host import HOST_TILE
from qkv.kernels.memory import at
from qkv.kernels.micro import CHAINS
from row_loops import LANES, fma, normal, score

KINDS: dict[str, tuple[Codes, Any]] = {
    "fp16": (CODES["fp16"][0], np.float16),
    "bf16": (CODES["bf16"][0], ml_dtypes.bfloat16),
    "fp8-e4m3": (CODES["fp8-e4m3"][0], ml_dtypes.float8_e4m3fn),
    "fp8-e5m2": (CODES["fp8-e5m2"][0], ml_dtypes.float8_e5m2),
}
"""How codes are read, and their type in NumPy."""

NOWHERE = 16
"""No address that may be read."""


def rows_of(dtype: Any, num_rows: int, depth: int) -> np.ndarray:
    """Rows of codes of random numbers, and a NaN in the last of more than two rows."""
    numbers = normal(num_rows, depth, seed=7)
    numbers[2:, 3][-1:] = np.nan
    return numbers.astype(dtype)


def table_of(stored: np.ndarray) -> np.ndarray:
    """Where rows are, and behind the last that nothing is."""
    first = stored.__array_interface__["data"][0]
    return np.array([*(first + row * stored.shape[1] for row in range(len(stored))), NOWHERE], np.int64)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def scores_by(queries: int, sums: int, beside: int, codes: Codes) -> Any:
    product: Any = code_scores(queries, sums, beside, LANES, codes)

    @compiled()
    def run(table, q, scores, num_keys, depth):
        product(table, table, at(q, 0), at(scores, 0), num_keys, depth)

    return run


def told(rows: np.ndarray, beside: int) -> np.ndarray:
    """Queries as vectors that meet all the keys of one: of each in turn `CHAINS` numbers, so many times."""
    vectors = np.repeat(rows.reshape(len(rows), -1, 1, CHAINS), beside, axis=2)
    return np.ascontiguousarray(vectors.swapaxes(0, 1)).ravel()


@pytest.mark.parametrize(
    ("kind", "queries", "sums", "beside"),
    [
        *((kind, 4, 16, beside) for kind in KINDS for beside in (1, 2)),
        *(("fp16", *sizes) for sizes in ((1, 8, 1), (2, 8, 1), (2, 16, 1), (8, 8, 1))),
        *(("fp8-e4m3", *sizes) for sizes in ((1, 16, 2), (2, 16, 2), (4, 8, 2), (8, 16, 2))),
    ],
)
def test_scores_are_chains_along_a_row_of_what_its_codes_stand_for(kind, queries, sums, beside):
    codes, dtype = KINDS[kind]
    run = scores_by(queries, sums, beside, codes)
    for depth in (16, 48):
        for num_keys in (1, 3, 8, 19):
            k, q = rows_of(dtype, num_keys, depth), normal(queries, depth, seed=1)
            scores = np.full((num_keys + MOST_KEYS, LANES), np.nan, np.float32)
            table = table_of(k.view(np.uint8))
            padded = np.full((LANES, depth), np.nan, np.float32)
            padded[:queries] = q
            run(address(table), told(padded, beside), scores.ravel(), num_keys, depth)
            expected = np.array([[score(key, query) for query in q] for key in k.astype(np.float32)])
            assert same(scores[:num_keys, :queries], expected)


def mix_by(queries: int, vectors: int, width: int, codes: Codes) -> Any:
    product: Any = code_mix(queries, vectors, width, LANES, codes)

    @compiled()
    def run(table, weights, output, output_row, num_keys, depth):
        product(table, table, at(weights, 0), at(output, 0), output_row, num_keys, depth)

    return run


@pytest.mark.parametrize(
    ("kind", "queries", "vectors", "width"),
    [
        *((kind, 4, 4, HOST_TILE.width) for kind in KINDS),
        *(("fp8-e4m3", *sizes) for sizes in ((4, 2, 4), (4, 2, 8), (4, 3, 8), (8, 1, 8), (4, 4, 16))),
        *(("fp16", *sizes) for sizes in ((1, 8, 4), (2, 3, 8), (8, 1, 8), (8, 2, HOST_TILE.width))),
    ],
)
def test_mixed_values_are_one_chain_over_what_the_codes_stand_for(kind, queries, vectors, width):
    codes, dtype = KINDS[kind]
    run = mix_by(queries, vectors, width, codes)
    for depth in (32, 96, 128):
        for num_keys in (0, 1, 5):
            stored, output_row = rows_of(dtype, num_keys, depth), depth + 3
            weights, begun = normal(num_keys + 1, LANES, seed=1), normal(queries, output_row, seed=2)
            output, table = begun.copy(), table_of(stored.view(np.uint8))
            run(address(table), weights.ravel(), output.ravel(), output_row, num_keys, depth)
            v = stored.astype(np.float32)
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
        run(address(table), told(q, 1), scores.ravel(), 256, depth)
        assert same(scores[:256, :4].T, np.where(numbers == 0, np.float32(0), numbers)[None].repeat(4, 0))
    for width in {4, 8, HOST_TILE.width}:
        output, weights = np.full((4, 256), -0.0, np.float32), np.ones((1, LANES), np.float32)
        table, run = table_of(every[None]), mix_by(4, 2, width, codes)
        run(address(table), weights.ravel(), output.ravel(), 256, 1, 256)
        assert same(output, numbers[None].repeat(4, 0))  # with the signs of its zeros


def test_queries_of_any_size_meet_codes_as_numbers():
    """2^127 times an e4m3 code of 2^-9 is 2^118, and times one of 0 is 0: neither is ever infinite."""
    codes, _ = KINDS["fp8-e4m3"]
    stored, q = np.zeros((2, 16), np.uint8), np.full((LANES, 16), 2.0**127, np.float32)
    stored[0, 0] = 1
    scores, table = np.zeros((2 + MOST_KEYS, LANES), np.float32), table_of(stored)
    scores_by(4, 8, 1, codes)(address(table), told(q, 1), scores.ravel(), 2, 16)
    assert scores[:2, :4].tolist() == [[2.0**118] * 4, [0.0] * 4]
