"""Attention in compiled code: one canonical order of operations, however the work is cut.

Keys pass by one after another. The scores of a block of keys against a panel of queries are a product
held in registers, the online softmax works query by query without any sum across lanes, and the
weighted values are again a product. `attention_layouts` has two ways to hold a panel, with the same
sums; the H/G query heads of a group share one, so that each key is read once for all of them. Keys and
values are read where they lie, in arrays or in pages: `key_rows`.

The canonical order, for each query: blocks of 64 keys at absolute positions, within a block the keys
in order; a score is `micro.CHAINS` chains along its key, added up in order; after each 1024 keys the
state begins anew, and the states are joined from left to right. Prefill and decode cut the work
differently, over panels and over stretches of keys, but neither changes that order, so the bits do not
depend on the cut, the batch or the threads. Sums over integer codes are exact instead (`integer_products`).
Where codes are seen before the page that a query stands in, and that page in float32, the stretches of the
latter are joined behind those of the codes.

The ladder, float32, two threads of a processor with AVX-512 on units of half its width. Prefill: 8
heads of 128, 2048 positions. Decode: 32 query and 8 key heads of 128, 32,768 keys. Time against this
file, medians within one run each:

==================================================================  ========  ========
version                                                             prefill   decode
==================================================================  ========  ========
tiles in NumPy (`ops.tiles`)                                         6.3x      4.9x
panels of 8 queries for everything                                   1.25x     2.4x
panels of 32 queries for everything                                  1.0x      2.8x
8 for decode, 32 for prefill                                         1.0x      2.4x
and keys asked for ahead of their use, a block at a time             1.0x      1.9x
decode along the rows of keys, read by one instruction               1.0x      1.4x
and row by row asking for the row 16 further on, or the next page's  1.0x      1.0x
==================================================================  ========  ========

What the last two steps found: the processor guesses what will be read by the instruction that reads. A
rectangle of 8 keys is eight instructions, each with a walk of its own, and from memory they got 7 GB/s
on a thread, asked for ahead or not; one instruction that walks the keys from front to end gets 20.
Where a page ends it guesses wrong: pages of 16 tokens took 1.6 times as long as an array, until each
row read asked for one of the next page. Asking for 32 lines of that at once changed nothing.

Codes in pages become numbers in the registers, or are multiplied as they are: int8 is twice as fast as
float32 in the same pages, not the 4 times of its bytes, for then it waits for the multipliers.
`code_products` and `integer_products` have their ladders.

What limits: decode reads 25 to 28 GB/s where a bare sum reads 31 (24, at 8 texts of 32,768 keys: 78 %). One
text of 1,024 keys is 8 MB, read in a third of a millisecond: there Python and the start of threads count, and
it is 1.3 times as fast as PyTorch, not the 2.4 and more of longer ones. Prefill reaches 165 to 190 GFLOP/s,
where the rectangle of registers alone, fed from the cache, reaches 230; exp, rescaling and the diagonal
take the rest, and twice what PyTorch reaches here (150) is beyond what the registers can do. A text of 8
tokens takes 10 us of work and 20 us of Python around it, when NumPy's five calls take 15; panels of 32
lanes idle below 32 queries, a smaller one would have cost every first start some seconds of compiling.
Chains of 8 for accuracy cost nothing that could be told from noise.
"""

import math
from typing import Any

import numpy as np

from qkv.kernels.attention_blocks import make_block_steps, room_numbers
from qkv.kernels.attention_layouts import SPARE_KEYS, Layout
from qkv.kernels.attention_panels import make_panel_steps
from qkv.kernels.attention_words import (
    BIAS,
    BLOCK_KEYS,
    D_V,
    HAS_SINKS,
    HAS_SLOPES,
    HEAD_NUMBERS,
    LSE,
    MASK,
    NUMBERS,
    OUT,
    OWN_CALL,
    PAIRS,
    PANELS,
    PARTS,
    REQUEST_WORDS,
    SPAN_BYTES,
    SPANS,
    SPLITS,
    STRETCH,
    STRETCH_KEYS,
    STRETCHES,
    WORKERS,
    WORKSPACE,
    WORKSPACE_SIZE,
    D,
    G,
    H,
    T,
)  # fmt: skip
from qkv.kernels.compiler import compiled
from qkv.kernels.key_rows import WIDENED_ROWS, request_numbers
from qkv.kernels.launch import LINE_NUMBERS, run_at
from qkv.kernels.memory import (
    address_of,
    integer_at,
    moved,
    number_at,
    pointer,
    put_integer,
    put_number,
)


