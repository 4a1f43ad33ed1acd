"""One block of keys against a panel of queries: scores before the softmax, weighted values after it.

In arrays and pages of float32 run by run, as they lie in memory; with a layout that reads codes, by tables
of rows.
"""

from typing import Any, NamedTuple

import numpy as np

from qkv.kernels.attention_codes import (
    KEY_ROWS,
    NUM_RUNS,
    RUN_LENGTHS,
    VALUE_ROWS,
    code_room,
    first_step,
    make_code_blocks,
    steps_in,
)
from qkv.kernels.attention_layouts import Layout
from qkv.kernels.attention_words import D_V, K_CODES, V_CODES, D, G, H, T
from qkv.kernels.codes import PER_CHANNEL
from qkv.kernels.compiler import compiled
from qkv.kernels.key_rows import find_keys, find_values, run_length, steps_ahead
from qkv.kernels.memory import fma, integer_at, moved, number_at, put_number


class BlockSteps(NamedTuple):
    """The compiled steps for a block, and the room they need.

    Attributes
    ----------
    used_lanes : ``(call, panel)``
        Return how many lanes of a panel hold a query.
    begin : ``(call, queries, room)``
        To be called before the first of neighbouring blocks.
    score : ``(call, pair, panel, queries, scores, room, widened, block, num_keys)``
        Compute the scores of a block of keys.
    mix : ``(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys)``
        Add the block's weighted values to the output. Where ``hides``, ``scores`` are those from before the
        softmax, ``-inf`` where a lane does not see a key.
    """

    used_lanes: Any
    begin: Any
    score: Any
    mix: Any


def room_numbers(layout: Layout, size: int, value_size: int) -> int:
    """Return how many float32 numbers ``room`` takes."""
    if layout.codes:
        return code_room(layout.lanes, layout.beside, size, value_size)
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
    lanes, score_keys, mix_values = layout.lanes, layout.score, layout.mix
    key_codes, value_codes = layout.codes
    by_page = key_codes.steps == PER_CHANNEL
    begin, queries_in, locate, key_steps, value_steps = make_code_blocks(
        key_codes, value_codes, lanes, layout.beside
    )
    step_of_row = first_step(value_codes.steps)

    @compiled()
    def score(call, pair, panel, queries, scores, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        size, used, as_told = integer_at(call, D), used_lanes(call, panel), queries_in(call, room)
        key, scored = 0, 0
        for run in range(integer_at(table, NUM_RUNS)):
            count = min(integer_at(table, RUN_LENGTHS + run), num_keys - key)
            if count <= 0:
                break
            key_steps(call, table, run, key, count, room)
            key += count
            if by_page or key == num_keys:
                rows, next_rows = table + 8 * (KEY_ROWS + scored), following + 8 * (KEY_ROWS + scored)
                some = moved(scores, scored * lanes)
                score_keys(rows, next_rows, steps_in(room), as_told, used, some, key - scored, size)
                scored = key

    @compiled()
    def mix(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys):
        table, following = locate(call, pair, block, room)
        size, used = integer_at(call, D_V), used_lanes(call, panel)
        key = 0
        for run in range(integer_at(table, NUM_RUNS)):
            count = min(integer_at(table, RUN_LENGTHS + run), num_keys - key)
            if count <= 0:
                break
            value_steps(call, table, run, key, count, room)
            key += count
        rows, next_rows, steps = table + 8 * VALUE_ROWS, following + 8 * VALUE_ROWS, steps_in(room)
        if not hides:
            mix_values(rows, next_rows, steps, weights, output, used, num_keys, size)
            return
        key = 0
        while key < num_keys:
            some, position = moved(weights, key * lanes), block + key
            count = run_length(call, pair, position, num_keys - key)
            values, row = find_values(call, pair, position, count, widened)
            if all_finite(values, row, count, size):
                own = moved(steps, step_of_row(key, size))
                mix_values(rows + 8 * key, next_rows + 8 * key, own, some, output, used, count, size)
            else:
                mix_visible(values, row, moved(scores, key * lanes), some, output, count, size)
            key += count

    return BlockSteps(used_lanes, begin, score, mix)
