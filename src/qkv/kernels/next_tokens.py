"""Put the next token's key and value of each text into its pages, as a call of a program."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import row_steps
from qkv.kernels.compiler import compiled
from qkv.kernels.host import VECTOR_WIDTH
from qkv.kernels.launch import address, addresses
from qkv.kernels.memory import integer_at, moved, pointer
from qkv.kernels.row_vectors import along_row

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

NOTHING = np.float32(0)

(
    Q,  # (rows, H, D), as projected; the next two alike for keys and values
    Q_ROW,  # numbers from row to row
    K,
    K_ROW,
    V,
    V_ROW,
    H,
    G,
    D,
    COSINES,  # (rows, pairs), as all that follows without gaps
    SINES,
    PAIRS,
    TURNED,  # (rows, H, D): the queries, turned
    TABLE,  # (rows, G, TABLE_STEP) int64: addresses of pages
    TABLE_STEP,
    SLOTS,  # (rows, G) int64: where in its pages a head's token goes
    PAGE_KEYS,  # P
    K_BYTES,  # where in a page keys begin, and values
    V_BYTES,
    NUM_WORDS,
) = range(20)

_turn = along_row(row_steps.turn_halves, VECTOR_WIDTH)
_copy = along_row(row_steps.copy, VECTOR_WIDTH)


class NextTokens(NamedTuple):
    """Where the next token of each text goes, and what its queries see.

    Attributes
    ----------
    tables : rows of (L, G, N) int64
        Addresses of each text's pages of float32.
    slots : rows of (G,) int64
        Where in its pages a head's token goes, in every layer the same: how many it holds already.
    left : (L, rows, G) int64, optional
        How many keys before its own a query sees; all when left out.
    first_keys : (L, rows, G) int64
        How many keys at the beginning no window hides.
    page_size : int
        P.
    k_bytes, v_bytes : int
        Where in a page keys and values begin.
    """

    tables: Sequence[Words]
    slots: Sequence[Words]
    left: Words | None
    first_keys: Words
    page_size: int
    k_bytes: int
    v_bytes: int


class Heads(NamedTuple):
    """One step's queries, keys and values, ``(rows, heads, D)`` each, and the queries turned.

    Rows may lie apart, their heads without gaps.
    """

    q: Floats
    k: Floats
    v: Floats
    turned: Floats


def write_placing(call: Words, heads: Heads, slots: Words, cosines: Floats, sines: Floats) -> None:
    """Write down: turn queries and keys by their positions, and put keys and values where they belong.

    In what pages that is, `point_to_pages` says. There is a share for each row.

    Parameters
    ----------
    call : (NUM_WORDS,) int64
        Is written to.
    heads : Heads
        All arrays must outlive the call.
    slots : (rows, G) int64
        Where in its pages a head's token goes.
    cosines, sines : (rows, pairs)
    """
    D = heads.q.shape[2]
    assert cosines.flags.c_contiguous and sines.flags.c_contiguous and heads.turned.flags.c_contiguous
    for place, array in ((Q, heads.q), (K, heads.k), (V, heads.v)):
        assert array.strides[1:] == (4 * D, 4), "the heads of a row lie without gaps"
        call[place], call[place + 1] = address(array), array.strides[0] // 4
    call[H : TURNED + 1] = (
        heads.q.shape[1], heads.k.shape[1], D, address(cosines), address(sines), cosines.shape[1],
        address(heads.turned),
    )  # fmt: skip
    call[SLOTS] = address(slots)


def point_to_pages(calls: Words, table: Words, tokens: NextTokens) -> None:
    """Say to which pages each layer's keys and values go, as long as the pages are of the same form.

    Parameters
    ----------
    calls : (L, NUM_WORDS) int64
        The words of each layer's call.
    table : (L, rows, G, N) int64
        Must outlive the calls, and hold the addresses of the pages whenever they run.
    tokens : NextTokens
    """
    calls[:, TABLE], calls[:, TABLE_STEP] = addresses(table), table.shape[-1]
    calls[:, PAGE_KEYS:] = tokens.page_size, tokens.k_bytes, tokens.v_bytes


@cache
def placing_worker() -> Any:
    """Return the worker of `write_placing`."""

    @compiled()
    def turn(call: Any, row: Any, source: Any, target: Any) -> None:
        pairs = integer_at(call, PAIRS)
        cosines = moved(pointer(integer_at(call, COSINES)), row * pairs)
        sines = moved(pointer(integer_at(call, SINES)), row * pairs)
        _turn(source, cosines, sines, NOTHING, target, pairs)
        others = moved(source, 2 * pairs)
        _copy(others, others, others, NOTHING, moved(target, 2 * pairs), integer_at(call, D) - 2 * pairs)

    @compiled()
    def place_row(call: Any, row: Any) -> None:
        num_heads, num_kv_heads, size = integer_at(call, H), integer_at(call, G), integer_at(call, D)
        page_keys, step = integer_at(call, PAGE_KEYS), integer_at(call, TABLE_STEP)
        q = moved(pointer(integer_at(call, Q)), row * integer_at(call, Q_ROW))
        k = moved(pointer(integer_at(call, K)), row * integer_at(call, K_ROW))
        v = moved(pointer(integer_at(call, V)), row * integer_at(call, V_ROW))
        turned = moved(pointer(integer_at(call, TURNED)), row * num_heads * size)
        for head in range(num_heads):
            turn(call, row, moved(q, head * size), moved(turned, head * size))
        for head in range(num_kv_heads):
            pair = row * num_kv_heads + head
            slot = integer_at(integer_at(call, SLOTS), pair)
            page = integer_at(integer_at(call, TABLE), pair * step + slot // page_keys)
            beyond = 4 * size * (slot % page_keys)
            turn(call, row, moved(k, head * size), pointer(page + integer_at(call, K_BYTES) + beyond))
            value = moved(v, head * size)
            place = pointer(page + integer_at(call, V_BYTES) + beyond)
            _copy(value, value, value, NOTHING, place, size)

    return place_row
