"""What a panel of queries is and sees: which queries lie in its lanes, and which keys each may attend.

The H/G query heads of a group share a panel: lane n of a panel is query head ``n % (H/G)`` of its group,
so that each key is read once for all of them.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.kernels.attention_words import (
    BATCH,
    BIAS,
    BLOCK_KEYS,
    EARLIER_PAGES,
    FIRST_KEYS,
    HEAD,
    HEAD_NUMBERS,
    KEY,
    KV_LENGTH,
    LEFT,
    MASK,
    NO_LIMIT,
    NUMBERS,
    OFFSET,
    OWN_PAGE,
    OWN_PAGE_ONLY,
    PAGE_KEYS,
    POSITIONS,
    POSITIONS_STEP,
    Q_LENGTH,
    QUERY,
    RIGHT,
    ROW_WORDS,
    ROWS,
    SPAN_END,
    SPAN_FIRST,
    SPAN_LOWEST,
    SPAN_WORDS,
    D,
    G,
    H,
    Q,
    T,
)  # fmt: skip
from qkv.kernels.compiler import compiled
from qkv.kernels.memory import (
    byte_at,
    integer_at,
    moved,
    number_at,
    pointer,
    put_integer,
    put_number,
    short_integer_at,
)


class PanelSteps(NamedTuple):
    """The compiled steps that know what a panel sees."""

    put_queries: Any
    put_spans: Any
    reach: Any
    begin_of: Any
    is_between: Any
    adjust_scores: Any
    hide_out_of_reach: Any


def make_panel_steps(lanes: int, place: Any) -> PanelSteps:
    """Make the steps for panels of ``lanes`` queries.

    ``place(lane, d, D)`` says where number d of a lane's query stands.
    """

    @compiled()
    def row_word(call, pair, word):
        """Return what is told of one sequence and key head."""
        return integer_at(integer_at(call, ROWS), pair * ROW_WORDS + word)

    @compiled()
    def query_of(call, pair, panel, lane):
        """Return head and position of a lane's query; the position may be beyond the last."""
        group = integer_at(call, H) // integer_at(call, G)
        number = panel * lanes + lane
        return pair % integer_at(call, G) * group + number % group, number // group

    @compiled()
    def first_within(call, pair, own, left):
        """Return the first key held that stands at most ``left`` positions before a query's own."""
        if integer_at(call, POSITIONS) == 0:
            return max(0, own - left)
        positions = integer_at(call, POSITIONS) + 4 * pair * integer_at(call, POSITIONS_STEP)
        least, low, high = short_integer_at(positions, own) - left, 0, own
        while low < high:
            middle = (low + high) // 2
            if short_integer_at(positions, middle) < least:
                low = middle + 1
            else:
                high = middle
        return low

    @compiled()
    def put_queries(call, pair, panel, queries):
        """Put a panel's queries into lanes."""
        num_queries, size = integer_at(call, T), integer_at(call, D)
        b = pair // integer_at(call, G)
        start = moved(pointer(integer_at(call, Q)), b * integer_at(call, Q + BATCH))
        for lane in range(lanes):
            h, t = query_of(call, pair, panel, lane)
            source = moved(start, h * integer_at(call, Q + HEAD) + t * integer_at(call, Q + QUERY))
            for d in range(size):
                value = number_at(source, d) if t < num_queries else np.float32(0)
                put_number(queries, place(lane, d, size), value)

    @compiled()
    def put_spans(call, pair, panel, spans):
        """Write down what each query of a panel sees."""
        num_queries = integer_at(call, T)
        offset, left = row_word(call, pair, OFFSET), row_word(call, pair, LEFT)
        q_length, kv_length = row_word(call, pair, Q_LENGTH), row_word(call, pair, KV_LENGTH)
        for lane in range(lanes):
            _, t = query_of(call, pair, panel, lane)
            first, lowest = 0, 0
            end = 0 if t < num_queries else NO_LIMIT  # an unused lane needs no masking
            if t < q_length:
                first = first_within(call, pair, t + offset, left)
                end = max(0, min(kv_length, t + offset + integer_at(call, RIGHT) + 1))
                page_start = max(0, end - 1) // integer_at(call, PAGE_KEYS) * integer_at(call, PAGE_KEYS)
                if integer_at(call, OWN_PAGE) == EARLIER_PAGES:
                    end = page_start
                if integer_at(call, OWN_PAGE) == OWN_PAGE_ONLY:
                    lowest = page_start
                    first = max(first, page_start)
                first = min(first, end)
            put_integer(spans, SPAN_WORDS * lane + SPAN_FIRST, first)
            put_integer(spans, SPAN_WORDS * lane + SPAN_END, end)
            put_integer(spans, SPAN_WORDS * lane + SPAN_LOWEST, lowest)

    @compiled()
    def reach(call, spans):
        """Return the first key that a window shows to any lane, and the one past the last that any sees."""
        start, stop = NO_LIMIT, 0
        for lane in range(lanes):
            first = integer_at(spans, SPAN_WORDS * lane + SPAN_FIRST)
            end = integer_at(spans, SPAN_WORDS * lane + SPAN_END)
            if end < NO_LIMIT:
                stop = max(stop, end)
                start = min(start, first) if first < end else start
        return min(start, stop), stop

    @compiled()
    def adjust_scores(call, pair, panel, scores, block, num_keys):
        """Apply scale, softcap, bias, ALiBi and mask, in this order."""
        b = pair // integer_at(call, G)
        offset = row_word(call, pair, OFFSET)
        scale = number_at(pointer(integer_at(call, NUMBERS)), 0)
        softcap = number_at(pointer(integer_at(call, NUMBERS)), 1)
        mask, bias = integer_at(call, MASK), integer_at(call, BIAS)
        for lane in range(lanes):
            h, t = query_of(call, pair, panel, lane)
            if t >= integer_at(call, T):
                break
            slope = number_at(pointer(integer_at(call, HEAD_NUMBERS)), 2 * h)
            bias_row = b * integer_at(call, BIAS + BATCH) + h * integer_at(call, BIAS + HEAD)
            bias_row += t * integer_at(call, BIAS + QUERY)
            mask_row = b * integer_at(call, MASK + BATCH) + h * integer_at(call, MASK + HEAD)
            mask_row += t * integer_at(call, MASK + QUERY)
            for key in range(num_keys):
                position, beside = block + key, key * lanes + lane
                score = number_at(scores, beside) * scale
                if softcap != 0:
                    score = softcap * np.float32(math.tanh(score / softcap))
                if bias != 0:
                    added = number_at(pointer(bias), bias_row + position * integer_at(call, BIAS + KEY))
                    score = np.float32(-np.inf) if added == -np.inf else score + added
                if slope != 0:
                    score -= slope * np.float32(abs(position - t - offset))
                if mask != 0 and byte_at(mask + mask_row + position * integer_at(call, MASK + KEY)) == 0:
                    score = np.float32(-np.inf)
                put_number(scores, beside, score)

    @compiled()
    def is_between(call, pair, block, num_keys, first):
        """Whether a block lies behind the keys that no window hides, and before all windows."""
        return row_word(call, pair, FIRST_KEYS) <= block and block + num_keys <= first

    @compiled()
    def begin_of(call, pair, spans, first):
        """Return where to begin: at the first keys, if some are seen for all windows, or in a window."""
        lowest = first
        for lane in range(lanes):
            own = integer_at(spans, SPAN_WORDS * lane + SPAN_LOWEST)
            if own < integer_at(spans, SPAN_WORDS * lane + SPAN_END) < NO_LIMIT:
                lowest = min(lowest, own)
        begin = lowest if lowest < row_word(call, pair, FIRST_KEYS) else first
        return begin // BLOCK_KEYS * BLOCK_KEYS

    @compiled()
    def hide_out_of_reach(call, pair, spans, scores, block, num_keys):
        """Write -inf where a lane does not see a key of the block, by order, window or length."""
        hides, always_seen = False, row_word(call, pair, FIRST_KEYS) - block
        for lane in range(lanes):
            first = integer_at(spans, SPAN_WORDS * lane + SPAN_FIRST) - block
            end = integer_at(spans, SPAN_WORDS * lane + SPAN_END) - block
            lowest = integer_at(spans, SPAN_WORDS * lane + SPAN_LOWEST) - block
            if first > 0 or end < num_keys:
                hides = True
                for key in range(num_keys):
                    if key >= end or key < lowest or always_seen <= key < first:
                        put_number(scores, key * lanes + lane, np.float32(-np.inf))
        return hides

    return PanelSteps(put_queries, put_spans, reach, begin_of, is_between, adjust_scores, hide_out_of_reach)
