"""Rows of a packed table by their numbers, as a call of a program: the bits of `PackedWeight.rows`."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.host import Tile
from qkv.kernels.launch import address
from qkv.kernels.matmul import ELEMENT_TYPES
from qkv.kernels.memory import integer_at, moved, number_of_bits, pointer, pointer_to, put_number
from qkv.kernels.panels import GROUP, Form, PackedWeight
from qkv.kernels.program import Call

IDS, PANELS, DEPTH, SCALES, NUM_GROUPS, Y, Y_ROW = range(7)
"""What the words of a call say: addresses, E, and how many numbers there are from row to row."""


def rows_call(ids: NDArray[np.int64], table: PackedWeight, y: NDArray[np.float32]) -> Call:
    """Write down ``y = table.rows(ids)``, a share for each row.

    Parameters
    ----------
    ids : (rows,) int64
        Whenever it runs, each the number of a row of the table. All arrays must outlive the call.
    table : PackedWeight, (V, E)
    y : (rows, E)
        Rows may lie apart.
    """
    assert y.shape == (len(ids), table.shape[1])
    call = np.array(
        (
            address(ids), address(table.panels), table.shape[1], address(table.scales), table.scales.shape[1],
            address(y), y.strides[0] // 4,
        )
    )  # fmt: skip
    return Call(_rows_worker(table.tile, table.form), call, len(ids))


@cache
def _rows_worker(tile: Tile, form: Form) -> Any:
    columns, panel_at, is_bfloat16 = tile.columns, pointer_to(ELEMENT_TYPES[form]), form == "bfloat16"

    @compiled()
    def copy_row(call: Any, row: Any) -> None:
        panel, column = divmod(integer_at(integer_at(call, IDS), row), columns)
        depth, groups = integer_at(call, DEPTH), integer_at(call, NUM_GROUPS)
        panels, scales = panel_at(integer_at(call, PANELS)), pointer(integer_at(call, SCALES))
        y = moved(pointer(integer_at(call, Y)), row * integer_at(call, Y_ROW))
        for k in range(depth):
            stored = panels[(panel * depth + k) * columns + column]
            number = number_of_bits(np.int64(stored) << 16) if is_bfloat16 else np.float32(stored)
            if groups:
                number *= scales[(panel * groups + k // GROUP) * columns + column]
            put_number(y, k, number)

    return copy_row
