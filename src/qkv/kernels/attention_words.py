"""The words of an attention call: what the Python side writes down and the workers read.

A worker is one thread's share of a call. It gets everything by addresses, in 64-bit integers, and a
workspace of its own, which is bounded by the tile and not by T or S.
"""

BLOCK_KEYS = 64
STRETCH_KEYS = 1024
"""Keys after which the state begins anew; a multiple of `BLOCK_KEYS`."""

RUN_KEYS = 16
"""Keys that are widened at once where pages hold codes: a few kilobytes, which stay at hand."""

NO_LIMIT = 1 << 40
"""A window's reach that no text exceeds."""

# Four each for q, k, v: an address, and the steps of batch, head and position, in numbers. Five each
# for mask and bias: an address, 0 for none, and the steps of batch, head, query and key, in elements,
# 0 where they broadcast.
Q, K, V, MASK, BIAS = 0, 4, 8, 12, 17
ADDRESS, BATCH, HEAD, QUERY, KEY = range(5)
(
    OUT,  # (B, H, T, D_v) float32
    LSE,  # (B, H, T) float32
    PARTS,  # (pairs of B and G, panels, stretches, D_v + 2, lanes) float32, if keys are split
    WORKSPACE,  # (workers, WORKSPACE_SIZE) float32
    WORKSPACE_SIZE,
    SPANS,  # (workers, lanes, SPAN_WORDS) int64
    NUMBERS,  # scale, softcap (0 = none) as float32
    HEAD_NUMBERS,  # (H, 2) float32: ALiBi slope (0 = none) and sink (-inf = none)
    ROWS,  # (B, G, ROW_WORDS) int64: see below
    H,
    G,
    T,
    D,
    D_V,
    RIGHT,  # how many keys after its own a query sees
    PAIRS,  # B * G
    PANELS,
    STRETCHES,
    WORKERS,
    HAS_SLOPES,
    HAS_SINKS,
    STRETCH,  # address of the code that attends to one stretch
    SPLITS,  # whether a unit of work is a stretch of keys
    TABLE,  # (B, G, TABLE_STEP) int64: addresses of pages; 0 if keys and values are arrays
    TABLE_STEP,
    PAGE_KEYS,  # P
    ELEMENT,  # which of `ELEMENTS` the pages hold
    K_CODES,  # where in a page's bytes each part begins
    V_CODES,
    K_STEPS,  # scales, one per token or one per channel
    V_STEPS,
    K_LOWS,  # what code 0 stands for, where that is not 0
    V_LOWS,
    WIDEN,  # address of the code of `key_rows.widen`
    SHARES_VALUES,  # whether a value is the beginning of its key
    OWN_PAGE,  # which keys a query sees by the page it stands in: one of the three below
    POSITIONS,  # (B, G, POSITIONS_STEP) int32: where each key held stands in the text; 0 = at its slot
    POSITIONS_STEP,
    FACTORS,  # (B, T) float32, for sums over queries: how much each query counts; 0 = all the same
    COLUMNS,  # (B, G, S) float32: those sums
    OWN_CALL,  # how many bytes behind these words those of a call for the queries' own pages are; 0 = none
    NUM_WORDS,
) = range(22, 64)

# What a lane's query sees: the first key in its window, the one past its last, and the first of all.
SPAN_FIRST, SPAN_END, SPAN_LOWEST, SPAN_WORDS = range(4)
SPAN_BYTES = 8 * SPAN_WORDS

# A request to a function that is run by address: what it is told beside the call.
REQUEST_WORDS = 8

# What is told of each sequence and key head: the key position of query 0, valid queries, valid keys, how
# many keys before its own a query sees, and how many keys at the beginning no window hides.
OFFSET, Q_LENGTH, KV_LENGTH, LEFT, FIRST_KEYS, ROW_WORDS = range(6)

ALL_PAGES, EARLIER_PAGES, OWN_PAGE_ONLY = range(3)

ELEMENTS = ("float32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2", "int8", "int8-kivi", "int4")
FLOAT32, FP16, BF16, FP8_E4M3, FP8_E5M2, INT8, INT8_KIVI, INT4 = range(len(ELEMENTS))

GROUP = 32
"""Neighbouring channels of a value that share a scale in `INT4`."""
