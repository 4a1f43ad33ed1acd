"""Cross-entropy's gradient in place: against float64, row against row, thread against thread."""

import numpy as np
import pytest

from qkv.kernels.cross_entropy import cross_entropy, token_nats
from qkv.kernels.host import set_num_threads
from qkv.kernels.row_calls import ALONE_UP_TO_NUMBERS
from qkv.kernels.row_vectors import CHAINS

U = 2.0**-24


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def targets_of(rows, V, lowest=-1):
    return np.random.default_rng(7).integers(lowest, V, rows)


def bits(y):
    return y.view(np.uint32).tolist()


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


@pytest.mark.parametrize("V", [1, 15, 63, 64, 65, 131, 2053])
def test_it_is_off_by_few_roundings(V):
    logits, targets = normal(7, V, scale=5), targets_of(7, V, lowest=0)
    wide, rows = logits.astype(np.float64), np.arange(7)
    shifted = wide - wide.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, keepdims=True)
    nats, d_logits = np.log(sums[:, 0]) - shifted[rows, targets], np.exp(shifted) / sums
    d_logits[rows, targets] -= 1
    got = cross_entropy(logits, targets, 0.25)
    roundings = V / CHAINS + CHAINS + 8
    assert (np.abs(got - nats) <= U * (roundings + 4 + 2 * np.abs(nats))).all()
    # exp turns what its argument is off by, a rounding of the difference, into a relative error.
    bound = U * (roundings + np.abs(shifted)) * np.exp(shifted) / sums
    bound[rows, targets] += U
    assert (np.abs(logits / 0.25 - d_logits) <= bound + 1e-37).all()


def test_bits_do_not_depend_on_the_number_of_threads_nor_on_other_rows(threads):
    logits, targets = normal(131, 2053), targets_of(131, 2053)
    assert logits.size > ALONE_UP_TO_NUMBERS
    results = []
    for count in (1, 2):
        threads(count)
        own = logits.copy()
        nats = cross_entropy(own, targets, 1 / 131)
        assert bits(token_nats(logits, targets)) == bits(nats)
        results.append((bits(nats), bits(own)))
    assert results[0] == results[1]
    row = logits[5:6].copy()
    assert bits(cross_entropy(row, targets[5:6], 1 / 131)) == results[0][0][5:6]
    assert bits(row) == results[0][1][5:6]


def test_rows_that_are_not_counted_are_0_whatever_was_there():
    logits = normal(3, 67)
    logits[1] = np.nan
    nats = cross_entropy(logits, np.array([0, -1, 66]), 1.0)
    assert nats[1] == 0
    assert not logits[1].any()
    assert logits[[0, 2]].all()


def test_no_rows_are_no_error():
    assert cross_entropy(normal(0, 5), np.empty(0, np.int64), 1.0).shape == (0,)
    assert token_nats(normal(0, 5), np.empty(0, np.int64)).shape == (0,)
