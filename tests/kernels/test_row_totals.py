"""Sums of products and largest numbers of rows, at every vector width."""

from functools import cache

import numpy as np
import pytest

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import at
from qkv.kernels.row_totals import row_dot, row_max
from qkv.kernels.row_vectors import CHAINS

WIDTHS = (4, 8, 16)
LENGTHS = (1, 3, 15, 16, 17, 31, 63, 64, 65, 131, 257)
"""Shorter and longer than a vector of any width, than several, and their multiples."""


def normal(length, seed=0):
    return np.random.default_rng(seed).normal(size=length).astype(np.float32)


@cache
def dot_by(width):
    dot = row_dot(width)

    @compiled()
    def run(a, b, length):
        return dot(at(a, 0), at(b, 0), length)

    return run


@cache
def max_by(width):
    largest = row_max(width)

    @compiled()
    def run(row, length):
        return largest(at(row, 0), length)

    return run


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_of_products_is_its_chains_in_order_at_every_vector_width(length):
    a, b = normal(length), normal(length, seed=1)
    chains = np.zeros(CHAINS, np.float32)
    for i, (one, other) in enumerate(zip(a.astype(np.float64), b.astype(np.float64), strict=True)):
        chains[i % CHAINS] = np.float32(one * other + np.float64(chains[i % CHAINS]))
    expected = np.float32(0)
    for chain in chains:
        expected = np.float32(expected + chain)
    behind = np.append(a, np.nan).astype(np.float32), np.append(b, np.nan).astype(np.float32)
    for width in WIDTHS:
        assert np.float32(dot_by(width)(*behind, length)) == expected


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_largest_number_is_found_at_every_place_and_none_behind_the_row(width, length):
    for place in range(length):
        row = np.append(normal(length) - 100, 7).astype(np.float32)  # all below 0, but for what is behind
        row[place] = -1
        assert max_by(width)(row, length) == -1
