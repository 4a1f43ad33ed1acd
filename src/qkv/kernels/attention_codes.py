"""Where the rows of codes of a block of keys are.

Products on codes take a whole block at once, however its keys are spread over pages: what they read are
tables of addresses. The table of the next block is written down when a block begins, so that its rows and
their steps can be asked for one by one while this block is worked on.

The room for it: which blocks the two tables are of, the tables, and a row of zeros in place of the rows of
pages that are gone. No query sees the zeros, but the block that holds them has other keys.
"""

from typing import Any, NamedTuple

import numpy as np

from qkv.kernels.attention_words import (
    BLOCK_KEYS,
    D_V,
    GROUP,
    K_CODES,
    K_LOWS,
    K_STEPS,
    PAGE_KEYS,
    SHARES_VALUES,
    V_CODES,
    V_LOWS,
    V_STEPS,
    D,
)
from qkv.kernels.codes import PER_CHANNEL, PER_GROUP, PER_ROW, Codes, IntegerCodes
from qkv.kernels.compiler import compiled
from qkv.kernels.key_rows import following_page
from qkv.kernels.launch import LINE_NUMBERS
from qkv.kernels.memory import (
    address_of,
    integer_at,
    moved,
    pointer,
    prefetch,
    put_integer,
    put_number,
)

NUM_RUNS = 0  # keys that lie together in a page
RUN_PAGES = 1
RUN_SLOTS = RUN_PAGES + BLOCK_KEYS
RUN_LENGTHS = RUN_SLOTS + BLOCK_KEYS
KEY_ROWS = RUN_LENGTHS + BLOCK_KEYS
VALUE_ROWS = KEY_ROWS + BLOCK_KEYS
TABLE_WORDS = VALUE_ROWS + BLOCK_KEYS + 1  # a row behind the last, for keys that are taken in pairs

BLOCKS, TABLES = 0, 2
HEAD_WORDS = -(-(TABLES + 2 * TABLE_WORDS) // 8) * 8  # a whole number of lines

NO_BLOCK = -1


def table_room(size: int, value_size: int) -> int:
    """Return how many float32 numbers the tables and the zeros of a worker take."""
    return 2 * HEAD_WORDS + max(size, value_size)


class RowTables(NamedTuple):
    """The compiled steps that find a block's rows.

    Attributes
    ----------
    forget : ``(call, room)``
        Forget all blocks.
    locate : ``(call, pair, block, room)``
        Return the addresses of a block's table and of the next one's.
    """

    forget: Any
    locate: Any


def make_row_tables(keys: Codes | IntegerCodes, values: Codes | IntegerCodes) -> RowTables:
    """Make the steps for keys and values of some form."""
    key_bits, value_bits = keys.bits, values.bits
    ask_for_key_steps, ask_for_value_steps = steps_asker(keys), steps_asker(values)

    @compiled()
    def forget(call, room):
        words = address_of(room)
        put_integer(words, BLOCKS, NO_BLOCK)
        put_integer(words, BLOCKS + 1, NO_BLOCK)
        zeros = zeros_in(room)
        for table in range(2):
            last = TABLES + table * TABLE_WORDS + VALUE_ROWS + BLOCK_KEYS
            put_integer(words, last, address_of(zeros))
        for number in range(max(integer_at(call, D), integer_at(call, D_V))):
            put_number(zeros, number, np.float32(0))

    @compiled()
    def ask_for_steps(call, page, slot, count):
        """Ask for what belongs to the rows of a run beside their codes."""
        k_steps, k_lows = integer_at(call, K_STEPS), integer_at(call, K_LOWS)
        ask_for_key_steps(page, slot, count, integer_at(call, D), k_steps, k_lows)
        if integer_at(call, SHARES_VALUES) == 0:
            v_steps, v_lows = integer_at(call, V_STEPS), integer_at(call, V_LOWS)
            ask_for_value_steps(page, slot, count, integer_at(call, D_V), v_steps, v_lows)

    @compiled()
    def write_run(call, table, key, count, page, slot, zeros):
        """Write where the rows of a run are, of which the first is the block's row ``key``."""
        key_row, value_row = 0, 0
        keys = values = zeros
        if page != 0:
            key_row = integer_at(call, D) * key_bits // 8
            keys = page + integer_at(call, K_CODES) + slot * key_row
            value_row, values = key_row, keys
            if integer_at(call, SHARES_VALUES) == 0:
                value_row = integer_at(call, D_V) * value_bits // 8
                values = page + integer_at(call, V_CODES) + slot * value_row
            # One line at either end: the processor looks up at once where all these pages are.
            prefetch(pointer(keys), 0)
            prefetch(pointer(values + count * value_row - 4), 0)
        for row in range(count):
            put_integer(table, KEY_ROWS + key + row, keys + row * key_row)
            put_integer(table, VALUE_ROWS + key + row, values + row * value_row)

    @compiled()
    def write_down(call, pair, block, table, zeros):
        """Write a block's table, and ask for its steps."""
        key, run, page_keys = 0, 0, integer_at(call, PAGE_KEYS)
        while key < BLOCK_KEYS:
            page, slot = following_page(call, pair, block + key), (block + key) % page_keys
            count = min(BLOCK_KEYS - key, page_keys - slot)
            put_integer(table, RUN_PAGES + run, page)
            put_integer(table, RUN_SLOTS + run, slot)
            put_integer(table, RUN_LENGTHS + run, count)
            if page != 0:
                ask_for_steps(call, page, slot, count)
            write_run(call, table, key, count, page, slot, zeros)
            key, run = key + count, run + 1
        put_integer(table, NUM_RUNS, run)

    @compiled()
    def locate(call, pair, block, room):
        words, zeros = address_of(room), address_of(zeros_in(room))
        which = block // BLOCK_KEYS % 2
        for number in range(2):
            wanted, place = block + number * BLOCK_KEYS, (which + number) % 2
            if integer_at(words, BLOCKS + place) != wanted:
                write_down(call, pair, wanted, words + 8 * (TABLES + place * TABLE_WORDS), zeros)
                put_integer(words, BLOCKS + place, wanted)
        return words + 8 * (TABLES + which * TABLE_WORDS), words + 8 * (TABLES + (1 - which) * TABLE_WORDS)

    return RowTables(forget, locate)


@compiled()
def zeros_in(room: Any) -> Any:
    """Return where the row of zeros is."""
    return moved(room, 2 * HEAD_WORDS)


@compiled()
def _ask(address: Any, num_bytes: Any) -> None:
    """Ask for the lines of some bytes."""
    for number in range(0, (num_bytes + 3) // 4, LINE_NUMBERS):
        prefetch(pointer(address), number)


def steps_asker(codes: Codes | IntegerCodes) -> Any:
    """Make what asks for the steps of a run of rows in a page."""

    @compiled()
    def none(page, slot, count, size, steps, lows):
        pass

    @compiled()
    def per_row(page, slot, count, size, steps, lows):
        _ask(page + steps + 4 * slot, 4 * count)

    @compiled()
    def per_channel(page, slot, count, size, steps, lows):
        _ask(page + steps, 2 * size)
        _ask(page + lows, 2 * size)

    @compiled()
    def per_group(page, slot, count, size, steps, lows):
        groups = (size + GROUP - 1) // GROUP
        _ask(page + steps + 2 * slot * groups, 2 * count * groups)
        _ask(page + lows + 2 * slot * groups, 2 * count * groups)

    if isinstance(codes, Codes):
        return none
    return {PER_ROW: per_row, PER_CHANNEL: per_channel, PER_GROUP: per_group}[codes.steps]
