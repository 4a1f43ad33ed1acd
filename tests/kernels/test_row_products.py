"""Products along rows, and the verbs they are written in, against plain loops: every sum in its order."""

from typing import Any

import numpy as np
import pytest

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import at
from qkv.kernels.micro import CHAINS
from qkv.kernels.row_products import row_mix, row_scores
from qkv.kernels.vectors import VectorWriter, index
from row_loops import LANES, bits, fma, made, normal, score

DEPTHS = [1, 3, 7, 8, 9, 16, 21, 40]


# Verbs


@pytest.mark.parametrize("width", [4, 8, 16])
def test_each_vector_is_summed_over_its_lanes_in_order(width: int):
    def write(writer: VectorWriter, x: Any, y: Any, count: Any) -> None:
        writer.store(writer.sum_each([writer.load(x, index(row * width)) for row in range(width)]), y)

    x, y = normal(width, width), np.zeros(width, np.float32)
    x[:, 0] *= 2.0**24  # so that another order gives other bits
    made(width, write)(x.ravel(), y, 0)
    expected = []
    for row in x:
        total = row[0]
        for number in row[1:]:
            total = np.float32(total + number)
        expected.append(total)
    assert bits(y) == bits(expected)


@pytest.mark.parametrize(("width", "parts"), [(8, 2), (16, 2), (16, 4)])
def test_parts_of_a_vector_are_summed_apart_where_there_are_fewer_vectors_than_lanes(width: int, parts: int):
    def write(writer: VectorWriter, x: Any, y: Any, count: Any) -> None:
        vectors = [writer.load(x, index(row * width)) for row in range(width // parts)]
        writer.store(writer.sum_each(vectors), y)

    x, y = normal(width // parts, width), np.zeros(width, np.float32)
    x[:, :: width // parts] *= 2.0**24
    made(width, write)(x.ravel(), y, 0)
    expected = []
    for part in np.split(x, parts, axis=1):
        for row in part:
            total = row[0]
            for number in row[1:]:
                total = np.float32(total + number)
            expected.append(total)
    assert bits(y) == bits(expected)


@pytest.mark.parametrize("width", [4, 8, 16])
def test_only_the_first_lanes_are_read_and_written(width: int):
    def write(writer: VectorWriter, x: Any, y: Any, count: Any) -> None:
        loaded = writer.load_first(count, x, index(1))
        writer.store(loaded, y)
        writer.store_first(count, loaded, y, index(width))

    run = made(width, write)
    for count in range(width + 1):
        x, y = np.full(width + 1, np.nan, np.float32), np.full(2 * width, 7, np.float32)
        x[1 : 1 + count] = np.arange(1, count + 1)
        run(x, y, count)
        first = [*range(1, count + 1)]
        assert y.tolist() == first + [0] * (width - count) + first + [7] * (width - count)


# Scores


def scores_of(queries: int) -> Any:
    product: Any = row_scores(queries, LANES)

    @compiled()
    def run(k, k_row, q, q_row, chains, scores, num_keys, depth):
        product(at(k, 0), k_row, 0, at(q, 0), q_row, at(chains, 0), at(scores, 0), num_keys, depth)

    return run


@pytest.mark.parametrize("queries", [1, 2, 4, 8])
def test_scores_are_chains_along_a_key_added_up_in_order(queries: int):
    run = scores_of(queries)
    for depth in DEPTHS:
        for num_keys in (1, 2, 5, 8, 19):
            k_row, q_row = depth + 3, depth + 2
            k, q = (np.full((n, row), np.nan, np.float32) for n, row in ((num_keys, k_row), (queries, q_row)))
            k[:, :depth], q[:, :depth] = normal(num_keys, depth), normal(queries, depth, seed=1)
            chains = np.full((num_keys + CHAINS) * queries * CHAINS, np.nan, np.float32)
            scores = np.full((num_keys + CHAINS, LANES), np.nan, np.float32)
            run(k.ravel(), k_row, q.ravel(), q_row, chains, scores.ravel(), num_keys, depth)
            expected = [[score(key[:depth], query[:depth]) for query in q] for key in k]
            assert bits(scores[:num_keys, :queries]) == bits(expected)


def test_a_score_worked_by_hand():
    """Numbers 0 and 8 share a chain; rounded in the order of the row, 1 would be lost beside 2^24."""
    k, q = np.zeros(9, np.float32), np.ones(9, np.float32)
    k[0], k[1], k[8] = 2.0**24, 1.0, -(2.0**24)
    chains, scores = np.zeros((1 + CHAINS) * CHAINS, np.float32), np.zeros((1 + CHAINS, LANES), np.float32)
    scores_of(1)(k, 9, q, 9, chains, scores.ravel(), 1, 9)
    assert scores[0, 0] == 1.0


# Mixing values


def mix_of(queries: int, vectors: int, width: int) -> Any:
    product: Any = row_mix(queries, vectors, width, LANES)

    @compiled()
    def run(v, v_row, weights, output, output_row, num_keys, depth):
        product(at(v, 0), v_row, 0, at(weights, 0), at(output, 0), output_row, num_keys, depth)

    return run


@pytest.mark.parametrize(("queries", "vectors", "width"), [(1, 8, 16), (2, 2, 8), (4, 3, 4), (8, 1, 16)])
def test_mixed_values_are_one_chain_over_the_keys(queries: int, vectors: int, width: int):
    run = mix_of(queries, vectors, width)
    for depth in DEPTHS:
        for num_keys in (0, 1, 5):
            v_row, output_row = depth + 3, depth + 2
            v = np.full((num_keys + 1, v_row), np.nan, np.float32)
            v[:num_keys, :depth] = normal(num_keys, depth)
            weights, begun = normal(num_keys + 1, LANES, seed=1), normal(queries, output_row, seed=2)
            output = begun.copy()
            run(v.ravel(), v_row, weights.ravel(), output.ravel(), output_row, num_keys, depth)
            expected = begun.copy()  # what is behind a row stays as it was
            for query, d in np.ndindex(queries, depth):
                for key in range(num_keys):
                    total = expected[query, d]
                    expected[query, d] = fma(weights[key, query], v[key, d], total)
            assert bits(output) == bits(expected)
