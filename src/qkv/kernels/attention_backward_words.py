"""The words of a call of attention's backward: what the Python side writes down and the workers read.

As in `attention_words`: a worker is one thread's share of a call, and gets everything by addresses, in
64-bit integers. What changes from panel to panel stands in words of its own, its state.
"""

LANES = 32
"""Queries of a panel: neighbours in one head, each a lane."""

BLOCK_KEYS = 64

NO_LIMIT = 1 << 30
"""A window's reach that no text exceeds; positions are compared as 32-bit integers."""

# Four words for each array: its address, and the steps of batch, head and position, in numbers.
Q, K, V, D_OUTPUT, OUTPUT, D_Q, D_K, D_V = range(0, 32, 4)
ADDRESS, BATCH, HEAD, POSITION = range(4)
(
    LSE,  # (B, H, T) float32
    ROWS,  # (B, ROW_WORDS) int64
    STATES,  # (workers, STATE_WORDS) int64
    WORKERS,
    B,
    H,
    G,
    T,
    D,  # of queries and keys
    VALUE_D,
    HELD_D,  # rows in the workspace are longer: whole rectangles of registers
    HELD_VALUE_D,
    LEFT,  # how many keys before and after its own a query sees
    RIGHT,
    SCALE,  # the bits of a float32
    LOAD_PANEL,  # addresses of code
    ADD_BLOCK,
    NUM_WORDS,
) = range(32, 50)

# What is told of each sequence: the key position of query 0, valid queries, valid keys.
OFFSET, Q_LENGTH, KV_LENGTH, ROW_WORDS = range(4)

# A worker's state: where the parts of its workspace are, and what it is at.
(
    WEIGHTS,  # (BLOCK_KEYS, LANES) float32, as the gradients of the scores
    D_SCORES,
    LANE_NUMBERS,  # (LANE_WORDS, LANES): see below
    Q_ROWS,  # a panel's queries, (LANES, HELD_D), times the scale
    Q_LANES,  # the same, (HELD_D, LANES)
    D_OUTPUT_ROWS,
    D_OUTPUT_LANES,
    OUTPUT_ROWS,
    D_Q_ROWS,
    NUM_PARTS,
) = range(10)
(
    OWN_B,
    OWN_G,
    OWN_H,
    PANEL,  # its first query
    PANEL_QUERIES,
    START,  # the keys from here on, and before there, may be seen by some query of the panel
    STOP,
    IS_FINITE,  # whether no NaN or infinity can reach where it does not belong
    BLOCK,  # its first key
    STATE_WORDS,
) = range(NUM_PARTS, NUM_PARTS + 10)

# What each lane is told: the log-sum-exp of its scores, the sum of its d_output * output, and as int32 the
# first key it sees and how many it sees from there on.
LANE_LSE, LANE_DELTA, LANE_FIRST, LANE_COUNT, LANE_WORDS = range(5)


def part_numbers(held_size: int, held_value_size: int) -> tuple[int, ...]:
    """Return how many float32 numbers each part of a workspace takes, in the order of the words."""
    block, queries, outputs = BLOCK_KEYS * LANES, LANES * held_size, LANES * held_value_size
    return block, block, LANE_WORDS * LANES, queries, queries, outputs, outputs, outputs, queries
