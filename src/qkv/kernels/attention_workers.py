"""Attention in compiled code: one canonical order of operations, however the work is cut.

Queries lie in the lanes of vectors; keys pass by one after another. The scores of a block of keys
against a panel of queries are a product held in registers, the online softmax works lane by lane
without any sum across lanes, and the weighted values are again a product. Neither keys nor values
are copied or transposed, and the H/G query heads of a group share a panel, so that each key is
read once for all of them.

The canonical order, for each query: blocks of 64 keys at absolute positions, within a block the
keys in order; after each 1024 keys the state begins anew, and the states are joined from left to
right. Prefill and decode cut the work differently, over panels and over stretches of keys, but
neither changes that order, so the bits do not depend on the cut, the batch or the threads.

The ladder, float32, two threads of a processor with AVX-512 on units of half its width. Prefill: 8
heads of 128, 2048 positions. Decode: 32 query and 8 key heads of 128, 32,768 keys. Time against this
file, medians within one run each:

=============================================================  ========  ========
version                                                        prefill   decode
=============================================================  ========  ========
tiles in NumPy (`ops.tiles`)                                    6.3x      2.6x
panels of 8 queries for everything                              1.25x     1.3x
panels of 32 queries for everything                             1.0x      1.5x
8 for decode, 32 for prefill                                    1.0x      1.3x
and rows of keys and values asked for ahead of their use: here  1.0x      1.0x
=============================================================  ========  ========

Prefill reaches 165 to 190 GFLOP/s where the rectangle of registers alone, fed from the cache, reaches
230: exp, rescaling and the diagonal take the rest. Decode waits for memory: it reads 15 GB/s where
one product reads 31 to 45, though from the second-level cache it reads 17 on each thread. Asking for a
whole block ahead at once bought 1.1x, asking row by row between products 1.3x. Scores in chains of 16
with their sums, for accuracy, cost nothing that could be told from noise.

A worker is one thread's share of a call. It gets everything by addresses: the words listed below, and
a workspace of its own, which is bounded by the tile and not by T or S.
"""

import math
from typing import Any

import numpy as np

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import (
    byte_at,
    fma,
    integer_at,
    moved,
    number_at,
    pointer,
    prefetch,
    put_integer,
    put_number,
)
from qkv.kernels.micro import merge_states, online_softmax, scale_rows, tile_product

BLOCK_KEYS = 64
STRETCH_KEYS = 1024
"""Keys after which the state begins anew; a multiple of `BLOCK_KEYS`."""

SCORE_LINK = 16
"""A score of D products is added up in chains of so many, since an error in a score of 100 is an
error of its size in the weight: one chain of 64 costs up to 3.6 times the error of a sum by halves."""

LINE_NUMBERS = 16
"""Float32 numbers in one line of the cache."""

NO_LIMIT = 1 << 40
"""A window's reach that no text exceeds."""

# The words of a call: 64-bit integers. Four each for q, k, v: an address, and the steps of batch,
# head and position, in numbers. Five each for mask and bias: an address, 0 for none, and the steps
# of batch, head, query and key, in elements, 0 where they broadcast.
Q, K, V, MASK, BIAS = 0, 4, 8, 12, 17
(
    OUT,  # (B, H, T, D_v) float32
    LSE,  # (B, H, T) float32
    PARTS,  # (pairs of B and G, panels, stretches, D_v + 2, lanes) float32; decode only
    WORKSPACE,  # (workers, WORKSPACE_SIZE) float32
    WORKSPACE_SIZE,
    SPANS,  # (workers, lanes, 2) int64
    NUMBERS,  # scale, softcap (0 = none) as float32
    HEAD_NUMBERS,  # (H, 2) float32: ALiBi slope (0 = none) and sink (-inf = none)
    ROWS,  # (B, 3) int64: key position of query 0, valid queries, valid keys
    H,
    G,
    T,
    D,
    D_V,
    LEFT,
    RIGHT,
    PAIRS,  # B * G
    PANELS,
    STRETCHES,
    WORKERS,
    HAS_SLOPES,
    NUM_WORDS,
) = range(22, 44)
ADDRESS, BATCH, HEAD, QUERY, KEY = range(5)


