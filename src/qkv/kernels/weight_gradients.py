"""The gradient of a linear map's weight, ``d_W = d_y^T x``: sums over all rows of a batch.

Every result is one chain of fused multiply-adds over the rows, from 0, in order, as in `matmul`. So it
depends neither on the number of threads nor on how the work is cut.

The inner axis is the one that both operands keep furthest apart in memory, and by far the longest. The
ladder, against NumPy (OpenBLAS) on the same arrays: how many times as fast, on one thread of AVX-512, by
processor time, each in turn with NumPy within one run. 8192 rows; (E_out, E_in) of a small Llama's layers:

====================================================  ========  ========  =========  ========  =========
version                                               320, 192  192, 192  1024, 192  192, 512  2048, 192
====================================================  ========  ========  =========  ========  =========
`matmul` of transposed copies                         0.64      0.62      0.35       0.70      0.36
both as they lie, copied by slices, one strip of d_y  1.02      0.87      0.96       0.93      0.94
copied by vectors                                     1.10      1.09      1.02       1.03      0.97
eight strips at a time: this file                     1.05      1.03      1.08       1.04      1.07
====================================================  ========  ========  =========  ========  =========

A strip is 32 bytes of each row, half a line of memory. Rows 8 KB apart share few sets of the cache, so
that the other half is gone before the next strip asks for it. Blocks of 128 or 512 rows were no faster.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange, types
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.host import HOST_TILE, Tile, num_threads
from qkv.kernels.memory import at, instruction
from qkv.kernels.vectors import VectorWriter, index, repeat

Floats = NDArray[np.float32]

BLOCK_DEPTH = 256
"""Rows of the batch at once, so that what is copied of them stays in the cache."""

BLOCK_PANELS = 16
"""Panels of x that are copied together, at most."""

STRIPS = 8
"""Strips of d_y, each as wide as a rectangle is high, that are copied together: whole lines of memory."""

FEW_OPERATIONS = 1 << 20
"""Multiply-adds below which waking threads takes longer than the product."""


def weight_gradient(d_y: Floats, x: Floats, tile: Tile = HOST_TILE) -> Floats:
    """Return ``d_y^T x``, each number a chain over the rows.

    Parameters
    ----------
    d_y : (rows, E_out)
    x : (rows, E_in)
    tile : Tile
        The rectangle of registers to compute at a time.

    Returns
    -------
    (E_out, E_in)
    """
    d_y, x = (np.require(rows, np.float32, ["C", "A", "W"]) for rows in (d_y, x))
    d_weight = np.empty((d_y.shape[1], x.shape[1]), np.float32)
    add_up = _kernel(tile)
    if len(x) * d_weight.size < FEW_OPERATIONS:
        add_up = add_up.alone
    add_up(d_y, x, d_weight, num_threads())
    return d_weight


@cache
def _kernel(tile: Tile) -> Any:
    rows, columns = tile.rows, tile.columns
    add_block, hold_panel = _block_adder(tile), _holder(columns)

    @compiled(parallel=True)
    def add_up(d_y: Any, x: Any, d_weight: Any, num_shares: int) -> None:
        num_strips, num_panels = -(-d_weight.shape[0] // rows), -(-d_weight.shape[1] // columns)
        panel_blocks = -(-num_panels // BLOCK_PANELS)
        for number in prange(num_shares * panel_blocks):
            share, panel = number % num_shares, number // num_shares * BLOCK_PANELS
            strip, end = share * num_strips // num_shares, (share + 1) * num_strips // num_shares
            own_panels = min(BLOCK_PANELS, num_panels - panel)
            x_held = np.zeros((own_panels, BLOCK_DEPTH, columns), np.float32)
            y_held = np.zeros((BLOCK_DEPTH, STRIPS * rows), np.float32)
            sums = np.zeros((end - strip, own_panels, rows, columns), np.float32)
            for start in range(0, len(x), BLOCK_DEPTH):
                stop = min(start + BLOCK_DEPTH, len(x))
                for place in range(own_panels):
                    hold_panel(x, (panel + place) * columns, start, stop, x_held[place])
                add_block(d_y, strip, start, stop, y_held, x_held, sums)
            _finish(sums, d_weight, strip * rows, panel * columns)

    return add_up


def _block_adder(tile: Tile) -> Any:
    """Make the function that adds to all of a share's sums what some rows of the batch give."""
    rows, columns = tile.rows, tile.columns
    add_rectangle, hold_strips = outer_product(tile), _holder(STRIPS * rows)

    @compiled()
    def add_block(
        d_y: Any, first_strip: int, start: int, stop: int, y_held: Any, x_held: Any, sums: Any
    ) -> None:
        num_strips, num_panels = sums.shape[:2]
        for group in range(0, num_strips, STRIPS):
            hold_strips(d_y, (first_strip + group) * rows, start, stop, y_held)
            for strip in range(group, min(group + STRIPS, num_strips)):
                y = at(y_held, (strip - group) * rows)
                for panel in range(num_panels):
                    x = at(x_held, panel * BLOCK_DEPTH * columns)
                    total = at(sums, (strip * num_panels + panel) * rows * columns)
                    add_rectangle(y, STRIPS * rows, x, total, stop - start)

    return add_block


