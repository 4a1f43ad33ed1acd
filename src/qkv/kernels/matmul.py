"""Matrix products ``y = x W^T`` whose bits depend on nothing but a row of x and a row of W.

Every result is one chain of fused multiply-adds along the inner axis, from 0, in order; the bias is
added once at the end. Blocks of the inner axis put the float32 results down and take them up again,
which changes no bit. So a row gives the same bits alone, among 512 rows, and on any number of threads.

The ladder, float32, one thread on AVX-512. Many rows, 1536 x 1536 x 1536, best of 8 within one run:

================================================================  =========  ====================
version                                                           GFLOP/s    step
================================================================  =========  ====================
`matmul_plain`: one number after another                          1.6
panels, one row of registers at a time                            42         26x
rectangles of 8 rows x 2 vectors, x copied anew for 2 panels      73         1.7x
x copied once for up to 24 panels: this file                      98         1.3x
NumPy (OpenBLAS), for comparison                                  95
================================================================  =========  ====================

The rectangle alone, fed from the cache, reaches 115; so do 12 x 2, 6 x 4 and 4 x 4. Copies and final
writes must be loops over slices: with indices computed in full they were 7 times as slow, 1.3x in all.

Few rows wait for memory instead. 4096 x 4096, several matrices in turn, against one panel at a time:

=====================================  =========  =========  =========
version                                float32    bfloat16   int8
=====================================  =========  =========  =========
1 row, two panels at a time            1.00x      1.09x      1.07x
2 rows, two panels at a time           1.00x      1.28x      1.15x
4 rows, two panels at a time           1.04x      1.45x      1.23x
=====================================  =========  =========  =========

Prefetch instructions and a loop unrolled by 4 changed nothing that could be told from noise.
"""

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.kernels.compiler import compiled
from qkv.kernels.host import Tile, num_threads
from qkv.kernels.launch import address, launch
from qkv.kernels.memory import at, fma, integer_at, moved, pointer, pointer_to
from qkv.kernels.panel_products import panel_product
from qkv.kernels.panels import GROUP, Form, PackedWeight, pack

__all__ = ["PackedWeight", "matmul", "matmul_plain", "pack"]

BLOCK_DEPTH = 512
"""Steps of the inner axis at once, so that a panel's block stays in the cache; a multiple of `GROUP`."""

BLOCK_ROWS = 48
BLOCK_COLUMNS = 768
"""Results at once, at most: what a block of x is copied for."""

ROW_STEP = BLOCK_DEPTH + 16
"""Between rows of the copied block: no power of 2, which would crowd them into few sets of the cache."""

FEW_PANELS = 4
BLOCKS_PER_THREAD = 8
"""At least, where there are many: so that threads finish at about the same time."""

FEW_OPERATIONS = 1 << 20
"""Multiply-adds below which waking threads takes longer than the product."""

FLOAT32 = np.dtype(np.float32)

(
    X,
    NUM_ROWS,
    DEPTH,  # E_in
    PANELS,
    NUM_PANELS,
    SCALES,
    NUM_GROUPS,
    BIAS,
    Y,
    COLUMNS,  # E_out
    BLOCK_PANELS,
    NUM_THREADS,
) = range(12)
"""What the words of a call say."""

ELEMENT_TYPES = {"float32": types.float32, "bfloat16": types.uint16, "int8": types.int8}


def matmul(
    x: NDArray[np.float32], weight: PackedWeight, bias: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """Return ``x W^T + bias``; each row's bits are the same whatever stands beside it.

    Parameters
    ----------
    x : (..., E_in) float32
    weight : PackedWeight, (E_out, E_in)
    bias : (E_out,), optional

    Returns
    -------
    (..., E_out) float32

    Raises
    ------
    ShapeError
        If the axes do not fit together.
    TypeError
        If ``x`` is not float32.

    Examples
    --------
    >>> import numpy as np
    >>> weight = pack(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]], np.float32))
    >>> matmul(np.array([1.0, 2.0], np.float32), weight).tolist()
    [1.0, 3.0, 6.0]
    """
    rows, biases = _operands(x, weight, bias)
    num_rows = len(rows)
    y = np.empty((num_rows, weight.shape[0]), FLOAT32)
    threads = 1 if num_rows * weight.panels.size < FEW_OPERATIONS else num_threads()
    call = np.array(
        (
            address(rows), num_rows, rows.shape[1], address(weight.panels), len(weight.panels),
            address(weight.scales), weight.scales.shape[1], address(biases), address(y), weight.shape[0],
            _block_panels(num_rows, weight), threads,
        )
    )  # fmt: skip
    launch(_worker(weight.tile, weight.form), call, threads)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], weight.shape[0])