def make_workers(rows: int, vectors: int, width: int) -> tuple[Any, Any, Any]:
    """Make the workers for panels of ``vectors * width`` queries: prefill, stretches, joining.

    ``rows`` keys, or rows of the output, are held in registers at once.
    """
    lanes = vectors * width
    # A score has two registers, its chain and its sum; with one vector a row both fit all the same.
    score_rows = rows if vectors == 1 else max(1, rows // 2)
    score_tile = tile_product(score_rows, vectors, width, adds=False, link=SCORE_LINK)
    score_row = tile_product(1, vectors, width, adds=False, link=SCORE_LINK)
    mix_tile = tile_product(rows, vectors, width, adds=True)
    mix_row = tile_product(1, vectors, width, adds=True)
    softmax_step = online_softmax(vectors, width)
    merge_step = merge_states(vectors, width)
    rescale_step = scale_rows(vectors, width)

    @compiled()
    def fill_panel(call, pair, panel, queries, spans):
        """Put a panel's queries into lanes; ``spans`` gets each one's first key and the one past its last."""
        num_heads, num_key_heads, num_queries = integer_at(call, H), integer_at(call, G), integer_at(call, T)
        group = num_heads // num_key_heads
        b, g = pair // num_key_heads, pair % num_key_heads
        row = integer_at(call, ROWS) + 24 * b
        offset, q_length, kv_length = integer_at(row, 0), integer_at(row, 1), integer_at(row, 2)
        start = moved(pointer(integer_at(call, Q)), b * integer_at(call, Q + BATCH))
        for lane in range(lanes):
            h, t = g * group + (panel * lanes + lane) % group, (panel * lanes + lane) // group
            first, end = 0, 0 if t < num_queries else NO_LIMIT  # an unused lane needs no masking
            if t < q_length:
                first = max(0, t + offset - integer_at(call, LEFT))
                end = max(first, min(kv_length, t + offset + integer_at(call, RIGHT) + 1))
            put_integer(spans, 2 * lane, first)
            put_integer(spans, 2 * lane + 1, end)
            source = moved(start, h * integer_at(call, Q + HEAD) + t * integer_at(call, Q + QUERY))
            for d in range(integer_at(call, D)):
                value = number_at(source, d) if t < num_queries else np.float32(0)
                put_number(queries, d * lanes + lane, value)

    @compiled()
    def reach(spans):
        """Return the keys any lane sees, from the beginning of a block on."""
        start, stop = NO_LIMIT, 0
        for lane in range(lanes):
            first, end = integer_at(spans, 2 * lane), integer_at(spans, 2 * lane + 1)
            if first < end < NO_LIMIT:
                start, stop = min(start, first), max(stop, end)
        return min(start, stop) // BLOCK_KEYS * BLOCK_KEYS, stop

    @compiled()
    def clear(state, num_numbers):
        """Begin with nothing seen: output and denominator 0, highest score -inf."""
        for place in range(num_numbers * lanes):
            put_number(state, place, np.float32(0))
        for lane in range(lanes):
            put_number(state, (num_numbers - 2) * lanes + lane, np.float32(-np.inf))

    @compiled()
    def adjust_scores(call, pair, panel, scores, block, num_keys):
        """Apply scale, softcap, bias, ALiBi and mask, in this order."""
        num_key_heads = integer_at(call, G)
        group = integer_at(call, H) // num_key_heads
        b, g = pair // num_key_heads, pair % num_key_heads
        offset = integer_at(integer_at(call, ROWS) + 24 * b, 0)
        scale = number_at(pointer(integer_at(call, NUMBERS)), 0)
        softcap = number_at(pointer(integer_at(call, NUMBERS)), 1)
        mask, bias = integer_at(call, MASK), integer_at(call, BIAS)
        for lane in range(lanes):
            h, t = g * group + (panel * lanes + lane) % group, (panel * lanes + lane) // group
            if t >= integer_at(call, T):
                break
            slope = number_at(pointer(integer_at(call, HEAD_NUMBERS)), 2 * h)
            bias_row = b * integer_at(call, BIAS + BATCH) + h * integer_at(call, BIAS + HEAD)
            bias_row += t * integer_at(call, BIAS + QUERY)
            mask_row = b * integer_at(call, MASK + BATCH) + h * integer_at(call, MASK + HEAD)
            mask_row += t * integer_at(call, MASK + QUERY)
            for key in range(num_keys):
                position = block + key
                place = key * lanes + lane
                score = number_at(scores, place) * scale
                if softcap != 0:
                    score = softcap * np.float32(math.tanh(score / softcap))
                if bias != 0:
                    added = number_at(pointer(bias), bias_row + position * integer_at(call, BIAS + KEY))
                    score = np.float32(-np.inf) if added == -np.inf else score + added
                if slope != 0:
                    score -= slope * np.float32(abs(position - t - offset))
                if mask != 0 and byte_at(mask + mask_row + position * integer_at(call, MASK + KEY)) == 0:
                    score = np.float32(-np.inf)
                put_number(scores, place, score)

    @compiled()
    def hide_out_of_reach(spans, scores, block, num_keys):
        """Write -inf where a lane does not see a key of the block, by order, window or length."""
        hides = False
        for lane in range(lanes):
            first, end = integer_at(spans, 2 * lane) - block, integer_at(spans, 2 * lane + 1) - block
            if first > 0 or end < num_keys:
                hides = True
                for key in range(num_keys):
                    if key < first or key >= end:
                        put_number(scores, key * lanes + lane, np.float32(-np.inf))
        return hides

    @compiled()
    def fetch_rows(start, row, size):
        """Ask for rows ahead of their use, in the order of memory.

        The products go down a column of a block at a time, from which the processor does not guess
        what is next.
        """
        for key in range(score_rows):
            for number in range(0, size, LINE_NUMBERS):
                prefetch(start, key * row + number)

    @compiled()
    def all_finite(values, row, num_keys, size):
        """Whether a block's values hold no NaN and no infinity."""
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
        """As the product, but a hidden key's values are never multiplied, not even by 0.

        ``scores`` are those from before the softmax, ``-inf`` where hidden.
        """
        for key in range(num_keys):
            for d in range(size):
                value = number_at(values, key * row + d)
                for lane in range(lanes):
                    if number_at(scores, key * lanes + lane) != -np.inf:
                        weight = number_at(weights, key * lanes + lane)
                        total = number_at(output, d * lanes + lane)
                        put_number(output, d * lanes + lane, fma(value, weight, total))

    @compiled()
    def attend_stretch(call, pair, panel, queries, spans, start, stop, state, scratch):
        """Attend a panel to keys start .. stop-1, which lie in one stretch, from nothing.

        ``state`` is output (D_v, lanes), highest score (lanes), denominator (lanes).
        """
        b, g = pair // integer_at(call, G), pair % integer_at(call, G)
        size, value_size = integer_at(call, D), integer_at(call, D_V)
        key_row, value_row = integer_at(call, K + QUERY), integer_at(call, V + QUERY)
        keys = moved(
            pointer(integer_at(call, K)), b * integer_at(call, K + BATCH) + g * integer_at(call, K + HEAD)
        )
        values = moved(
            pointer(integer_at(call, V)), b * integer_at(call, V + BATCH) + g * integer_at(call, V + HEAD)
        )
        has_grid = integer_at(call, MASK) != 0 or integer_at(call, BIAS) != 0
        adjusts = has_grid or integer_at(call, HAS_SLOPES) != 0
        adjusts = adjusts or number_at(pointer(integer_at(call, NUMBERS)), 1) != 0
        # A positive scale may wait until the softmax; one of 0 or less would turn a hidden -inf over.
        scale = number_at(pointer(integer_at(call, NUMBERS)), 0)
        adjusts = adjusts or not scale > 0
        scale = np.float32(1) if adjusts else scale
        scores, rescale = scratch, moved(scratch, 2 * BLOCK_KEYS * lanes)
        copy = moved(scratch, BLOCK_KEYS * lanes)
        highest, denominator = moved(state, value_size * lanes), moved(state, (value_size + 1) * lanes)
        clear(state, value_size + 2)
        for block in range(start, stop, BLOCK_KEYS):
            num_keys = min(BLOCK_KEYS, stop - block)
            block_keys, block_values = moved(keys, block * key_row), moved(values, block * value_row)
            whole = num_keys // score_rows * score_rows
            for key in range(0, whole, score_rows):
                fetch_rows(moved(block_keys, (BLOCK_KEYS + key) * key_row), key_row, size)
                fetch_rows(moved(block_values, key * value_row), value_row, value_size)
                beside = moved(scores, key * lanes)
                score_tile(moved(block_keys, key * key_row), key_row, 1, queries, lanes, beside, lanes, size)
            for key in range(whole, num_keys):
                beside = moved(scores, key * lanes)
                score_row(moved(block_keys, key * key_row), key_row, 1, queries, lanes, beside, lanes, size)
            if adjusts:
                adjust_scores(call, pair, panel, scores, block, num_keys)
            hides = hide_out_of_reach(spans, scores, block, num_keys) or has_grid
            careful = hides and not all_finite(block_values, value_row, num_keys, value_size)
            if careful:
                for place in range(num_keys * lanes):
                    put_number(copy, place, number_at(scores, place))
            softmax_step(scores, num_keys, scale, highest, denominator, rescale)
            rescale_step(state, value_size, rescale)
            if careful:
                mix_visible(block_values, value_row, copy, scores, state, num_keys, value_size)
                continue
            whole = value_size // rows * rows
            for d in range(0, whole, rows):
                beside = moved(state, d * lanes)
                mix_tile(moved(block_values, d), 1, value_row, scores, lanes, beside, lanes, num_keys)
            for d in range(whole, value_size):
                beside = moved(state, d * lanes)
                mix_row(moved(block_values, d), 1, value_row, scores, lanes, beside, lanes, num_keys)

    @compiled()
    def begin_panel(call, pair, panel, state):
        """Begin with nothing seen but the sinks: keys seen already, whose value is 0."""
        value_size = integer_at(call, D_V)
        clear(state, value_size + 2)
        group = integer_at(call, H) // integer_at(call, G)
        for lane in range(lanes):
            h = pair % integer_at(call, G) * group + (panel * lanes + lane) % group
            sink = number_at(pointer(integer_at(call, HEAD_NUMBERS)), 2 * h + 1)
            put_number(state, value_size * lanes + lane, sink)
            put_number(state, (value_size + 1) * lanes + lane, np.float32(0 if sink == -np.inf else 1))

    @compiled()
    def join(call, state, part):
        """Join a later stretch's state to what was seen so far."""
        output, highest = integer_at(call, D_V) * lanes, (integer_at(call, D_V) + 1) * lanes
        merge_step(
            state, moved(state, output), moved(state, highest),
            part, moved(part, output), moved(part, highest), integer_at(call, D_V),
        )  # fmt: skip

    @compiled()
    def finish_panel(call, pair, panel, state):
        """Divide by the denominators and put each lane's output where its query stands."""
        num_heads, num_queries, value_size = integer_at(call, H), integer_at(call, T), integer_at(call, D_V)
        group = num_heads // integer_at(call, G)
        b, g = pair // integer_at(call, G), pair % integer_at(call, G)
        out, lse = pointer(integer_at(call, OUT)), pointer(integer_at(call, LSE))
        for lane in range(lanes):
            h, t = g * group + (panel * lanes + lane) % group, (panel * lanes + lane) // group
            if t >= num_queries:
                break
            row = (b * num_heads + h) * num_queries + t
            total = number_at(state, (value_size + 1) * lanes + lane)
            total = np.float32(1) if total == 0 else total
            for d in range(value_size):
                put_number(out, row * value_size + d, number_at(state, d * lanes + lane) / total)
            highest = number_at(state, value_size * lanes + lane)
            put_number(lse, row, highest + np.float32(math.log(total)))

    @compiled()
    def prefill(call, worker):
        """Run every panel that is this worker's through all its keys.

        Workers take panels in turn: of a causal text early panels see few keys and late ones many.
        """
        num_panels = integer_at(call, PANELS)
        state_size = (integer_at(call, D_V) + 2) * lanes
        state = moved(pointer(integer_at(call, WORKSPACE)), worker * integer_at(call, WORKSPACE_SIZE))
        part, queries = moved(state, state_size), moved(state, 2 * state_size)
        scratch = moved(queries, integer_at(call, D) * lanes)
        spans = integer_at(call, SPANS) + worker * lanes * 16
        for unit in range(worker, integer_at(call, PAIRS) * num_panels, integer_at(call, WORKERS)):
            pair, panel = unit // num_panels, unit % num_panels
            fill_panel(call, pair, panel, queries, spans)
            begin_panel(call, pair, panel, state)
            first, stop = reach(spans)
            for stretch in range(first // STRETCH_KEYS * STRETCH_KEYS, stop, STRETCH_KEYS):
                start, end = max(stretch, first), min(stretch + STRETCH_KEYS, stop)
                attend_stretch(call, pair, panel, queries, spans, start, end, part, scratch)
                join(call, state, part)
            finish_panel(call, pair, panel, state)

    @compiled()
    def attend_stretches(call, worker):
        """Attend this worker's share of panels and stretches, each into its own part."""
        num_panels, num_stretches = integer_at(call, PANELS), integer_at(call, STRETCHES)
        state_size = (integer_at(call, D_V) + 2) * lanes
        queries = moved(pointer(integer_at(call, WORKSPACE)), worker * integer_at(call, WORKSPACE_SIZE))
        scratch = moved(queries, integer_at(call, D) * lanes)
        spans = integer_at(call, SPANS) + worker * lanes * 16
        for unit in range(
            worker, integer_at(call, PAIRS) * num_panels * num_stretches, integer_at(call, WORKERS)
        ):
            pair, panel = unit // num_stretches // num_panels, unit // num_stretches % num_panels
            fill_panel(call, pair, panel, queries, spans)
            first, stop = reach(spans)
            stretch = unit % num_stretches * STRETCH_KEYS
            start, end = max(stretch, first), min(stretch + STRETCH_KEYS, stop)
            part = moved(pointer(integer_at(call, PARTS)), unit * state_size)
            attend_stretch(call, pair, panel, queries, spans, start, end, part, scratch)

    @compiled()
    def join_stretches(call, worker):
        """Join each panel's parts from left to right."""
        num_panels, num_stretches = integer_at(call, PANELS), integer_at(call, STRETCHES)
        state_size = (integer_at(call, D_V) + 2) * lanes
        state = moved(pointer(integer_at(call, WORKSPACE)), worker * integer_at(call, WORKSPACE_SIZE))
        for row in range(worker, integer_at(call, PAIRS) * num_panels, integer_at(call, WORKERS)):
            begin_panel(call, row // num_panels, row % num_panels, state)
            for stretch in range(num_stretches):
                part = moved(pointer(integer_at(call, PARTS)), (row * num_stretches + stretch) * state_size)
                join(call, state, part)
            finish_panel(call, row // num_panels, row % num_panels, state)

    return prefill, attend_stretches, join_stretches
