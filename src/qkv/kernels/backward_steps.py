"""The way back through norms and gates, row by row.

The ladder, against the formulas in NumPy: how many times as fast, on one thread of AVX-512, by processor
time, all in turn within one run. 8192 rows, E = 192, F = 512:

=============================================  ====  ====
version                                        norm  gate
=============================================  ====  ====
loops that Numba turns into code               1.8   1.5
vectors: `row_vectors`                         4.0   5.8
the residual stream's gradient added in place  5.6
=============================================  ====  ====

What comes beside the norm was a pass of its own in the lines before. A row goes through the first cache
five times and through memory once; its sums are of sixteen chains, which a loop would not be allowed.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from qkv.kernels import row_steps
from qkv.kernels.compiler import compiled
from qkv.kernels.host import VECTOR_WIDTH
from qkv.kernels.memory import at, integer_at
from qkv.kernels.row_calls import ALONE_UP_TO_NUMBERS, LENGTH, A, X, Y, first_row, row_at, run
from qkv.kernels.row_totals import row_dot
from qkv.kernels.row_vectors import Place, along_row, row_sum

Floats = NDArray[np.float32]

BLOCK_ROWS = 64
"""Rows that a norm's weight gradient is summed over at a time: the same however many threads there are."""


def rms_norm_backward(
    d_y: Floats, x: Floats, weight: Floats, eps: float, d_skip: Floats | None
) -> tuple[Floats, Floats]:
    """Return what `qkv.training.norm.rms_norm_backward` does, with the same bits on any number of threads.

    Parameters
    ----------
    d_y, x : (..., E)
    weight : (E,)
    eps : float
    d_skip : (..., E) or None

    Returns
    -------
    d_x : (..., E)
    d_weight : (E,)
        A sum over the rows of each block, in order, then over the blocks.
    """
    num_rows, E = math.prod(x.shape[:-1]), x.shape[-1]
    d_x, sums = np.empty((num_rows, E), np.float32), np.zeros((-(-num_rows // BLOCK_ROWS), E), np.float32)
    arrays = d_y, x, weight, d_y if d_skip is None else d_skip
    rows = (np.require(array, None, ["C", "A", "W"]).reshape(-1, E) for array in arrays)
    kernel = _norm_kernel(skip=d_skip is not None)
    if x.size <= ALONE_UP_TO_NUMBERS:
        kernel = kernel.alone
    kernel(*rows, np.float32(eps), d_x, sums)
    return d_x.reshape(x.shape), sums.sum(axis=0)


def _scale_by_weight(place: Place, d_y: Any, weight: Any, b: Any, inverse: Any, y: Any) -> None:
    """Write ``y = d_y * weight * inverse``."""
    builder = place.writer.builder
    place.put(builder.fmul(builder.fmul(place.get(d_y), place.get(weight)), inverse), y)


def _take_share(place: Place, x: Any, a: Any, b: Any, share: Any, y: Any) -> None:
    """Write ``y = y - x * share``."""
    builder = place.writer.builder
    place.put(builder.fsub(place.get(y), builder.fmul(place.get(x), share)), y)


def _take_share_and_add(place: Place, x: Any, d_skip: Any, b: Any, share: Any, y: Any) -> None:
    """Write ``y = y - x * share + d_skip``."""
    builder = place.writer.builder
    taken = builder.fsub(place.get(y), builder.fmul(place.get(x), share))
    place.put(builder.fadd(taken, place.get(d_skip)), y)


def _add_normed(place: Place, x: Any, d_y: Any, b: Any, inverse: Any, y: Any) -> None:
    """Write ``y = y + d_y * (x * inverse)``."""
    normed = place.writer.builder.fmul(place.get(x), inverse)
    place.put(place.writer.fma(place.get(d_y), normed, place.get(y)), y)


_sum_of_squares = row_sum(VECTOR_WIDTH, squares=True)
_dot = row_dot(VECTOR_WIDTH)
_by_weight = along_row(_scale_by_weight, VECTOR_WIDTH)
_normed_onto = along_row(_add_normed, VECTOR_WIDTH)


@cache
def _norm_kernel(*, skip: bool) -> Any:
    finish = along_row(_take_share_and_add if skip else _take_share, VECTOR_WIDTH)

    @compiled(parallel=True)
    def norm_backward(d_y: Any, x: Any, weight: Any, d_skip: Any, eps: Any, d_x: Any, sums: Any) -> None:
        num_rows, length = x.shape
        scale, total = at(weight, 0), np.float32(length)
        for block in prange(len(sums)):
            d_weight = at(sums, block * length)
            for row in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, num_rows)):
                first = row * length
                there, back, result = at(x, first), at(d_y, first), at(d_x, first)
                inverse = np.float32(1) / np.sqrt(_sum_of_squares(there, length) / total + eps)
                _by_weight(back, scale, scale, inverse, result, length)
                share = _dot(result, there, length) / total * inverse * inverse
                finish(there, at(d_skip, first), there, share, result, length)
                _normed_onto(there, back, back, inverse, d_weight, length)

    return norm_backward


def gate_backward(d_y: Floats, gate_up: Floats) -> Floats:
    """Return what `qkv.training.mlp.gate_backward` does.

    Parameters
    ----------
    d_y : (..., F)
    gate_up : (..., 2F)

    Returns
    -------
    d_gate_up : (..., 2F)
    """
    return run(_gate_rows, gate_up, d_y, d_y)


def _open_backward(place: Place, gate_up: Any, d_y: Any, b: Any, number: Any, d_gate_up: Any) -> None:
    """Write both gradients of ``silu(gate) * up``; a row's second half stands beside its first."""
    builder, one = place.writer.builder, place.writer.constant(1.0)
    gate, up, back = place.get(gate_up), place.beside().get(gate_up), place.get(d_y)
    sigmoid = row_steps.sigmoid(place.writer, gate)
    opened = builder.fmul(gate, sigmoid)
    slope = builder.fmul(sigmoid, builder.fadd(one, builder.fmul(gate, builder.fsub(one, sigmoid))))
    place.put(builder.fmul(back, builder.fmul(up, slope)), d_gate_up)
    place.beside().put(builder.fmul(back, opened), d_gate_up)


_open = along_row(_open_backward, VECTOR_WIDTH)


@compiled()
def _gate_rows(call: Any, worker: Any) -> None:
    F = integer_at(call, LENGTH) // 2
    for row in range(first_row(call, worker), first_row(call, worker + 1)):
        d_y = row_at(call, A, row)
        _open(row_at(call, X, row), d_y, d_y, np.float32(0), row_at(call, Y, row), F)
