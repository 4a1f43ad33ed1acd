"""One block of keys against a panel of queries: scores before the softmax, weighted values after it.

In arrays and pages of float32 run by run, as they lie in memory; with a layout that reads codes, by tables
of rows.
"""

from typing import Any

import numpy as np

from qkv.kernels.attention_codes import HEAD_WORDS, KEY_ROWS, VALUE_ROWS, make_row_tables, table_room
from qkv.kernels.attention_integers import integer_room, make_integer_steps
from qkv.kernels.attention_layouts import BlockSteps, Layout
from qkv.kernels.attention_words import D_V, K_CODES, V_CODES, D, G, H, T
from qkv.kernels.compiler import compiled
from qkv.kernels.key_rows import find_keys, find_values, run_length, steps_ahead
from qkv.kernels.memory import fma, integer_at, moved, number_at, put_number
from qkv.kernels.micro import CHAINS


def room_numbers(layout: Layout, size: int, value_size: int) -> int:
    """Return how many float32 numbers ``room`` takes."""
    if layout.integers:
        return integer_room(size, value_size)
    if layout.codes:
        return table_room(size, value_size) + layout.lanes * layout.beside * size
    return layout.chain_numbers


def make_block_steps(layout: Layout) -> BlockSteps:
    """Make the steps for a layout of queries."""
    lanes, place = layout.lanes, layout.place

    @compiled()
    def used_lanes(call, panel):
        group = integer_at(call, H) // integer_at(call, G)
        return min(lanes, group * integer_at(call, T) - panel * lanes)

    @compiled()
    def all_finite(values, row, num_keys, size):
        """Whether a run of values holds no NaN and no infinity."""
        for key in range(num_keys):
            wrong = 0
            for d in range(size):
                value = number_at(values, key * row + d)
                wrong |= int(value - value != 0)
            if wrong:
                return False
        return True

    @compiled()
    def mix_visible(values, row, scores, weights, output, num_keys, size):
        """As the product, but a hidden key's values are never multiplied, not even by 0."""
        for key in range(num_keys):
            for d in range(size):
                value = number_at(values, key * row + d)
                for lane in range(lanes):
                    if number_at(scores, key * lanes + lane) != -np.inf:
                        weight = number_at(weights, key * lanes + lane)
                        total = number_at(output, place(lane, d, size))
                        put_number(output, place(lane, d, size), fma(value, weight, total))

    if layout.integers:
        return make_integer_steps(layout, used_lanes)
    if layout.codes:
        return _code_steps(layout, used_lanes, all_finite, mix_visible)
    return _row_steps(layout, used_lanes, all_finite, mix_visible)


def _row_steps(layout: Layout, used_lanes: Any, all_finite: Any, mix_visible: Any) -> BlockSteps:
    lanes, score_run, mix_run = layout.lanes, layout.score, layout.mix

    @compiled()
    def begin(call, queries, room):
        pass

    @compiled()
    def score(call, pair, panel, queries, scores, room, widened, block, num_keys):
        size, key, used = integer_at(call, D), 0, used_lanes(call, panel)
        while key < num_keys:
            some, position = moved(scores, key * lanes), block + key
            count = run_length(call, pair, position, num_keys - key)
            keys, row = find_keys(call, pair, position, count, widened)
            ahead = steps_ahead(call, pair, position, count, K_CODES)
            score_run(keys, row, ahead, queries, used, room, some, count, size)
            key += count

    @compiled()
    def mix(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys):
        size, key, used = integer_at(call, D_V), 0, used_lanes(call, panel)
        while key < num_keys:
            some, position = moved(weights, key * lanes), block + key
            count = run_length(call, pair, position, num_keys - key)
            values, row = find_values(call, pair, position, count, widened)
            if hides and not all_finite(values, row, count, size):
                mix_visible(values, row, moved(scores, key * lanes), some, output, count, size)
            else:
                ahead = steps_ahead(call, pair, position, count, V_CODES)
                mix_run(values, row, ahead, some, output, used, count, size)
            key += count

    return BlockSteps(used_lanes, begin, score, mix)


def _code_steps(layout: Layout, used_lanes: Any, all_finite: Any, mix_visible: Any) -> BlockSteps:
    assert layout.codes is not None
    lanes, beside, score_keys, mix_values = layout.lanes, layout.beside, layout.score, layout.mix
    forget, locate = make_row_tables(*layout.codes)

    @compiled()
    def queries_in(call, room):
        """Return where the queries are as products take them."""
        return moved(room, 2 * HEAD_WORDS + max(integer_at(call, D), integer_at(call, D_V)))

    @compiled()
    def begin(call, queries, room):
        """Write down each `CHAINS` numbers of the queries, lane by lane, for each key beside."""
        forget(call, room)
        size, told, place = integer_at(call, D), queries_in(call, room), 0
        for first in range(0, size, CHAINS):
            for lane in range(lanes):
                for _ in range(beside):
                    for d in range(first, first + CHAINS):
                        put_number(told, place, number_at(queries, lane * size + d))
                        place += 1

    @compiled()
    def score(call, pair, panel, queries, scores, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        size, used, as_told = integer_at(call, D), used_lanes(call, panel), queries_in(call, room)
        rows, next_rows = table + 8 * KEY_ROWS, following + 8 * KEY_ROWS
        score_keys(rows, next_rows, as_told, used, scores, num_keys, size)

    @compiled()
    def mix(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        size, used = integer_at(call, D_V), used_lanes(call, panel)
        rows, next_rows = table + 8 * VALUE_ROWS, following + 8 * VALUE_ROWS
        if not hides:
            mix_values(rows, next_rows, weights, output, used, num_keys, size)
            return
        key = 0
        while key < num_keys:
            some, position = moved(weights, key * lanes), block + key
            count = run_length(call, pair, position, num_keys - key)
            values, row = find_values(call, pair, position, count, widened)
            if all_finite(values, row, count, size):
                mix_values(rows + 8 * key, next_rows + 8 * key, some, output, used, count, size)
            else:
                mix_visible(values, row, moved(scores, key * lanes), some, output, count, size)
            key += count

    return BlockSteps(used_lanes, begin, score, mix)
