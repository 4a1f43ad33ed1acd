"""Calls of a worker that makes a row of results for each row of an array.

All a worker is told are words: where its arrays are, how far apart their rows, how long a row.
"""

import math
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.host import num_threads
from qkv.kernels.launch import address, code_address, launch, run_at
from qkv.kernels.memory import integer_at, pointer

Floats = NDArray[np.float32]
Words = NDArray[np.int64]
Axes = tuple[int, ...]

ALONE_UP_TO_NUMBERS = 1 << 17
"""Up to so many results one thread is done before a second one would have started."""

AXES = 3
"""Leading axes that a worker counts through."""

Y, X, A, B = range(4)
"""A call's arrays: the results, what they are of, and two more. Its words begin with their addresses."""

STRIDES = 4  # of each array: bytes from row to row along each of AXES
SIZES = STRIDES + 4 * AXES  # rows of x along each of AXES
LENGTH = SIZES + AXES  # of a row of x
NUMBER = LENGTH + 1  # whatever else a worker needs
NUM_WORKERS = NUMBER + 1

ITEM_BYTES = 4

FIRST_INDEX = ((), *((0,) * axes for axes in range(AXES + 1)))
"""The index of an array's first row, by its number of axes."""


def run(worker: Any, x: Floats, a: Floats, b: Floats, number: int = 0) -> Floats:
    """Make a row of results for each row of x.

    Parameters
    ----------
    worker : compiled function
        Takes the address of a call and which worker it is; fills the rows from `first_row` on.
    x : (..., length)
    a, b : (..., any length)
        Their leading axes broadcast to those of x.
    number : int

    Returns
    -------
    (..., length)
    """
    y = np.empty(x.shape, np.float32)
    if not y.size:
        return y
    template = _template(x.shape, x.strides, a.shape, a.strides, b.shape, b.strides, number)
    if template is None:
        x, a, b = (_flat_copy(rows, y.shape[:-1]) for rows in (x, a, b))
        return run(worker, x, a, b, number).reshape(y.shape)
    call, num_workers = template.copy(), 1 if y.size <= ALONE_UP_TO_NUMBERS else num_threads()
    call[NUM_WORKERS] = num_workers
    _start(code_address(worker), call, _start_of(y), _start_of(x), _start_of(a), _start_of(b))
    if num_workers > 1:
        launch(worker, call, num_workers)
    return y


def row_words(y: Floats, x: Floats, a: Floats, b: Floats, shares: int, number: int = 0) -> Words:
    """Return the words of a call that fills rows that may lie apart, cut into shares: for a program.

    Parameters
    ----------
    y, x : (..., length)
        With up to `AXES` leading axes. All arrays must outlive the call.
    a, b : (..., any length)
        Their leading axes broadcast to those of x.
    shares : int
    number : int
    """
    arrays = y, x, a, b
    assert x.ndim <= AXES + 1 and all(array.strides[-1] == ITEM_BYTES for array in arrays)
    sizes = (*(1,) * AXES, *x.shape)[-AXES - 1 :]
    strides = [_row_strides(array.shape, array.strides, sizes) for array in arrays]
    addresses = [address(array) for array in arrays]
    return np.array([*addresses, *chain(*strides), *sizes, number, shares], np.int64)


@compiled()
def _start(code: int, call: Any, y: Any, x: Any, a: Any, b: Any) -> None:
    """Write a call's addresses, and run it if it is for one worker.

    Compiled code is told of five arrays in less time than Python takes to find the address of one.
    """
    call[Y], call[X], call[A], call[B] = y.ctypes.data, x.ctypes.data, a.ctypes.data, b.ctypes.data
    if call[NUM_WORKERS] == 1:
        run_at(code, call.ctypes.data, 0)


def _start_of(array: Floats) -> Floats:
    """Return an array's first row: it begins where the array does, and has one type for any array."""
    return array[FIRST_INDEX[array.ndim]]


def _flat_copy(rows: Floats, leading: Axes) -> Floats:
    length = rows.shape[-1]
    return np.broadcast_to(rows, (*leading, length)).reshape(math.prod(leading), length).copy()


@lru_cache(maxsize=256)
def _template(
    shape: Axes, strides: Axes, a_shape: Axes, a_strides: Axes, b_shape: Axes, b_strides: Axes, number: int
) -> Words | None:
    """Return a call's words without its addresses and workers, or None if rows cannot be read in place."""
    arrays = (shape, strides), (a_shape, a_strides), (b_shape, b_strides)
    if len(shape) > AXES + 1 or any(axes[-1] > 1 and steps[-1] != ITEM_BYTES for axes, steps in arrays):
        return None
    sizes = (*(1,) * AXES, *shape)[-AXES - 1 :]
    call = np.zeros(NUM_WORKERS + 1, np.int64)
    call[STRIDES:SIZES] = (
        *(ITEM_BYTES * math.prod(sizes[axis + 1 :]) for axis in range(AXES)),
        *(step for axes, steps in arrays for step in _row_strides(axes, steps, sizes)),
    )
    call[SIZES:NUM_WORKERS] = *sizes, number
    return call


def _row_strides(shape: Axes, strides: Axes, sizes: Axes) -> Axes:
    """Return the strides of an array's leading axes, 0 where it has one row for all."""
    missing = AXES + 1 - len(shape)
    axes = zip((*(1,) * missing, *shape), (*(0,) * missing, *strides), sizes, strict=True)
    return tuple(0 if size < along else stride for size, stride, along in axes)[:AXES]


@compiled()
def first_row(call: Any, worker: Any) -> Any:
    """Return where a worker's share of the rows begins."""
    num_rows = integer_at(call, SIZES) * integer_at(call, SIZES + 1) * integer_at(call, SIZES + 2)
    return num_rows * worker // integer_at(call, NUM_WORKERS)


@compiled()
def row_at(call: Any, array: Any, row: Any) -> Any:
    """Return where a row of `Y`, `X`, `A` or `B` begins."""
    size_1, size_2, strides = integer_at(call, SIZES + 1), integer_at(call, SIZES + 2), STRIDES + AXES * array
    start = integer_at(call, array) + row // size_2 // size_1 * integer_at(call, strides)
    start += row // size_2 % size_1 * integer_at(call, strides + 1)
    return pointer(start + row % size_2 * integer_at(call, strides + 2))
