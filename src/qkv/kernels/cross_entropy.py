"""Cross-entropy over a vocabulary: a row of logits becomes its gradient while the cache holds it.

The ladder, against the formula in NumPy, which is in place as well: how many times as fast, on one thread
of AVX-512, by processor time, all in turn within one run. 8192 rows, V = 2048:

=================================  ====
version                            step
=================================  ====
loops that Numba turns into code   0.7
vectors: `row_vectors`, this file  6.5
=================================  ====

NumPy goes through all rows seven times, and its exp is in vectors; a loop's is not. Here a row is read
once and written once: its largest number, its weights, their sum and its gradient come from the cache.
"""

from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.host import VECTOR_WIDTH
from qkv.kernels.memory import at, number_at, put_number
from qkv.kernels.row_calls import ALONE_UP_TO_NUMBERS
from qkv.kernels.row_totals import row_max
from qkv.kernels.row_vectors import Place, along_row, row_sum

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

BLOCK_ROWS = 16
"""Rows that one thread takes at a time."""


def cross_entropy(logits: Floats, targets: Integers, share: float) -> Floats:
    """Write ``(softmax(logits) - [is the target]) * share`` over the logits, and return each row's nats.

    Parameters
    ----------
    logits : (rows, V)
        In memory order.
    targets : (rows,) int64
        The row of a negative one is not counted: it becomes 0.
    share : float
        Of a row in the mean.

    Returns
    -------
    nats : (rows,)
        ``-log softmax(logits)[target]``, 0 where not counted.
    """
    nats = np.zeros(len(logits), np.float32)
    kernel = _become_gradients if logits.size > ALONE_UP_TO_NUMBERS else _become_gradients.alone
    kernel(logits, targets, np.float32(share), nats)
    return nats


def token_nats(logits: Floats, targets: Integers) -> Floats:
    """Return each row's nats as `cross_entropy` does, to the bit; the logits stay.

    Parameters
    ----------
    logits : (rows, V)
        In memory order.
    targets : (rows,) int64

    Returns
    -------
    nats : (rows,)
    """
    nats = np.zeros(len(logits), np.float32)
    kernel = _measure if logits.size > ALONE_UP_TO_NUMBERS else _measure.alone
    kernel(logits, targets, nats)
    return nats


@compiled(parallel=True)
def _become_gradients(logits: Any, targets: Any, share: Any, nats: Any) -> None:
    num_rows, V = logits.shape
    for block in prange(-(-num_rows // BLOCK_ROWS)):
        for number in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, num_rows)):
            row, target = at(logits, number * V), targets[number]
            if target >= 0:
                nats[number], total = _weighed(row, V, target, row)
                _multiply_row(row, row, row, share / total, row, V)
                put_number(row, target, number_at(row, target) - share)
            else:
                logits[number] = 0


@compiled(parallel=True)
def _measure(logits: Any, targets: Any, nats: Any) -> None:
    num_rows, V = logits.shape
    for block in prange(-(-num_rows // BLOCK_ROWS)):
        weights = np.empty(V, np.float32)
        for number in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, num_rows)):
            if targets[number] >= 0:
                nats[number], _ = _weighed(at(logits, number * V), V, targets[number], at(weights, 0))


@compiled()
def _weighed(row: Any, V: int, target: int, weights: Any) -> Any:
    """Write ``exp(row - its largest)``, and return the nats of the target and the sum of the weights."""
    highest, chosen = _largest(row, V), number_at(row, target)
    _weigh_row(row, row, row, highest, weights, V)
    total = _sum(weights, V)
    return np.log(total) - (chosen - highest), total


def _weigh(place: Place, x: Any, a: Any, b: Any, highest: Any, y: Any) -> None:
    """Write ``y = exp(x - highest)``."""
    place.put(place.writer.exp(place.writer.builder.fsub(place.get(x), highest)), y)


def _multiply(place: Place, x: Any, a: Any, b: Any, factor: Any, y: Any) -> None:
    """Write ``y = x * factor``."""
    place.put(place.writer.builder.fmul(place.get(x), factor), y)


_largest = row_max(VECTOR_WIDTH)
_sum = row_sum(VECTOR_WIDTH, squares=False)
_weigh_row = along_row(_weigh, VECTOR_WIDTH)
_multiply_row = along_row(_multiply, VECTOR_WIDTH)