def workspace_numbers(layout: Layout, size: int, value_size: int) -> int:
    """Return how many float32 numbers one worker needs besides the queries' spans: see `make_workers`."""
    lanes = layout.lanes
    states, queries, output = 2 * (value_size + 2) * lanes, size * lanes, value_size * lanes
    scores = (2 * BLOCK_KEYS + SPARE_KEYS) * lanes + factor_numbers(lanes)
    widened = request_numbers(max(size, value_size))
    room = room_numbers(layout, size, value_size)
    numbers = states + queries + output + scores + room + widened + 2 * REQUEST_WORDS
    return -(-numbers // LINE_NUMBERS) * LINE_NUMBERS


def factor_numbers(lanes: int) -> int:
    """Return the room for a number per lane: a line at least, so that what follows begins one."""
    return max(lanes, LINE_NUMBERS)


def make_workers(layout: Layout) -> tuple[Any, Any, Any]:
    """Make the workers for a layout of queries: attend to one stretch, to all, and join what was split.

    The first is run by the second by its address: as a part of it, it would be compiled twice.

    A worker's workspace holds two states, the panel's queries, and scratch. A state is what a panel has
    seen: output (D_v, lanes), highest score (lanes) and denominator (lanes).
    """
    lanes, place, num_factors = layout.lanes, layout.place, factor_numbers(layout.lanes)
    softmax, rescale_output, merge = layout.softmax, layout.rescale, layout.merge
    used_lanes, begin_blocks, score_block, mix_block = make_block_steps(layout)
    panel_steps = make_panel_steps(lanes, place)
    put_queries, put_spans, reach, begin_of, is_between, adjust_scores, hide_out_of_reach = panel_steps

    @compiled()
    def tidy(call, scratch):
        """Write 0 where lanes that no query uses are read all the same."""
        weights = moved(scratch, integer_at(call, D_V) * lanes)
        for number in range((BLOCK_KEYS + SPARE_KEYS) * lanes):
            put_number(weights, number, np.float32(0))

    @compiled()
    def attend_stretch(call, request):
        """Attend a panel to keys start .. stop-1, which lie in one stretch, from nothing.

        The request: pair, panel, start, stop, and the addresses of queries, spans, state and scratch.
        """
        pair, panel, start, stop = (
            integer_at(request, 0), integer_at(request, 1), integer_at(request, 2), integer_at(request, 3),
        )  # fmt: skip
        queries, spans = pointer(integer_at(request, 4)), integer_at(request, 5)
        state, scratch = pointer(integer_at(request, 6)), pointer(integer_at(request, 7))
        value_size = integer_at(call, D_V)
        has_grid = integer_at(call, MASK) != 0 or integer_at(call, BIAS) != 0
        adjusts = has_grid or integer_at(call, HAS_SLOPES) != 0
        adjusts = adjusts or number_at(pointer(integer_at(call, NUMBERS)), 1) != 0
        # A positive scale may wait until the softmax; one of 0 or less would turn a hidden -inf over.
        scale = number_at(pointer(integer_at(call, NUMBERS)), 0)
        adjusts = adjusts or not scale > 0
        scale = np.float32(1) if adjusts else scale
        output = scratch
        weights = moved(output, value_size * lanes)
        scores = moved(weights, (BLOCK_KEYS + SPARE_KEYS) * lanes)
        rescale = moved(scores, BLOCK_KEYS * lanes)
        widened = address_of(moved(rescale, num_factors))
        largest = max(value_size, integer_at(call, D))
        room = moved(rescale, num_factors + 2 * REQUEST_WORDS + WIDENED_ROWS * largest)
        highest, denominator = moved(state, value_size * lanes), moved(state, (value_size + 1) * lanes)
        for lane in range(lanes):
            put_number(highest, lane, np.float32(-np.inf))
            put_number(denominator, lane, np.float32(0))
        for number in range(value_size * lanes):
            put_number(output, number, np.float32(0))
        begin_blocks(call, queries, room)
        first, _ = reach(call, spans)
        for block in range(start, stop, BLOCK_KEYS):
            num_keys = min(BLOCK_KEYS, stop - block)
            if is_between(call, pair, block, num_keys, first):
                continue
            score_block(call, pair, panel, queries, weights, room, widened, block, num_keys)
            if adjusts:
                adjust_scores(call, pair, panel, weights, block, num_keys)
            hides = hide_out_of_reach(call, pair, spans, weights, block, num_keys) or has_grid
            if hides:
                for number in range(num_keys * lanes):
                    put_number(scores, number, number_at(weights, number))
            softmax(weights, num_keys, used_lanes(call, panel), scale, highest, denominator, rescale)
            rescale_output(output, value_size, used_lanes(call, panel), rescale)
            mix_block(call, pair, panel, weights, scores, hides, output, room, widened, block, num_keys)
        for d in range(value_size):
            for lane in range(lanes):
                put_number(state, d * lanes + lane, number_at(output, place(lane, d, value_size)))

    @compiled()
    def ask(call, request, pair, panel, start, stop, state):
        """Have a panel attended to keys start .. stop-1, which lie in one stretch, from nothing."""
        put_integer(request, 0, pair)
        put_integer(request, 1, panel)
        put_integer(request, 2, start)
        put_integer(request, 3, stop)
        put_integer(request, 6, address_of(state))
        run_at(integer_at(call, STRETCH), call, request)

    @compiled()
    def room_of(call, worker):
        """Return a worker's two states, the panel's queries and spans, and a request that knows the rest."""
        size, state_size = integer_at(call, D), (integer_at(call, D_V) + 2) * lanes
        state = moved(pointer(integer_at(call, WORKSPACE)), worker * integer_at(call, WORKSPACE_SIZE))
        part, queries = moved(state, state_size), moved(state, 2 * state_size)
        scratch = moved(queries, size * lanes)
        spans = integer_at(call, SPANS) + worker * lanes * SPAN_BYTES
        request = address_of(moved(state, integer_at(call, WORKSPACE_SIZE) - 2 * REQUEST_WORDS))
        put_integer(request, 4, address_of(queries))
        put_integer(request, 5, spans)
        put_integer(request, 7, address_of(scratch))
        return state, part, queries, spans, scratch, request

    @compiled()
    def begin_panel(call, pair, panel, state):
        """Begin with nothing seen but the sinks: keys seen already, whose value is 0."""
        value_size = integer_at(call, D_V)
        for number in range(value_size * lanes):
            put_number(state, number, np.float32(0))
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
        merge(
            state, moved(state, output), moved(state, highest),
            part, moved(part, output), moved(part, highest), integer_at(call, D_V),
        )  # fmt: skip

    @compiled()
    def join_own_pages(call, pair, panel, spans, state, part, request):
        """Join what a panel sees of its queries' own pages, where these have a call of their own."""
        if integer_at(call, OWN_CALL) != 0:
            own = call + integer_at(call, OWN_CALL)
            put_spans(own, pair, panel, spans)
            first, stop = reach(own, spans)
            begin = begin_of(own, pair, spans, first)
            for stretch in range(begin // STRETCH_KEYS, (stop + STRETCH_KEYS - 1) // STRETCH_KEYS):
                start, end = max(stretch * STRETCH_KEYS, begin), min((stretch + 1) * STRETCH_KEYS, stop)
                ask(own, request, pair, panel, start, end, part)
                join(call, state, part)

    @compiled()
    def finish_panel(call, pair, panel, state):
        """Divide by the denominators and put each lane's output where its query stands."""
        num_heads, num_queries, value_size = integer_at(call, H), integer_at(call, T), integer_at(call, D_V)
        group = num_heads // integer_at(call, G)
        b, g = pair // integer_at(call, G), pair % integer_at(call, G)
        out, lse = pointer(integer_at(call, OUT)), pointer(integer_at(call, LSE))
        totals = moved(state, (value_size + 1) * lanes)
        for lane in range(lanes):
            total = number_at(totals, lane)
            put_number(totals, lane, np.float32(1) if total == 0 else total)
        for d in range(value_size):
            for lane in range(lanes):
                beside = d * lanes + lane
                put_number(state, beside, number_at(state, beside) / number_at(totals, lane))
        for lane in range(used_lanes(call, panel)):
            h, t = g * group + (panel * lanes + lane) % group, (panel * lanes + lane) // group
            row = (b * num_heads + h) * num_queries + t
            for d in range(value_size):
                put_number(out, row * value_size + d, number_at(state, d * lanes + lane))
            highest = number_at(state, value_size * lanes + lane)
            put_number(lse, row, highest + np.float32(math.log(number_at(totals, lane))))

    @compiled()
    def attend_units(call, worker):
        """Attend this worker's share: panels through all their keys, or stretches of them into parts.

        Workers take units in turn: of a causal text early panels see few keys and late ones many.
        """
        splits, num_panels = integer_at(call, SPLITS) != 0, integer_at(call, PANELS)
        num_stretches = integer_at(call, STRETCHES) if splits else 1
        state_size = (integer_at(call, D_V) + 2) * lanes
        state, part, queries, spans, scratch, request = room_of(call, worker)
        tidy(call, scratch)
        num_units = integer_at(call, PAIRS) * num_panels * num_stretches
        for unit in range(worker, num_units, integer_at(call, WORKERS)):
            pair, panel = unit // num_stretches // num_panels, unit // num_stretches % num_panels
            put_queries(call, pair, panel, queries)
            put_spans(call, pair, panel, spans)
            first, stop = reach(call, spans)
            first = begin_of(call, pair, spans, first)
            lowest = unit % num_stretches if splits else first // STRETCH_KEYS
            highest = lowest + 1 if splits else max(lowest + 1, (stop + STRETCH_KEYS - 1) // STRETCH_KEYS)
            # To join one stretch to nothing would change no bit of it.
            joins = not splits and (highest > lowest + 1 or integer_at(call, HAS_SINKS) != 0)
            target = part if joins else state
            if joins:
                begin_panel(call, pair, panel, state)
            if splits:
                target = moved(pointer(integer_at(call, PARTS)), unit * state_size)
            for stretch in range(lowest, highest):
                start, end = max(stretch * STRETCH_KEYS, first), min((stretch + 1) * STRETCH_KEYS, stop)
                ask(call, request, pair, panel, start, end, target)
                if joins:
                    join(call, state, part)
            if not splits:
                join_own_pages(call, pair, panel, spans, state, part, request)
                finish_panel(call, pair, panel, state)

    @compiled()
    def join_stretches(call, worker):
        """Join each panel's parts from left to right, and its queries' own pages behind them."""
        num_panels, num_stretches = integer_at(call, PANELS), integer_at(call, STRETCHES)
        state_size = (integer_at(call, D_V) + 2) * lanes
        state, part, queries, spans, _, request = room_of(call, worker)
        for row in range(worker, integer_at(call, PAIRS) * num_panels, integer_at(call, WORKERS)):
            pair, panel = row // num_panels, row % num_panels
            begin_panel(call, pair, panel, state)
            for stretch in range(num_stretches):
                one = moved(pointer(integer_at(call, PARTS)), (row * num_stretches + stretch) * state_size)
                join(call, state, one)
            if integer_at(call, OWN_CALL) != 0:
                put_queries(call, pair, panel, queries)
                join_own_pages(call, pair, panel, spans, state, part, request)
            finish_panel(call, pair, panel, state)

    return attend_stretch, attend_units, join_stretches