def _holder(width: int) -> Any:
    """Make the function that copies ``width`` neighbouring columns of some rows to lie without gaps.

    What is beyond the last column stays as it was; nobody looks at what comes of it.
    """
    copy = copy_columns(width)

    @compiled()
    def hold(rows: Any, column: int, start: int, stop: int, held: Any) -> None:
        row_size = rows.shape[1]
        if column + width <= row_size:
            copy(at(rows, start * row_size + column), row_size, at(held, 0), stop - start)
        else:
            for row in range(start, stop):
                for place in range(row_size - column):
                    held[row - start, place] = rows[row, column + place]

    return hold


@compiled()
def _finish(sums: Any, d_weight: Any, first_row: int, first_column: int) -> None:
    """Write a share's results, without those that only fill the last rectangles."""
    num_strips, num_panels, rows, columns = sums.shape
    for row in range(min(num_strips * rows, len(d_weight) - first_row)):
        for panel in range(num_panels):
            start = first_column + panel * columns
            stop = min(start + columns, d_weight.shape[1])
            source, target = sums[row // rows, panel, row % rows], d_weight[first_row + row, start:stop]
            for column in range(stop - start):
                target[column] = source[column]


def copy_columns(width: int) -> Any:
    """Make the copy of ``width`` neighbouring columns.

    The result takes ``(rows, row_step, held, num_rows)`` and stores them row by row without gaps.
    """

    @instruction
    def copy(typing_context: Any, rows: Any, row_step: Any, held: Any, num_rows: Any) -> Any:
        signature = types.void(rows, types.intp, held, types.intp)

        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            rows, row_step, held, num_rows = arguments
            writer = VectorWriter(builder, width)  # the compiler cuts it into those that the machine has

            def copy_row(row: Any, _: list[Any]) -> list[Any]:
                numbers = writer.load(rows, builder.mul(row, row_step))
                writer.store(numbers, held, builder.mul(row, index(width)))
                return []

            repeat(builder, num_rows, [], copy_row)
            return context.get_dummy_value()

        return signature, write

    return copy


def outer_product(tile: Tile) -> Any:
    """Make ``c += a^T b`` for one rectangle of results, held in registers.

    The result takes ``(a, a_row, b, c, depth)``. Row k of a stands at ``a + k * a_row``; b and c are stored
    row by row without gaps.
    """

    @instruction
    def product(typing_context: Any, a: Any, a_row: Any, b: Any, c: Any, depth: Any) -> Any:
        return types.void(a, types.intp, b, c, types.intp), _write_product(tile)

    return product


def _write_product(tile: Tile) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, a_row, b, c, depth = arguments
        writer = VectorWriter(builder, tile.width)
        columns = [index(vector * tile.width) for vector in range(tile.vectors)]
        places = [
            builder.add(index(row * tile.columns), column) for row in range(tile.rows) for column in columns
        ]

        def add(k: Any, sums: list[Any]) -> list[Any]:
            growing, place = iter(sums), builder.mul(k, index(tile.columns))
            others = [writer.load(b, builder.add(place, column)) for column in columns]
            start = builder.gep(a, [builder.mul(k, a_row)])
            # One at a time: all scalars together would push sums out of the registers.
            scalars = (
                writer.splat(builder.load(builder.gep(start, [index(row)]))) for row in range(tile.rows)
            )
            return [writer.fma(scalar, other, next(growing)) for scalar in scalars for other in others]

        sums = repeat(builder, depth, [writer.load(c, place) for place in places], add)
        for total, place in zip(sums, places, strict=True):
            writer.store(total, c, place)
        return context.get_dummy_value()

    return write
