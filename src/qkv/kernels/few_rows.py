"""Products of a few rows with packed weights, as calls of a program: `matmul`'s bits, to the last.

A few rows wait for the weights to come from memory. So nothing is copied: x stays where it is, which is at
hand anyway, and each share streams two panels of the weight side by side from front to end. The chains are
those of `qkv.kernels.matmul`, and so are the bits.

The ladder, all products of a step with 135 million weights, one row, 2 threads, beside the first in turn:

===========================================================  ====  ======
version                                                      int8  bfloat16
===========================================================  ====  ======
shares of about four panels, some of them an odd number      1.00  1.00
a share for each pair: nobody waits long for the last, and
no panel is read without a neighbour but the very last       1.07  1.04
asking for lines of bfloat16 2, 4 or 8 KB ahead, as for int8       0.8-1.0
===========================================================  ====  ======
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.host import Tile
from qkv.kernels.launch import address
from qkv.kernels.matmul import ELEMENT_TYPES
from qkv.kernels.memory import instruction, integer_at, moved, number_at, pointer, pointer_to, put_number
from qkv.kernels.panel_products import panel_product
from qkv.kernels.panels import Form, PackedWeight
from qkv.kernels.program import Call

Floats = NDArray[np.float32]

MOST_ROWS = 32
"""Of x at once: their sums are kept on the stack."""

(
    X,
    X_ROW,  # numbers from row to row
    NUM_ROWS,
    DEPTH,  # E_in
    PANELS,
    NUM_PANELS,
    SCALES,
    NUM_GROUPS,
    BIAS,  # 0 for none
    RESIDUAL,  # what the product is added to, of the places of y; 0 for nothing
    Y,
    Y_ROW,
    COLUMNS,  # E_out
    NUM_WORDS,
) = range(14)


def product_call(
    x: Floats, weight: PackedWeight, y: Floats, bias: Floats | None = None, residual: Floats | None = None
) -> Call:
    """Write down ``y = residual + (x W^T + bias)``.

    Parameters
    ----------
    x : (rows, E_in)
        Rows may lie apart. All arrays must outlive the call.
    weight : PackedWeight, (E_out, E_in)
    y : (rows, E_out)
        May be ``residual``.
    bias : (E_out,), optional
    residual : (rows, E_out), optional
        With the strides of y.
    """
    E_out, E_in = weight.shape
    assert x.shape[1] == E_in and y.shape == (len(x), E_out) and len(x) <= MOST_ROWS
    assert residual is None or residual.strides == y.strides
    num_panels = len(weight.panels)
    num_pairs = -(-num_panels // 2)
    call = np.zeros(NUM_WORDS, np.int64)
    call[:] = (
        address(x), x.strides[0] // 4, len(x), E_in,
        address(weight.panels), num_panels, address(weight.scales), weight.scales.shape[1],
        0 if bias is None else address(bias), 0 if residual is None else address(residual),
        address(y), y.strides[0] // 4, E_out,
    )  # fmt: skip
    return Call(_product_worker(weight.tile, weight.form), call, num_pairs)


@cache
def _product_worker(tile: Tile, form: Form) -> Any:
    columns = tile.columns
    panel_at, room = pointer_to(ELEMENT_TYPES[form]), _room(2 * MOST_ROWS * columns)
    many = panel_product(tile.rows, tile.vectors, tile.width)
    four, two, one = (panel_product(rows, tile.vectors, tile.width, panels=2) for rows in (4, 2, 1))

    @compiled()
    def finish(call: Any, sums: Any, panel: Any) -> None:
        """Write a panel's results, without the columns that only fill it."""
        first = panel * columns
        count = min(columns, integer_at(call, COLUMNS) - first)
        has_bias, has_residual = integer_at(call, BIAS) != 0, integer_at(call, RESIDUAL) != 0
        bias = moved(pointer(integer_at(call, BIAS)), first)
        for row in range(integer_at(call, NUM_ROWS)):
            start = row * integer_at(call, Y_ROW) + first
            y, source = moved(pointer(integer_at(call, Y)), start), moved(sums, row * columns)
            residual = moved(pointer(integer_at(call, RESIDUAL)), start)
            for column in range(count):
                total = number_at(source, column)
                if has_bias:
                    total += number_at(bias, column)
                if has_residual:
                    total = number_at(residual, column) + total
                put_number(y, column, total)

    @compiled()
    def multiply_pair(call: Any, pair: Any) -> None:
        panel, has_neighbour = 2 * pair, 2 * pair + 1 < integer_at(call, NUM_PANELS)
        x, x_row, num_rows = pointer(integer_at(call, X)), integer_at(call, X_ROW), integer_at(call, NUM_ROWS)
        depth, groups = integer_at(call, DEPTH), integer_at(call, NUM_GROUPS)
        w_size, s_size, y_size = depth * columns, groups * columns, num_rows * columns
        sums = room()
        for number in range(2 * y_size):
            put_number(sums, number, np.float32(0))
        w = moved(panel_at(integer_at(call, PANELS)), panel * w_size)
        s = moved(pointer(integer_at(call, SCALES)), panel * s_size)
        beside = moved(sums, y_size)
        # A last panel that has no neighbour is its own; nobody looks at that one's results.
        w_apart, s_apart = (w_size, s_size) if has_neighbour else (0, 0)
        row = many(x, x_row, w, 0, s, 0, sums, 0, depth, 0, num_rows)
        if row and has_neighbour:
            many(x, x_row, moved(w, w_size), 0, moved(s, s_size), 0, beside, 0, depth, 0, num_rows)
        row = four(x, x_row, w, w_apart, s, s_apart, sums, y_size, depth, row, num_rows)
        row = two(x, x_row, w, w_apart, s, s_apart, sums, y_size, depth, row, num_rows)
        one(x, x_row, w, w_apart, s, s_apart, sums, y_size, depth, row, num_rows)
        finish(call, sums, panel)
        if has_neighbour:
            finish(call, beside, panel + 1)

    return multiply_pair


def _room(count: int) -> Any:
    """Make the function that gives room for so many numbers on the stack."""

    @instruction
    def room(typing_context: Any) -> Any:
        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            numbers = ir.ArrayType(ir.FloatType(), count)
            return builder.bitcast(cgutils.alloca_once(builder, numbers), ir.FloatType().as_pointer())

        return types.CPointer(types.float32)(), write

    return room
