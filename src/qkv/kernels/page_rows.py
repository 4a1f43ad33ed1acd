"""Copy rows into pages and out of them: row r of a head stands in slot r % P of its page r // P.

A page is found by its address. A row may be anything of a fixed number of bytes: the codes of a key,
its scale, its position.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.launch import address, launch
from qkv.kernels.memory import byte_at, integer_at, put_byte

(
    TABLE,  # (heads, TABLE_STEP) int64: addresses of pages
    TABLE_STEP,
    HEADS,
    PAGE_KEYS,  # P
    OFFSET,  # where in a page its row 0 begins
    ROW_BYTES,
    ROWS,  # (heads, tokens, ROW_BYTES): the rows outside
    TOKENS,
    FIRST,  # (heads,) int64: the row in the pages that the first one outside stands for
    INTO_PAGES,
    NUM_WORDS,
) = range(11)


@compiled()
def _copy(call: Any, worker: Any) -> None:
    page_keys, row_bytes = integer_at(call, PAGE_KEYS), integer_at(call, ROW_BYTES)
    tokens, into_pages = integer_at(call, TOKENS), integer_at(call, INTO_PAGES)
    for head in range(integer_at(call, HEADS)):
        table = integer_at(call, TABLE) + 8 * head * integer_at(call, TABLE_STEP)
        outside = integer_at(call, ROWS) + head * tokens * row_bytes
        first, token = integer_at(integer_at(call, FIRST), head), 0
        while token < tokens:
            slot = (first + token) % page_keys
            count = min(tokens - token, page_keys - slot)
            page = integer_at(table, (first + token) // page_keys)
            inside = page + integer_at(call, OFFSET) + slot * row_bytes
            beside = outside + token * row_bytes
            for byte in range(count * row_bytes):
                if into_pages:
                    put_byte(inside + byte, byte_at(beside + byte))
                else:
                    put_byte(beside + byte, byte_at(inside + byte))
            token += count


def put_rows(
    table: NDArray[np.int64], page_size: int, offset: int, rows: NDArray[Any], first: NDArray[np.int64]
) -> None:
    """Write each head's rows into its pages, from row ``first`` on.

    Parameters
    ----------
    table : (heads, N) int64
        Addresses of each head's pages.
    page_size : int
        P.
    offset : int
        Where in a page's bytes its rows begin.
    rows : (heads, tokens, ...)
    first : (heads,) int64
    """
    _move(table, page_size, offset, np.ascontiguousarray(rows), first, into_pages=True)


def get_rows(
    table: NDArray[np.int64], page_size: int, offset: int, rows: NDArray[Any], first: NDArray[np.int64]
) -> None:
    """Fill ``rows``, which lie without gaps, with what `put_rows` wrote."""
    assert rows.flags.c_contiguous, "rows to be filled lie without gaps"
    _move(table, page_size, offset, rows, first, into_pages=False)


def _move(
    table: NDArray[np.int64],
    page_size: int,
    offset: int,
    rows: NDArray[Any],
    first: NDArray[np.int64],
    *,
    into_pages: bool,
) -> None:
    if not rows.size:
        return
    table, first = np.ascontiguousarray(table), np.ascontiguousarray(first, np.int64)
    heads, tokens = rows.shape[:2]
    call = np.array(
        [
            address(table), table.shape[1], heads, page_size, offset,
            rows[0, 0].nbytes, address(rows), tokens, address(first), into_pages,
        ],
        np.int64,
    )  # fmt: skip
    launch(_copy, call, 1)
