"""Where the rows of codes of a block of keys are, and what belongs to them beside the codes.

Products on codes take a whole block at once, however its keys are spread over pages: what they read are
tables of addresses. The table of the next block is written down when a block begins, so that its rows and
their steps can be asked for one by one while this block is worked on.

The room for it: which blocks the two tables are of, the tables, the steps of a block's keys or values, a
row of zeros in place of the rows of pages that are gone, and the queries as products take them. No query sees
the zeros, but the block that holds them has other keys.
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
from qkv.kernels.codes import EXACT, PER_CHANNEL, PER_GROUP, PER_ROW, Codes
from qkv.kernels.compiler import compiled
from qkv.kernels.key_rows import following_page
from qkv.kernels.launch import LINE_NUMBERS
from qkv.kernels.memory import (
    address_of,
    integer_at,
    moved,
    number_at,
    number_of_half,
    pointer,
    prefetch,
    put_integer,
    put_number,
)
from qkv.kernels.micro import CHAINS
from qkv.kernels.widening import half_numbers, single_numbers, widen_beside, widen_pairs

NUM_RUNS = 0  # keys that lie together in a page
RUN_PAGES = 1
RUN_SLOTS = RUN_PAGES + BLOCK_KEYS
RUN_LENGTHS = RUN_SLOTS + BLOCK_KEYS
KEY_ROWS = RUN_LENGTHS + BLOCK_KEYS
VALUE_ROWS = KEY_ROWS + BLOCK_KEYS
TABLE_WORDS = VALUE_ROWS + BLOCK_KEYS

BLOCKS, TABLES = 0, 2
HEAD_WORDS = -(-(TABLES + 2 * TABLE_WORDS) // 8) * 8  # a whole number of lines

NO_BLOCK = -1


def code_room(lanes: int, beside: int, size: int, value_size: int) -> int:
    """Return how many float32 numbers the tables, steps, zeros and queries of a worker take."""
    largest = max(size, value_size)
    groups = -(-value_size // GROUP)
    steps = max(2 * beside * size, BLOCK_KEYS, 2 * BLOCK_KEYS * groups)
    return 2 * HEAD_WORDS + steps + largest + lanes * beside * size


class CodeBlocks(NamedTuple):
    """The compiled steps that find a block's rows.

    Attributes
    ----------
    begin : ``(call, queries, room)``
        Forget all blocks, and write down the queries as `code_products` takes them.
    queries : ``(call, room)``
        Return where they are.
    locate : ``(call, pair, block, room)``
        Return the addresses of a block's table and of the next one's.
    key_steps, value_steps : ``(call, table, run, key, count, room)``
        Return the steps of a run's first ``count`` rows, the first of which is the block's row ``key``,
        after those of the runs before it.
    """

    begin: Any
    queries: Any
    locate: Any
    key_steps: Any
    value_steps: Any


def make_code_blocks(keys: Codes, values: Codes, lanes: int, beside: int) -> CodeBlocks:
    """Make the steps for keys and values of some form."""
    write_queries = widen_beside(single_numbers, 4, beside)
    key_bytes, key_halves = keys.code_bytes, keys.halves
    value_bytes, value_halves = values.code_bytes, values.halves
    read_key_steps, read_value_steps = steps_reader(keys, beside), steps_reader(values, 1)
    ask_for_key_steps, ask_for_value_steps = steps_asker(keys.steps), steps_asker(values.steps)

    @compiled()
    def zeros_in(call, room):
        """Return where the row of zeros is: behind the most steps that there can be."""
        groups = (integer_at(call, D_V) + GROUP - 1) // GROUP
        num_steps = max(2 * beside * integer_at(call, D), BLOCK_KEYS, 2 * BLOCK_KEYS * groups)
        return moved(steps_in(room), num_steps)

    @compiled()
    def queries_in(call, room):
        return moved(zeros_in(call, room), max(integer_at(call, D), integer_at(call, D_V)))

    @compiled()
    def begin(call, queries, room):
        words = address_of(room)
        put_integer(words, BLOCKS, NO_BLOCK)
        put_integer(words, BLOCKS + 1, NO_BLOCK)
        largest = max(integer_at(call, D), integer_at(call, D_V))
        zeros = zeros_in(call, room)
        for number in range(largest):
            put_number(zeros, number, np.float32(0))
        size, told = integer_at(call, D), queries_in(call, room)
        for lane in range(lanes):
            own, vector = address_of(moved(queries, lane * size)), moved(told, lane * beside * CHAINS)
            write_queries(own, np.float32(1), vector, lanes * beside * CHAINS, size)

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
            key_row = integer_at(call, D) * key_bytes // key_halves
            keys = page + integer_at(call, K_CODES) + slot * key_row
            value_row, values = key_row, keys
            if integer_at(call, SHARES_VALUES) == 0:
                value_row = integer_at(call, D_V) * value_bytes // value_halves
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
        words, zeros = address_of(room), address_of(zeros_in(call, room))
        which = block // BLOCK_KEYS % 2
        for number in range(2):
            wanted, place = block + number * BLOCK_KEYS, (which + number) % 2
            if integer_at(words, BLOCKS + place) != wanted:
                write_down(call, pair, wanted, words + 8 * (TABLES + place * TABLE_WORDS), zeros)
                put_integer(words, BLOCKS + place, wanted)
        return words + 8 * (TABLES + which * TABLE_WORDS), words + 8 * (TABLES + (1 - which) * TABLE_WORDS)

    @compiled()
    def key_steps(call, table, run, key, count, room):
        page, slot = integer_at(table, RUN_PAGES + run), integer_at(table, RUN_SLOTS + run)
        steps, lows = integer_at(call, K_STEPS), integer_at(call, K_LOWS)
        read_key_steps(page, slot, key, count, integer_at(call, D), steps, lows, steps_in(room))

    @compiled()
    def value_steps(call, table, run, key, count, room):
        page, slot = integer_at(table, RUN_PAGES + run), integer_at(table, RUN_SLOTS + run)
        steps, lows = integer_at(call, V_STEPS), integer_at(call, V_LOWS)
        if integer_at(call, SHARES_VALUES) != 0:
            steps, lows = integer_at(call, K_STEPS), integer_at(call, K_LOWS)
        read_value_steps(page, slot, key, count, integer_at(call, D_V), steps, lows, steps_in(room))

    return CodeBlocks(begin, queries_in, locate, key_steps, value_steps)


@compiled()
def steps_in(room: Any) -> Any:
    """Return where the steps are."""
    return moved(room, 2 * HEAD_WORDS)


@compiled()
def _ask(address: Any, num_bytes: Any) -> None:
    """Ask for the lines of some bytes."""
    for number in range(0, (num_bytes + 3) // 4, LINE_NUMBERS):
        prefetch(pointer(address), number)


def steps_asker(kind: str) -> Any:
    """Make what asks for the steps of a run of rows in a page."""

    @compiled()
    def exact(page, slot, count, size, steps, lows):
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

    return {EXACT: exact, PER_ROW: per_row, PER_CHANNEL: per_channel, PER_GROUP: per_group}[kind]


def first_step(kind: str) -> Any:
    """Make what returns where the steps of a block's row begin among those of all."""

    @compiled()
    def none(row, size):
        return 0

    @compiled()
    def per_row(row, size):
        return row

    @compiled()
    def per_group(row, size):
        return 2 * row * ((size + GROUP - 1) // GROUP)

    return {PER_ROW: per_row, PER_GROUP: per_group}.get(kind, none)


def steps_reader(codes: Codes, beside: int) -> Any:
    """Make what brings a run's steps to ``target`` as float32; its first row is the block's row ``key``."""
    halves, (low_unit, high_unit) = codes.halves, codes.units
    widen_steps = widen_beside(half_numbers, 2, beside)

    @compiled()
    def exact(page, slot, key, count, size, steps, lows, target):
        pass

    @compiled()
    def per_row(page, slot, key, count, size, steps, lows, target):
        for row in range(count):
            scale = number_at(pointer(page + steps), slot + row) if page != 0 else np.float32(0)
            put_number(target, key + row, scale)

    @compiled()
    def per_channel(page, slot, key, count, size, steps, lows, target):
        if page == 0:
            write_zeros(2 * beside * size, target)
            return
        half, vector = size // halves, beside * CHAINS
        high_target = moved(target, 2 * beside * half)
        widen_steps(page + steps, np.float32(1 / low_unit), target, 2 * vector, half)
        widen_steps(page + steps + 2 * half, np.float32(1 / high_unit), high_target, 2 * vector, size - half)
        widen_steps(page + lows, np.float32(1), moved(target, vector), 2 * vector, size)

    @compiled()
    def per_group(page, slot, key, count, size, steps, lows, target):
        groups = (size + GROUP - 1) // GROUP
        before, own = 2 * slot * groups, moved(target, 2 * key * groups)
        if page == 0:
            write_zeros(2 * count * groups, own)
            return
        first_steps, first_lows = page + steps + before, page + lows + before
        for place in range(widen_pairs(first_steps, first_lows, own, count * groups), count * groups):
            put_number(own, 2 * place, number_of_half(first_steps + 2 * place))
            put_number(own, 2 * place + 1, number_of_half(first_lows + 2 * place))

    return {EXACT: exact, PER_ROW: per_row, PER_CHANNEL: per_channel, PER_GROUP: per_group}[codes.steps]


@compiled()
def write_zeros(count: Any, numbers: Any) -> None:
    """Write steps of a page that is gone."""
    for number in range(count):
        put_number(numbers, number, np.float32(0))
