"""Two keys in a vector give the weights, sums and maxima of one key at a time, to the bit."""

from typing import Any

import numpy as np
import pytest

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import at
from qkv.kernels.micro import online_softmax
from qkv.kernels.row_softmax import paired_softmax

LANES, FEW = 8, 4


def made(step: Any) -> Any:
    @compiled()
    def run(scores, num_keys, scale, highest, denominator, rescale):
        step(at(scores, 0), num_keys, scale, at(highest, 0), at(denominator, 0), at(rescale, 0))

    return run


SINGLE, PAIRED = made(online_softmax(1, LANES)), made(paired_softmax(FEW, LANES))


def after(run: Any, blocks: list[np.ndarray]) -> list[np.ndarray]:
    """What blocks of scores become, one after another, and the state behind the last."""
    highest, denominator = np.full(LANES, -np.inf, np.float32), np.zeros(LANES, np.float32)
    rescale, weights = np.zeros(LANES, np.float32), []
    for block in blocks:
        scores = block.copy().ravel()
        run(scores, len(block), np.float32(0.3), highest, denominator, rescale)
        weights.append(scores.reshape(block.shape)[:, :FEW])
    return [*weights, *(state[:FEW] for state in (highest, denominator, rescale))]


@pytest.mark.parametrize("num_keys", [1, 2, 3, 4, 5, 7, 8, 64])
def test_weights_sums_and_maxima_are_those_of_one_key_at_a_time(num_keys: int):
    rng = np.random.default_rng(num_keys)
    blocks = [rng.normal(size=(size, LANES)).astype(np.float32) * 20 for size in (num_keys, 3, num_keys)]
    blocks[0][0, 1] = blocks[1][:, 1] = -np.inf  # hidden
    blocks[2][0, 2] = np.nan
    blocks[1][0, 3] = np.inf
    for one, other in zip(after(PAIRED, blocks), after(SINGLE, blocks), strict=True):
        np.testing.assert_array_equal(one, other)


def test_lanes_that_have_seen_nothing_stay_as_they_are_and_the_others_are_not_touched():
    scores = np.full((3, LANES), -np.inf, np.float32)
    scores[:, FEW:] = 7.0
    highest, denominator = np.full(LANES, -np.inf, np.float32), np.zeros(LANES, np.float32)
    rescale = np.full(LANES, 5, np.float32)
    PAIRED(scores.ravel(), 3, np.float32(1), highest, denominator, rescale)
    assert (scores[:, FEW:] == 7).all() and not scores[:, :FEW].any()
    assert (highest == -np.inf).all() and not denominator.any()
    assert rescale.tolist() == [0.0] * FEW + [5.0] * FEW


def test_weights_worked_by_hand():
    """Scores 0 and ln 2 become 1/2 and 1; the sum is 1.5."""
    scores = np.zeros((2, LANES), np.float32)
    scores[1] = np.log(2)
    highest, denominator = np.full(LANES, -np.inf, np.float32), np.zeros(LANES, np.float32)
    PAIRED(scores.ravel(), 2, np.float32(1), highest, denominator, np.zeros(LANES, np.float32))
    np.testing.assert_allclose(scores[:, :FEW], [[0.5] * FEW, [1] * FEW], rtol=1e-6)
    np.testing.assert_allclose(denominator[:FEW], 1.5, rtol=1e-6)
