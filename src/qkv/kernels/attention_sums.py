"""What each key gets: attention weights added up over queries and the heads of a group.

A second pass over the keys, once each query's log-sum-exp is known: the scores are computed again,
panel by panel, and a weight is ``exp(score - lse)``. Nothing of size T x S exists, and with a layout
of rows one pass reads the keys as fast as memory gives them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from qkv.kernels.attention_layouts import SPARE_KEYS, Layout
from qkv.kernels.attention_panels import make_panel_steps
from qkv.kernels.attention_words import (
    BLOCK_KEYS,
    COLUMNS,
    FACTORS,
    LSE,
    NUMBERS,
    PAIRS,
    PANELS,
    SPAN_BYTES,
    SPANS,
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
from qkv.kernels.key_rows import find_keys, request_numbers, run_length
from qkv.kernels.memory import address_of, instruction, integer_at, moved, number_at, pointer, put_number
from qkv.kernels.vectors import VectorWriter, index, repeat


def sums_workspace_numbers(layout: Layout, size: int) -> int:
    """Return how many float32 numbers one worker needs besides the queries' spans."""
    scores = (BLOCK_KEYS + SPARE_KEYS) * layout.lanes
    return (size + 2) * layout.lanes + scores + layout.chain_numbers + request_numbers(size)


def make_sums_worker(layout: Layout, vectors: int, width: int) -> Any:
    """Make the worker that adds weights up, each taking its share of stretches of keys."""
    lanes, score, chain_numbers = layout.lanes, layout.score, layout.chain_numbers
    put_queries, put_spans, reach, _, is_between, _, hide_out_of_reach = make_panel_steps(lanes, layout.place)
    add_weights = weight_sums(vectors, width)

    @compiled()
    def fill_lane_numbers(call, pair, panel, shifts, factors):
        """Write each lane's lse and factor; a lane that counts for nothing gets an lse of +inf and 0."""
        num_heads, num_queries = integer_at(call, H), integer_at(call, T)
        group = num_heads // integer_at(call, G)
        b, g = pair // integer_at(call, G), pair % integer_at(call, G)
        for lane in range(lanes):
            number = panel * lanes + lane
            h, t = g * group + number % group, number // group
            shift, factor = np.float32(np.inf), np.float32(0)
            if t < num_queries:
                shift = number_at(pointer(integer_at(call, LSE)), (b * num_heads + h) * num_queries + t)
                shift = np.float32(np.inf) if shift == -np.inf else shift
                factor = np.float32(1)
                if integer_at(call, FACTORS) != 0:
                    factor = number_at(pointer(integer_at(call, FACTORS)), b * num_queries + t)
            put_number(shifts, lane, shift)
            put_number(factors, lane, factor)

    @compiled()
    def sum_columns(call, worker):
        num_panels, num_stretches = integer_at(call, PANELS), integer_at(call, STRETCHES)
        size, group = integer_at(call, D), integer_at(call, H) // integer_at(call, G)
        scale = number_at(pointer(integer_at(call, NUMBERS)), 0)
        queries = moved(pointer(integer_at(call, WORKSPACE)), worker * integer_at(call, WORKSPACE_SIZE))
        shifts = moved(queries, size * lanes)
        factors = moved(shifts, lanes)
        scores = moved(factors, lanes)
        chains = moved(scores, (BLOCK_KEYS + SPARE_KEYS) * lanes)
        widened = address_of(moved(chains, chain_numbers))
        spans = integer_at(call, SPANS) + worker * lanes * SPAN_BYTES
        for number in range((BLOCK_KEYS + SPARE_KEYS) * lanes):
            put_number(scores, number, np.float32(0))
        for unit in range(worker, integer_at(call, PAIRS) * num_stretches, integer_at(call, WORKERS)):
            pair, stretch = unit // num_stretches, unit % num_stretches * STRETCH_KEYS
            columns = moved(pointer(integer_at(call, COLUMNS)), unit * STRETCH_KEYS)
            for panel in range(num_panels):
                put_queries(call, pair, panel, queries)
                put_spans(call, pair, panel, spans)
                fill_lane_numbers(call, pair, panel, shifts, factors)
                used = min(lanes, group * integer_at(call, T) - panel * lanes)
                first, stop = reach(call, spans)
                for block in range(stretch, min(stretch + STRETCH_KEYS, stop), BLOCK_KEYS):
                    num_keys, key = min(BLOCK_KEYS, stop - block), 0
                    if is_between(call, pair, block, num_keys, first):
                        continue
                    while key < num_keys:
                        count = run_length(call, pair, block + key, num_keys - key)
                        keys, row = find_keys(call, pair, block + key, count, widened)
                        some = moved(scores, key * lanes)
                        score(keys, row, 0, queries, used, chains, some, count, size)
                        key += count
                    if not scale > 0:
                        for number in range(num_keys * lanes):
                            put_number(scores, number, number_at(scores, number) * scale)
                    hide_out_of_reach(call, pair, spans, scores, block, num_keys)
                    positive = scale if scale > 0 else np.float32(1)
                    beside = moved(columns, block - stretch)
                    add_weights(scores, positive, shifts, factors, beside, num_keys)

    return sum_columns


def weight_sums(vectors: int, width: int) -> Any:
    """Make the step that turns a block of scores into weights and adds them up over the lanes.

    The result takes ``(scores, scale, shifts, factors, columns, num_keys)``: ``columns`` grows, key by
    key, by the sum over lanes of ``factor * exp(score * scale - shift)``.
    """

    @instruction
    def step(
        typing_context: Any,
        scores: Any,
        scale: Any,
        shifts: Any,
        factors: Any,
        columns: Any,
        num_keys: Any,
    ) -> Any:
        signature = types.void(scores, types.float32, shifts, factors, columns, types.intp)
        return signature, _write_sums(vectors, width)

    return step


def _write_sums(vectors: int, width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, scale, shifts, factors, columns, num_keys = arguments
        writer = VectorWriter(builder, width)
        places = [index(vector * width) for vector in range(vectors)]
        scales = writer.splat(scale)
        lane_shifts = [writer.load(shifts, place) for place in places]
        lane_factors = [writer.load(factors, place) for place in places]

        def weights_of(key: Any) -> Any:
            """Return one key's weights, those of all vectors added up."""
            row = builder.gep(scores, [builder.mul(key, index(vectors * width))])
            total = writer.constant(0.0)
            for place, shift, factor in zip(places, lane_shifts, lane_factors, strict=True):
                weight = writer.exp(builder.fsub(builder.fmul(writer.load(row, place), scales), shift))
                # What does not count may be NaN, which 0 would not make 0.
                counts_not = builder.fcmp_ordered("==", factor, writer.constant(0.0))
                weight = builder.select(counts_not, writer.constant(0.0), weight)
                total = writer.fma(weight, factor, total)
            return total

        def group(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(width))
            last = builder.sub(num_keys, index(1))
            keys = [builder.add(first, index(key)) for key in range(width)]
            keys = [builder.select(builder.icmp_signed("<", key, last), key, last) for key in keys]
            sums = writer.sum_each([weights_of(key) for key in keys])
            left = builder.sub(num_keys, first)
            beside = builder.gep(columns, [first])
            grown = builder.fadd(writer.load_first(left, beside, index(0)), sums)
            writer.store_first(left, grown, beside, index(0))
            return []

        num_groups = builder.sdiv(builder.add(num_keys, index(width - 1)), index(width))
        repeat(builder, num_groups, [], group)
        return context.get_dummy_value()

    return write
