"""Rank correlations against their definitions, by hand and in loops."""

import numpy as np
import pytest

from qkv.lab.rank_correlation import kendall, partial_spearman, ranks, spearman


def test_equal_numbers_share_their_rank():
    assert ranks([3, 1, 3, 3, 2]).tolist() == [3, 0, 3, 3, 1]


def test_without_ties_it_is_the_textbook_formula():
    x, y = np.random.default_rng(1).random((2, 13))
    d = np.argsort(np.argsort(x)) - np.argsort(np.argsort(y))
    assert spearman(x, y) == pytest.approx(1 - 6 * (d**2).sum() / (13 * (13**2 - 1)))


def test_only_order_counts():
    x, y = np.random.default_rng(2).random((2, 11))
    assert spearman(np.exp(5 * x), y) == pytest.approx(spearman(x, y))
    assert spearman(x, -x) == pytest.approx(-1)


def test_a_list_all_alike_goes_with_nothing():
    assert spearman([1, 2, 3], [4, 4, 4]) == 0.0


def test_kendall_counts_pairs():
    x, y = np.random.default_rng(3).integers(0, 5, (2, 11))
    pairs = [(one, other) for one in range(11) for other in range(one)]
    moves = [(np.sign(x[a] - x[b]), np.sign(y[a] - y[b])) for a, b in pairs]
    agreeing = sum(one * other for one, other in moves)
    counted = [sum(move[which] != 0 for move in moves) for which in (0, 1)]
    assert min(counted) < len(pairs)
    assert kendall(x, y) == pytest.approx(agreeing / np.sqrt(counted[0] * counted[1]))


def test_what_both_owe_to_a_third_is_taken_out():
    x, y, z = np.random.default_rng(4).random((3, 17))
    # The correlation of what is left of both ranks after a straight line through the third's.
    left = [r - np.polyval(np.polyfit(ranks(z), r, 1), ranks(z)) for r in (ranks(x), ranks(y))]
    assert partial_spearman(x, y, z) == pytest.approx(np.asarray(np.corrcoef(np.stack(left)))[0, 1])
    assert partial_spearman(x, z, z) == 0.0
