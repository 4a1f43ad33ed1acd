"""Where the rows of keys and values are: in an array, in pages of float32, or in pages of codes.

Codes that no product reads as they are become float32 a few keys at a time, in a worker's own scratch, just
before they are used: what is read from memory are the codes, and no widened copy of a cache ever exists.
The arithmetic is that of `qkv.cache.elements`, to the bit.
"""

from typing import Any

import numpy as np

from qkv.kernels.attention_words import (
    BATCH,
    BF16,
    D_V,
    ELEMENT,
    FLOAT32,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    GROUP,
    HEAD,
    INT4,
    INT8,
    K_CODES,
    K_LOWS,
    K_STEPS,
    PAGE_KEYS,
    QUERY,
    REQUEST_WORDS,
    RUN_KEYS,
    SHARES_VALUES,
    TABLE,
    TABLE_STEP,
    V_CODES,
    V_LOWS,
    V_STEPS,
    WIDEN,
    D,
    G,
    K,
    V,
)
from qkv.kernels.compiler import compiled
from qkv.kernels.launch import LINE_NUMBERS, run_at
from qkv.kernels.memory import (
    byte_at,
    fma,
    integer_at,
    moved,
    number_at,
    number_of_bits,
    number_of_half,
    pointer,
    prefetch,
    put_integer,
    put_number,
    short_at,
)
from qkv.kernels.widening import (
    E4M3_UNIT,
    bfloat16_numbers,
    e4m3_numbers,
    e5m2_numbers,
    half_numbers,
    high_nibbles,
    int8_numbers,
    low_nibbles,
    uint8_numbers,
    widen_scaled,
    widen_stepped,
)

widen_halves, widen_bfloat16s = widen_scaled(half_numbers, 2), widen_scaled(bfloat16_numbers, 2)
widen_e4m3s, widen_e5m2s = widen_scaled(e4m3_numbers, 1), widen_scaled(e5m2_numbers, 1)
widen_int8s, widen_uint8s = widen_scaled(int8_numbers, 1), widen_stepped(uint8_numbers)
widen_low_nibbles, widen_high_nibbles = widen_stepped(low_nibbles), widen_stepped(high_nibbles)


WIDENED_ROWS = RUN_KEYS + 2
"""Rows behind a request: those of a run, and steps and lows of all channels."""


def request_numbers(size: int) -> int:
    """Return the float32 numbers that a request takes with the rows, steps and lows behind it."""
    return 2 * REQUEST_WORDS + WIDENED_ROWS * size


@compiled()
def _in_array(call: Any, place: Any, pair: Any, position: Any) -> Any:
    b, g = pair // integer_at(call, G), pair % integer_at(call, G)
    offset = b * integer_at(call, place + BATCH) + g * integer_at(call, place + HEAD)
    return moved(pointer(integer_at(call, place)), offset + position * integer_at(call, place + QUERY))


