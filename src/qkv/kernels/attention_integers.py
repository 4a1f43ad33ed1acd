"""One block of keys against a few queries where codes are whole numbers: scores and weighted values.

A row of codes stands for ``low + code * step``. What does not depend on the code is taken out of the sums
over codes, which are `integer_products`:

- Rows with a step of their own, and no low: a score is the sum times the step, and a weight takes the step of
  its value.
- Keys with a step per channel: a query takes the steps of a page's channels, once for each page, and its
  product with the lows is the same for all keys of the page.
- Values with a step per group of channels: a weight takes the step of each group, and a page's weighted lows
  are added to all channels of their group.

What comes out for a query depends on the keys it sees alone: its scale is its own, and so are its weights',
for a block of rows with a step each, or for a page.

The room, in this order: tables and zeros (`attention_codes`); the queries as words, their scales and their
products with the lows; steps and lows; weights times steps; these as pairs of words, their scales and the
weighted lows.
"""

from typing import Any

import numpy as np

from qkv.kernels.attention_codes import (
    HEAD_WORDS,
    KEY_ROWS,
    NUM_RUNS,
    RUN_LENGTHS,
    RUN_PAGES,
    RUN_SLOTS,
    VALUE_ROWS,
    make_row_tables,
    table_room,
)
from qkv.kernels.attention_layouts import BlockSteps, Layout
from qkv.kernels.attention_words import (
    BLOCK_KEYS,
    D_V,
    FP16,
    GROUP,
    K_LOWS,
    K_STEPS,
    SHARES_VALUES,
    V_LOWS,
    V_STEPS,
    D,
)
from qkv.kernels.codes import PER_CHANNEL, PER_GROUP
from qkv.kernels.compiler import compiled
from qkv.kernels.integer_operands import GROUPS, LANES, LARGEST, group_weights, row_weights, whole_rows
from qkv.kernels.integer_products import PAIRS
from qkv.kernels.key_rows import widen_floats
from qkv.kernels.memory import address_of, integer_at, moved, number_at, pointer, put_integer, put_number

LARGEST_SUM = 2**31 - 1
"""That 32 bits hold."""

FOUR_ONES = 0x3C003C003C003C00
"""As float16."""

COUNTS = 1, 2, 4
"""Rows that are written as words at once."""

write_1, write_2, write_4 = (whole_rows(count) for count in COUNTS)
weigh_all, weigh_few = group_weights(1), group_weights(2)