def _operands(
    x: NDArray[Any], weight: PackedWeight, bias: NDArray[Any] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return x as rows and a bias for every column, laid out as the kernels are compiled for."""
    E_out, E_in = weight.shape
    if x.dtype != FLOAT32:
        raise TypeError(f"x must be float32, got {x.dtype}; try x.astype('float32')")
    if x.ndim == 0 or x.shape[-1] != E_in:
        raise ShapeError(
            f"x must be (..., {E_in}) for a weight {weight.shape}, got {x.shape}; weights are (E_out, E_in)"
        )
    if bias is not None and bias.shape != (E_out,):
        raise ShapeError(f"bias must be ({E_out},), got {bias.shape}; try one number for each output")
    rows = x.reshape(math.prod(x.shape[:-1]), E_in)
    return _as_compiled_for(rows), _no_bias(E_out) if bias is None else _as_compiled_for(bias)


def _as_compiled_for(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return an array of the one type that the kernels are compiled for; itself if it is."""
    if array.flags.carray and array.dtype == FLOAT32:  # in memory order, aligned and writeable
        return array
    return np.array(array, FLOAT32, order="C")


@lru_cache(maxsize=256)
def _no_bias(E_out: int) -> NDArray[np.float32]:
    """Return what is added where there is no bias: -0.0 + y is y to the bit, 0.0 + -0.0 is not."""
    return np.full(E_out, -0.0, FLOAT32)


def _block_panels(num_rows: int, weight: PackedWeight) -> int:
    """Return how many panels a thread takes at a time, in pairs.

    Many share one copy of x. But a few rows wait for the weights, which stream best from few places.
    """
    num_panels = len(weight.panels)
    if num_rows <= weight.tile.rows or num_panels == 0:
        return FEW_PANELS
    share = num_panels * math.ceil(num_rows / BLOCK_ROWS) // (BLOCKS_PER_THREAD * num_threads())
    most = min(max(share, FEW_PANELS), BLOCK_COLUMNS // weight.tile.columns)
    evenly = num_panels / math.ceil(num_panels / most)
    return 2 * math.ceil(evenly / 2)


@cache
def _worker(tile: Tile, form: Form) -> Any:
    """Make the function that multiplies one thread's blocks of a call."""
    add_products, columns, panel_at = _product_adder(tile), tile.columns, pointer_to(ELEMENT_TYPES[form])

    @compiled()
    def multiply_share(call: Any, number: Any) -> None:
        num_rows, depth = integer_at(call, NUM_ROWS), integer_at(call, DEPTH)
        num_panels, groups = integer_at(call, NUM_PANELS), integer_at(call, NUM_GROUPS)
        E_out, block_panels = integer_at(call, COLUMNS), integer_at(call, BLOCK_PANELS)
        x = carray(pointer(integer_at(call, X)), (num_rows, depth))
        panels = carray(panel_at(integer_at(call, PANELS)), (num_panels, depth, columns))
        scales = carray(pointer(integer_at(call, SCALES)), (num_panels, groups, columns))
        bias = carray(pointer(integer_at(call, BIAS)), E_out)
        y = carray(pointer(integer_at(call, Y)), (num_rows, E_out))
        row_blocks = (num_rows + BLOCK_ROWS - 1) // BLOCK_ROWS
        num_blocks = row_blocks * ((num_panels + block_panels - 1) // block_panels)
        threads = integer_at(call, NUM_THREADS)
        for block in range(num_blocks * number // threads, num_blocks * (number + 1) // threads):
            row = block % row_blocks * BLOCK_ROWS
            panel = block // row_blocks * block_panels
            x_block = x[row : min(row + BLOCK_ROWS, num_rows)]
            held = np.empty((len(x_block), ROW_STEP), np.float32)
            sums = np.zeros((block_panels, len(x_block), columns), np.float32)
            for start in range(0, depth, BLOCK_DEPTH):
                count = min(BLOCK_DEPTH, depth - start)
                _hold(x_block, start, count, held)
                add_products(held, panels, scales, sums, panel, start, count)
            _finish(sums, bias, y, row, panel * columns)

    return multiply_share


@compiled()
def _hold(x: Any, start: int, depth: int, held: Any) -> None:
    """Copy ``depth`` columns of x to where their rows lie well apart in the cache."""
    for row in range(len(x)):
        source, target = x[row, start : start + depth], held[row, :depth]
        for k in range(depth):
            target[k] = source[k]


@compiled()
def _finish(sums: Any, bias: Any, y: Any, first_row: int, first_column: int) -> None:
    """Write a block of results, without the columns that only fill the last panel."""
    num_rows, columns = sums.shape[1:]
    last_column = min(first_column + len(sums) * columns, y.shape[1])
    for panel, start in enumerate(range(first_column, last_column, columns)):
        stop = min(start + columns, y.shape[1])
        biases = bias[start:stop]
        for row in range(num_rows):
            source, target = sums[panel, row], y[first_row + row, start:stop]
            for column in range(stop - start):
                target[column] = source[column] + biases[column]


def _product_adder(tile: Tile) -> Any:
    """Make the function that adds the products of a copied block of x with some panels to their sums."""
    columns = tile.columns
    many = panel_product(tile.rows, tile.vectors, tile.width)
    four, two, one = (panel_product(rows, tile.vectors, tile.width, panels=2) for rows in (4, 2, 1))

    @compiled()
    def add_products(
        held: Any, panels: Any, scales: Any, sums: Any, first: int, start: int, depth: int
    ) -> None:
        num_panels, num_rows = min(len(sums), len(panels) - first), sums.shape[1]
        w_size, s_size, y_size = panels.shape[1] * columns, scales.shape[1] * columns, num_rows * columns
        x = at(held, 0)
        for panel in range(0, num_panels, 2):
            w = at(panels, (first + panel) * w_size + start * columns)
            s = at(scales, (first + panel) * s_size + start // GROUP * columns)
            y = at(sums, panel * y_size)
            # A last panel that has no neighbour is its own; nobody looks at that one's results.
            w_apart, s_apart = (w_size, s_size) if panel + 1 < num_panels else (0, 0)
            row = many(x, ROW_STEP, w, 0, s, 0, y, 0, depth, 0, num_rows)
            many(
                x,
                ROW_STEP,
                moved(w, w_apart),
                0,
                moved(s, s_apart),
                0,
                moved(y, y_size),
                0,
                depth,
                0,
                num_rows,
            )
            row = four(x, ROW_STEP, w, w_apart, s, s_apart, y, y_size, depth, row, num_rows)
            row = two(x, ROW_STEP, w, w_apart, s, s_apart, y, y_size, depth, row, num_rows)
            one(x, ROW_STEP, w, w_apart, s, s_apart, y, y_size, depth, row, num_rows)

    return add_products


def matmul_plain(
    x: NDArray[np.float32], weight: PackedWeight, bias: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """Return what `matmul` returns, to the bit, one number after another."""
    rows, biases = _operands(x, weight, bias)
    y = np.empty((len(rows), weight.shape[0]), np.float32)
    _multiply_plainly(rows, *weight.stored(), biases, y)
    return y.reshape(*x.shape[:-1], weight.shape[0])


@compiled()
def _multiply_plainly(x: Any, weight: Any, scales: Any, bias: Any, y: Any) -> None:
    group = GROUP if scales.shape[1] else max(1, x.shape[1])
    for row in range(len(x)):
        for column in range(len(weight)):
            total = np.float32(0)
            for start in range(0, x.shape[1], group):
                chain = np.float32(0)
                for k in range(start, min(start + group, x.shape[1])):
                    chain = fma(x[row, k], weight[column, k], chain)
                total = fma(chain, scales[column, start // group], total) if scales.shape[1] else chain
            y[row, column] = total + bias[column]