@compiled()
def page_at(call: Any, pair: Any, position: Any) -> Any:
    """Return the address of the page of a position; 0 where it is gone."""
    row = integer_at(call, TABLE) + 8 * pair * integer_at(call, TABLE_STEP)
    return integer_at(row, position // integer_at(call, PAGE_KEYS))


@compiled()
def run_length(call: Any, pair: Any, position: Any, left: Any) -> Any:
    """Return how many of the ``left`` keys from a position on lie together in memory."""
    if integer_at(call, TABLE) == 0:
        return left
    page_keys = integer_at(call, PAGE_KEYS)
    together = min(left, page_keys - position % page_keys)
    in_place = integer_at(call, ELEMENT) == FLOAT32 and page_at(call, pair, position) != 0
    return together if in_place else min(together, RUN_KEYS)


@compiled()
def find_keys(call: Any, pair: Any, position: Any, count: Any, request: Any) -> Any:
    """Return where a run of keys begins, and how many numbers apart its rows are.

    At ``request`` there is room for `request_numbers`.
    """
    if integer_at(call, TABLE) == 0:
        return _in_array(call, K, pair, position), integer_at(call, K + QUERY)
    return _in_page(call, pair, position, count, request, K_CODES, integer_at(call, D))


@compiled()
def find_values(call: Any, pair: Any, position: Any, count: Any, request: Any) -> Any:
    """Return where a run of values begins, and how many numbers apart its rows are."""
    if integer_at(call, TABLE) == 0:
        return _in_array(call, V, pair, position), integer_at(call, V + QUERY)
    if integer_at(call, SHARES_VALUES) != 0:
        return _in_page(call, pair, position, count, request, K_CODES, integer_at(call, D))
    return _in_page(call, pair, position, count, request, V_CODES, integer_at(call, D_V))


@compiled()
def _item_bytes(element: Any) -> Any:
    return 1 if element >= FP8_E4M3 else 2


@compiled()
def steps_ahead(call: Any, pair: Any, position: Any, count: Any, codes: Any) -> Any:
    """Return how many numbers behind a run to ask for, while it is read: where the next run lies.

    The processor guesses how a run goes on, but not where the next page is. In an array it is some rows
    further on; 0 where codes are widened, which are asked for by `_ask_for_codes`.
    """
    if integer_at(call, TABLE) == 0:
        return RUN_KEYS * integer_at(call, (V if codes == V_CODES else K) + QUERY)
    if integer_at(call, ELEMENT) != FLOAT32:
        return 0
    page, following = page_at(call, pair, position), following_page(call, pair, position + count)
    page_keys, size = integer_at(call, PAGE_KEYS), integer_at(call, D if codes == K_CODES else D_V)
    rows = (position + count) % page_keys - position % page_keys
    return (following - page) // 4 + rows * size if page != 0 and following != 0 else 0


@compiled()
def following_page(call: Any, pair: Any, position: Any) -> Any:
    """Return the page of a position that may lie behind the last one, then that of the last."""
    last = integer_at(call, TABLE_STEP) * integer_at(call, PAGE_KEYS) - 1
    return page_at(call, pair, min(position, last))


@compiled()
def _ask_for_codes(call: Any, pair: Any, position: Any, count: Any, codes: Any, size: Any) -> None:
    """Ask for the codes of ``count`` rows from a position on, before they are widened."""
    page, slot = following_page(call, pair, position), position % integer_at(call, PAGE_KEYS)
    element = integer_at(call, ELEMENT)
    row_bytes = size * _item_bytes(element) if element != INT4 else size // 2
    start = pointer(page + integer_at(call, codes) + slot * row_bytes)
    for number in range(0, count * row_bytes // 4, LINE_NUMBERS):
        prefetch(start, number)


@compiled()
def _in_page(call: Any, pair: Any, position: Any, count: Any, request: Any, codes: Any, size: Any) -> Any:
    """Return a run of rows in a page of float32; of any other, and of one that is gone, a widened copy."""
    page, slot = page_at(call, pair, position), position % integer_at(call, PAGE_KEYS)
    if page != 0 and integer_at(call, ELEMENT) == FLOAT32:
        return moved(pointer(page + integer_at(call, codes)), slot * size), size
    rows = request + 8 * REQUEST_WORDS
    if page == 0:
        # No query sees these keys, but the block that holds them has others.
        for place in range(count * size):
            put_number(pointer(rows), place, np.float32(0))
        return pointer(rows), size
    _ask_for_codes(call, pair, position + count, count, codes, size)
    put_integer(request, 0, codes)
    put_integer(request, 1, page)
    put_integer(request, 2, slot)
    put_integer(request, 3, count)
    run_at(integer_at(call, WIDEN), call, request)
    return pointer(rows), size


@compiled()
def widen(call: Any, request: Any) -> None:
    """Write rows of a page's codes as float32 behind the request: which codes, page, first slot, count."""
    page, slot, count = integer_at(request, 1), integer_at(request, 2), integer_at(request, 3)
    rows = pointer(request + 8 * REQUEST_WORDS)
    if integer_at(request, 0) == K_CODES:
        _widen_keys(call, page, slot, count, rows)
    else:
        _widen_values(call, page, slot, count, rows)


@compiled()
def _widen_keys(call: Any, page: Any, slot: Any, count: Any, rows: Any) -> Any:
    """Write ``count`` keys of a page as float32 rows of D numbers."""
    size, element = integer_at(call, D), integer_at(call, ELEMENT)
    codes, steps = page + integer_at(call, K_CODES), page + integer_at(call, K_STEPS)
    if element <= FP8_E5M2:
        widen_floats(element, codes + slot * size * _item_bytes(element), count * size, rows)
    elif element == INT8:
        _widen_int8(codes, steps, slot, count, size, rows)
    else:
        # Behind the rows there is room for the steps of all channels.
        step, low = moved(rows, RUN_KEYS * size), moved(rows, (RUN_KEYS + 1) * size)
        widen_floats(FP16, steps, size, step)
        widen_floats(FP16, page + integer_at(call, K_LOWS), size, low)
        for key in range(count):
            row = moved(rows, key * size)
            if element == INT4:
                _widen_nibbles(codes + (slot + key) * (size // 2), step, low, size, row)
            else:
                _widen_bytes(codes + (slot + key) * size, step, low, size, row)


@compiled()
def _widen_values(call: Any, page: Any, slot: Any, count: Any, rows: Any) -> Any:
    """Write ``count`` values of a page as float32 rows of D_v numbers."""
    size, element = integer_at(call, D_V), integer_at(call, ELEMENT)
    codes, steps = page + integer_at(call, V_CODES), page + integer_at(call, V_STEPS)
    if element <= FP8_E5M2:
        widen_floats(element, codes + slot * size * _item_bytes(element), count * size, rows)
    elif element != INT4:
        _widen_int8(codes, steps, slot, count, size, rows)
    else:
        lows, groups = page + integer_at(call, V_LOWS), (size + GROUP - 1) // GROUP
        step, low = moved(rows, RUN_KEYS * size), moved(rows, (RUN_KEYS + 1) * size)
        for key in range(count):
            for group in range(groups):
                place = 2 * ((slot + key) * groups + group)
                one_step, one_low = number_of_half(steps + place), number_of_half(lows + place)
                for d in range(group * GROUP, min(size, (group + 1) * GROUP)):
                    put_number(step, d, one_step)
                    put_number(low, d, one_low)
            row = moved(rows, key * size)
            _widen_nibbles(codes + (slot + key) * (size // 2), step, low, size, row)


@compiled()
def widen_floats(element: Any, codes: Any, count: Any, numbers: Any) -> Any:
    """Widen floating-point codes, which is exact."""
    one = np.float32(1)
    if element == FP16:
        for place in range(widen_halves(codes, one, numbers, count), count):
            put_number(numbers, place, number_of_half(codes + 2 * place))
    elif element == BF16:
        for place in range(widen_bfloat16s(codes, one, numbers, count), count):
            put_number(numbers, place, number_of_bits(np.int32(short_at(codes + 2 * place)) << np.int32(16)))
    elif element == FP8_E4M3:
        for place in range(widen_e4m3s(codes, np.float32(1 / E4M3_UNIT), numbers, count), count):
            put_number(numbers, place, _number_of_e4m3(byte_at(codes + place)))
    else:
        for place in range(widen_e5m2s(codes, one, numbers, count), count):
            put_number(numbers, place, _number_of_e5m2(byte_at(codes + place)))


@compiled()
def _number_of_e4m3(code: Any) -> Any:
    """Return the number of an e4m3 code: moved up, its exponent and fraction are too small by 2^120."""
    magnitude = np.int32(code) & np.int32(0x7F)
    number = number_of_bits(magnitude << np.int32(20)) * np.float32(2.0**120)
    number = np.float32(np.nan) if magnitude == 0x7F else number
    return -number if code & 0x80 else number


@compiled()
def _number_of_e5m2(code: Any) -> Any:
    """Return the number of an e5m2 code, a float16 without its last byte; its exponent moves by 112."""
    magnitude = np.int32(code) & np.int32(0x7F)
    number = number_of_bits(magnitude << np.int32(21)) * np.float32(2.0**112)
    number = np.float32(np.nan) if magnitude > 0x7C else number
    number = np.float32(np.inf) if magnitude == 0x7C else number
    return -number if code & 0x80 else number


@compiled()
def _widen_int8(codes: Any, scales: Any, slot: Any, count: Any, size: Any, rows: Any) -> Any:
    """Widen codes with one scale per token."""
    for key in range(count):
        scale, start = number_at(pointer(scales), slot + key), codes + (slot + key) * size
        row = moved(rows, key * size)
        for d in range(widen_int8s(start, scale, row, size), size):
            put_number(row, d, np.float32(np.int8(byte_at(start + d))) * scale)


@compiled()
def _widen_bytes(codes: Any, step: Any, low: Any, size: Any, row: Any) -> Any:
    """Widen a row of unsigned bytes with a step and a low for each channel."""
    for d in range(widen_uint8s(codes, step, low, row, size), size):
        code = np.float32(byte_at(codes + d))
        put_number(row, d, fma(code, number_at(step, d), number_at(low, d)))


@compiled()
def _widen_nibbles(codes: Any, step: Any, low: Any, size: Any, row: Any) -> Any:
    """Widen a row of half bytes: first the low halves of all, then the high ones."""
    half = size // 2
    high_row, high_step, high_low = moved(row, half), moved(step, half), moved(low, half)
    for d in range(widen_low_nibbles(codes, step, low, row, half), half):
        code = np.float32(byte_at(codes + d) & 15)
        put_number(row, d, fma(code, number_at(step, d), number_at(low, d)))
    for d in range(widen_high_nibbles(codes, high_step, high_low, high_row, half), half):
        code = np.float32(byte_at(codes + d) >> 4)
        put_number(high_row, d, fma(code, number_at(high_step, d), number_at(high_low, d)))