def integer_room(size: int, value_size: int) -> int:
    """Return how many float32 numbers the steps need."""
    groups = -(-value_size // GROUP)
    queries = LANES * size // 2 + 2 * LANES
    steps = 2 * max(size, BLOCK_KEYS * groups)
    weights = GROUPS * BLOCK_KEYS * LANES + groups * (PAIRS + 2) * LANES
    return table_room(size, value_size) + queries + steps + weights


@compiled()
def num_groups(size: Any) -> Any:
    """Return how many groups of channels a row of values has."""
    return (size + GROUP - 1) // GROUP


@compiled()
def most_steps(call: Any) -> Any:
    """Return how many steps there are at most: of a page's channels, or of the groups of a block's keys."""
    return max(integer_at(call, D), BLOCK_KEYS * num_groups(integer_at(call, D_V)))


@compiled()
def words_of(call: Any, room: Any) -> Any:
    """Return where the queries as words are."""
    return moved(room, 2 * HEAD_WORDS + max(integer_at(call, D), integer_at(call, D_V)))


@compiled()
def scales_of(call: Any, room: Any) -> Any:
    """Return where the queries' scales are; their products with the lows are behind."""
    return moved(words_of(call, room), LANES * integer_at(call, D) // 2)


@compiled()
def steps_of(call: Any, room: Any) -> Any:
    """Return where steps are: of rows, of a page's channels, or of its keys' groups."""
    return moved(scales_of(call, room), 2 * LANES)


@compiled()
def lows_of(call: Any, room: Any) -> Any:
    """Return where lows are, as many as there can be steps."""
    return moved(steps_of(call, room), most_steps(call))


@compiled()
def products_of(call: Any, room: Any) -> Any:
    """Return where weights times steps are."""
    return moved(lows_of(call, room), most_steps(call))


@compiled()
def pairs_of(call: Any, room: Any) -> Any:
    """Return where weights as pairs of words are; scales and weighted lows are behind."""
    return moved(products_of(call, room), GROUPS * BLOCK_KEYS * LANES)


@compiled()
def read_factors(call: Any, table: Any, num_keys: Any, place: Any, room: Any) -> Any:
    """Bring the steps of a block's rows to where steps are; 0 of pages that are gone."""
    key, factors = 0, steps_of(call, room)
    for run in range(integer_at(table, NUM_RUNS)):
        page, slot = integer_at(table, RUN_PAGES + run), integer_at(table, RUN_SLOTS + run)
        count = min(integer_at(table, RUN_LENGTHS + run), num_keys - key)
        for row in range(count):
            here = pointer(page + integer_at(call, place))
            put_number(factors, key + row, number_at(here, slot + row) if page != 0 else np.float32(0))
        key += count
    return factors


@compiled()
def read_groups(call: Any, table: Any, num_keys: Any, room: Any) -> None:
    """Bring steps and lows of the groups of a block's keys to where these are; 0 of pages that are gone."""
    key, groups, steps, lows = 0, num_groups(integer_at(call, D_V)), steps_of(call, room), lows_of(call, room)
    for run in range(integer_at(table, NUM_RUNS)):
        page, slot = integer_at(table, RUN_PAGES + run), integer_at(table, RUN_SLOTS + run)
        count = min(integer_at(table, RUN_LENGTHS + run), num_keys - key)
        before, own_steps, own_lows = 2 * slot * groups, moved(steps, key * groups), moved(lows, key * groups)
        if page != 0 and count > 0:
            widen_floats(FP16, page + integer_at(call, V_STEPS) + before, count * groups, own_steps)
            widen_floats(FP16, page + integer_at(call, V_LOWS) + before, count * groups, own_lows)
        else:
            for number in range(count * groups):
                put_number(own_steps, number, np.float32(0))
                put_number(own_lows, number, np.float32(0))
        key += count


def make_integer_steps(layout: Layout, used_lanes: Any) -> BlockSteps:
    """Make the steps for a layout whose ``integers`` say what keys and values are."""
    assert layout.integers is not None and layout.lanes == LANES
    keys, values = layout.integers
    forget, locate = make_row_tables(keys, values)
    make_score = _score_by_page if keys.steps == PER_CHANNEL else _score_by_row
    make_mix = _mix_by_group if values.steps == PER_GROUP else _mix_by_row
    tell, score = make_score(layout.score, _queries_writer(keys.most), locate, used_lanes)

    @compiled()
    def begin(call, queries, room):
        forget(call, room)
        for number in range(LANES * integer_at(call, D) // 2 + 2 * LANES):
            put_number(words_of(call, room), number, np.float32(0))
        tell(call, queries, room)

    return BlockSteps(used_lanes, begin, score, make_mix(layout.mix, locate, used_lanes))


def _queries_writer(most: int) -> Any:
    """Make what writes queries times the steps of channels as words, for codes up to ``most``."""

    @compiled()
    def write_queries(call, queries, used, steps, lows, room):
        size = integer_at(call, D)
        words, scales = address_of(words_of(call, room)), scales_of(call, room)
        totals, largest = moved(scales, LANES), np.float32(min(LARGEST, LARGEST_SUM // (most * size)))
        if used == 1:
            write_1(queries, steps, lows, words, scales, totals, largest, size)
        elif used == 2:
            write_2(queries, steps, lows, words, scales, totals, largest, size)
        else:
            write_4(queries, steps, lows, words, scales, totals, largest, size)
        if used > 4:
            others, words = moved(queries, 4 * size), words + 8 * size
            write_4(others, steps, lows, words, moved(scales, 4), moved(totals, 4), largest, size)

    return write_queries


def _score_by_row(score_keys: Any, write_queries: Any, locate: Any, used_lanes: Any) -> tuple[Any, Any]:
    """Make the scores of keys with a step each, and what tells the queries once for all of them."""

    @compiled()
    def tell(call, queries, room):
        ones, zeros = address_of(steps_of(call, room)), address_of(lows_of(call, room))
        for number in range(integer_at(call, D) // 4):
            put_integer(ones, number, FOUR_ONES)
            put_integer(zeros, number, 0)
        write_queries(call, queries, LANES, ones, zeros, room)

    @compiled()
    def score(call, pair, panel, queries, scores, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        rows, next_rows = table + 8 * KEY_ROWS, following + 8 * KEY_ROWS
        factors, words = read_factors(call, table, num_keys, K_STEPS, room), address_of(words_of(call, room))
        scales, used = scales_of(call, room), used_lanes(call, panel)
        lows = moved(scales, LANES)
        score_keys(
            rows, next_rows, factors, words, used, scales, lows, scores, num_keys, integer_at(call, D)
        )  # fmt: skip

    return tell, score


def _score_by_page(score_keys: Any, write_queries: Any, locate: Any, used_lanes: Any) -> tuple[Any, Any]:
    """Make the scores of keys with a step per channel; queries are told anew for each page."""

    @compiled()
    def tell(call, queries, room):
        pass

    @compiled()
    def score(call, pair, panel, queries, scores, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        words, scales, used = address_of(words_of(call, room)), scales_of(call, room), used_lanes(call, panel)
        lows, key = moved(scales, LANES), 0
        for run in range(integer_at(table, NUM_RUNS)):
            count = min(integer_at(table, RUN_LENGTHS + run), num_keys - key)
            if count <= 0:
                break
            page = integer_at(table, RUN_PAGES + run)
            if page != 0:
                steps, page_lows = page + integer_at(call, K_STEPS), page + integer_at(call, K_LOWS)
                write_queries(call, queries, used, steps, page_lows, room)
            rows, next_rows = table + 8 * (KEY_ROWS + key), following + 8 * (KEY_ROWS + key)
            some = moved(scores, key * LANES)
            score_keys(
                rows, next_rows, scales, words, used, scales, lows, some, count, integer_at(call, D)
            )  # fmt: skip
            key += count

    return tell, score


def _mix_by_row(mix_values: Any, locate: Any, used_lanes: Any) -> Any:
    """Make the weighted sum of values with a step each."""

    @compiled()
    def mix(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        rows, next_rows = table + 8 * VALUE_ROWS, following + 8 * VALUE_ROWS
        steps = V_STEPS if integer_at(call, SHARES_VALUES) == 0 else K_STEPS
        factors, pairs = read_factors(call, table, num_keys, steps, room), pairs_of(call, room)
        scales, words, used = moved(pairs, PAIRS * LANES), address_of(pairs), used_lanes(call, panel)
        row_weights(weights, scores if hides else weights, factors, words, scales, num_keys)
        size = integer_at(call, D_V)
        mix_values(rows, next_rows, words, used, scales, scales, output, num_keys, size)

    return mix


def _mix_by_group(mix_values: Any, locate: Any, used_lanes: Any) -> Any:
    """Make the weighted sum of values with a step per group of channels."""

    @compiled()
    def mix(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        rows, next_rows = table + 8 * VALUE_ROWS, following + 8 * VALUE_ROWS
        size, used = integer_at(call, D_V), used_lanes(call, panel)
        groups, pairs, products = num_groups(size), pairs_of(call, room), products_of(call, room)
        scales, words = moved(pairs, groups * PAIRS * LANES), address_of(pairs)
        totals, steps, lows = moved(scales, groups * LANES), steps_of(call, room), lows_of(call, room)
        marks = scores if hides else weights
        read_groups(call, table, num_keys, room)
        if used <= LANES // 2:
            weigh_few(weights, marks, steps, lows, products, words, scales, totals, num_keys, groups)
        else:
            weigh_all(weights, marks, steps, lows, products, words, scales, totals, num_keys, groups)
        mix_values(rows, next_rows, words, used, scales, totals, output, num_keys, size)

    return mix
