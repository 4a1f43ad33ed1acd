"""Two ways to hold a few queries beside keys that pass by, with the same sums in the same order.

*Panels*, for prefill: each query is a lane of a vector. A number of a key meets many queries in one
instruction, and nothing is ever summed across lanes.

*Rows*, for decode, and for integer codes always: the numbers of a key are the lanes, and meet the few
queries of its group one after another. A line of memory costs few instructions, so that the work keeps up
with memory.

The two differ in where the numbers of queries and of the output under way stand, and in how the two
products run over them.
"""

from typing import Any, NamedTuple

from qkv.kernels.attention_words import BLOCK_KEYS
from qkv.kernels.code_products import code_mix, code_scores
from qkv.kernels.codes import CODES, INTEGERS, Codes, IntegerCodes
from qkv.kernels.compiler import compiled
from qkv.kernels.host import Tile
from qkv.kernels.integer_products import integer_mix, integer_scores
from qkv.kernels.memory import moved, number_at, put_number
from qkv.kernels.micro import CHAINS, merge_states, online_softmax, scale_rows, tile_product
from qkv.kernels.row_products import row_mix, row_scores
from qkv.kernels.row_softmax import paired_softmax

ROW_LANES = 8
"""Queries at most in the layout of rows."""

FEW_LANES = 4
"""Queries of which two keys' weights fit into one vector."""

COUNTS = 1, 2, 4, 8
"""Queries that products are made for."""

SPARE_KEYS = CHAINS
"""Rows of scores behind the last key that may be written, and are not read."""


class Layout(NamedTuple):
    """The compiled steps of one way to hold queries.

    Attributes
    ----------
    lanes : int
        Queries side by side.
    codes : (Codes, Codes), optional
        The form of keys and values that ``score`` and ``mix`` read, if they are codes of floats.
    integers : (IntegerCodes, IntegerCodes), optional
        The same, if they are whole numbers.
    beside : int
        Keys whose chains are beside each other in a vector, where codes of floats are read.
    chain_numbers : int
        Room that ``score`` needs beside the scores.
    place : ``(lane, d, size)``
        Where number d of a lane's query or output stands.
    score : ``(k, k_row, ahead, queries, num_lanes, chains, scores, num_keys, size)``
        Scores of a run of keys, ``lanes`` numbers per key. With codes
        ``(rows, following, queries, num_lanes, scores, num_keys, size)``: see `code_products`. With integers
        ``(rows, following, factors, queries, num_lanes, scales, lows, scores, num_keys, size)``: see
        `integer_products`.
    softmax : ``(scores, num_keys, num_lanes, scale, highest, denominator, rescale)``
        See `micro.online_softmax`.
    rescale : ``(output, size, num_lanes, factors)``
    mix : ``(v, v_row, ahead, weights, output, num_lanes, num_keys, size)``
        With codes ``(rows, following, weights, output, num_lanes, num_keys, size)``, with integers
        ``(rows, following, weights, num_lanes, scales, lows, output, num_keys, size)``.
    merge : see `micro.merge_states`
    """

    lanes: int
    codes: tuple[Codes, Codes] | None
    integers: tuple[IntegerCodes, IntegerCodes] | None
    beside: int
    chain_numbers: int
    place: Any
    score: Any
    softmax: Any
    rescale: Any
    mix: Any
    merge: Any


class BlockSteps(NamedTuple):
    """The compiled steps for a block of keys, which work on a layout's queries.

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


def panel_layout(tile: Tile) -> Layout:
    """Make the steps for ``tile.columns`` queries as lanes; ``tile.rows`` keys are in registers at once."""
    rows, vectors, width, lanes = tile.rows, tile.vectors, tile.width, tile.columns
    # A score has two registers, its chain and its sum; with one vector a row both fit all the same.
    score_rows = rows if vectors == 1 else max(1, rows // 2)
    score_tile = tile_product(score_rows, vectors, width, adds=False, chains=CHAINS)
    score_row = tile_product(1, vectors, width, adds=False, chains=CHAINS)
    mix_tile = tile_product(rows, vectors, width, adds=True)
    mix_row = tile_product(1, vectors, width, adds=True)
    rescale_rows = scale_rows(vectors, width)

    @compiled()
    def place(lane, d, size):
        return d * lanes + lane

    @compiled()
    def score(k, k_row, ahead, queries, num_lanes, chains, scores, num_keys, size):
        whole = num_keys // score_rows * score_rows
        for key in range(0, whole, score_rows):
            beside = moved(scores, key * lanes)
            score_tile(moved(k, key * k_row), k_row, 1, queries, lanes, beside, lanes, size)
        for key in range(whole, num_keys):
            beside = moved(scores, key * lanes)
            score_row(moved(k, key * k_row), k_row, 1, queries, lanes, beside, lanes, size)

    @compiled()
    def rescale(output, size, num_lanes, factors):
        rescale_rows(output, size, factors)

    @compiled()
    def mix(v, v_row, ahead, weights, output, num_lanes, num_keys, size):
        whole = size // rows * rows
        for d in range(0, whole, rows):
            mix_tile(moved(v, d), 1, v_row, weights, lanes, moved(output, d * lanes), lanes, num_keys)
        for d in range(whole, size):
            mix_row(moved(v, d), 1, v_row, weights, lanes, moved(output, d * lanes), lanes, num_keys)

    return Layout(
        lanes,
        None,
        None,
        1,
        0,
        place,
        score,
        _plain_softmax(vectors, width),
        rescale,
        mix,
        merge_states(vectors, width),
    )


def row_layout(tile: Tile, element: str = "float32") -> Layout:
    """Make the steps for up to `ROW_LANES` queries, each a row; ``tile`` is the processor's.

    With an element of `codes.CODES` or `codes.INTEGERS` keys and values are read as codes in pages.
    """
    codes, integers, lanes = CODES.get(element), INTEGERS.get(element), ROW_LANES
    if integers:
        score, mix = _products_of_integers(*integers)
    else:
        score, mix = _products_of_codes(tile, *codes) if codes else _products_of_rows(tile)
    softmax = _packed_softmax(lanes) if codes or integers else _plain_softmax(1, lanes)

    @compiled()
    def place(lane, d, size):
        return lane * size + d

    @compiled()
    def rescale(output, size, num_lanes, factors):
        for lane in range(num_lanes):
            factor = number_at(factors, lane)
            if factor != 1:
                for place in range(lane * size, (lane + 1) * size):
                    put_number(output, place, number_at(output, place) * factor)

    chain_numbers = 0 if codes or integers else (BLOCK_KEYS + SPARE_KEYS) * lanes * CHAINS
    merge = merge_states(1, lanes)
    return Layout(
        lanes, codes, integers, _beside(tile), chain_numbers, place, score, softmax, rescale, mix, merge
    )


def _plain_softmax(vectors: int, width: int) -> Any:
    soften = online_softmax(vectors, width)

    @compiled()
    def softmax(scores, num_keys, num_lanes, scale, highest, denominator, factors):
        soften(scores, num_keys, scale, highest, denominator, factors)

    return softmax


def _packed_softmax(lanes: int) -> Any:
    """Make the softmax for codes; float32 waits for memory, and need not be compiled twice."""
    soften, soften_few = online_softmax(1, lanes), paired_softmax(FEW_LANES, lanes)

    @compiled()
    def softmax(scores, num_keys, num_lanes, scale, highest, denominator, factors):
        if num_lanes <= FEW_LANES:
            soften_few(scores, num_keys, scale, highest, denominator, factors)
        else:
            soften(scores, num_keys, scale, highest, denominator, factors)

    return softmax


def _beside(tile: Tile) -> int:
    """Return how many keys' chains fit into a vector."""
    return max(1, tile.width // CHAINS)


def _vectors_of(tile: Tile, queries: int) -> int:
    """Return how many vectors of each query's output are in registers at once."""
    return min(8, max(1, tile.rows * tile.vectors // queries))


def _code_vectors_of(tile: Tile, queries: int, codes: Codes) -> int:
    """Return the same for rows of codes, in pairs where these are read so."""
    vectors = _vectors_of(tile, queries)
    return max(1, vectors // 2 * 2) if codes.in_pairs else vectors


def _products_of_rows(tile: Tile) -> tuple[Any, Any]:
    """Make scores and mix of a layout for rows of float32."""
    score_1, score_2, score_4, score_8 = (row_scores(count, ROW_LANES) for count in COUNTS)
    mix_1, mix_2, mix_4, mix_8 = (
        row_mix(count, _vectors_of(tile, count), tile.width, ROW_LANES) for count in COUNTS
    )

    @compiled()
    def score(k, k_row, ahead, queries, num_lanes, chains, scores, num_keys, size):
        if num_lanes == 1:
            score_1(k, k_row, ahead, queries, size, chains, scores, num_keys, size)
        elif num_lanes == 2:
            score_2(k, k_row, ahead, queries, size, chains, scores, num_keys, size)
        elif num_lanes <= 4:
            score_4(k, k_row, ahead, queries, size, chains, scores, num_keys, size)
        else:
            score_8(k, k_row, ahead, queries, size, chains, scores, num_keys, size)

    @compiled()
    def mix(v, v_row, ahead, weights, output, num_lanes, num_keys, size):
        if num_lanes == 1:
            mix_1(v, v_row, ahead, weights, output, size, num_keys, size)
        elif num_lanes == 2:
            mix_2(v, v_row, ahead, weights, output, size, num_keys, size)
        elif num_lanes <= 4:
            mix_4(v, v_row, ahead, weights, output, size, num_keys, size)
        else:
            mix_8(v, v_row, ahead, weights, output, size, num_keys, size)

    return score, mix


def _products_of_codes(tile: Tile, keys: Codes, values: Codes) -> tuple[Any, Any]:
    """Make scores and mix of a layout for rows of codes."""
    sums, beside = 2 * CHAINS if tile.width > CHAINS else CHAINS, _beside(tile)
    score_1, score_2, score_4, score_8 = (
        code_scores(count, sums, beside, ROW_LANES, keys) for count in COUNTS
    )
    mix_1, mix_2, mix_4, mix_8 = (
        code_mix(count, _code_vectors_of(tile, count, values), tile.width, ROW_LANES, values)
        for count in COUNTS
    )

    @compiled()
    def score(rows, following, queries, num_lanes, scores, num_keys, size):
        if num_lanes == 1:
            score_1(rows, following, queries, scores, num_keys, size)
        elif num_lanes == 2:
            score_2(rows, following, queries, scores, num_keys, size)
        elif num_lanes <= 4:
            score_4(rows, following, queries, scores, num_keys, size)
        else:
            score_8(rows, following, queries, scores, num_keys, size)

    @compiled()
    def mix(rows, following, weights, output, num_lanes, num_keys, size):
        if num_lanes == 1:
            mix_1(rows, following, weights, output, size, num_keys, size)
        elif num_lanes == 2:
            mix_2(rows, following, weights, output, size, num_keys, size)
        elif num_lanes <= 4:
            mix_4(rows, following, weights, output, size, num_keys, size)
        else:
            mix_8(rows, following, weights, output, size, num_keys, size)

    return score, mix


def _products_of_integers(keys: IntegerCodes, values: IntegerCodes) -> tuple[Any, Any]:
    """Make scores and mix of a layout for rows of codes that are whole numbers."""
    score_1, score_2, score_4, score_8 = (integer_scores(count, ROW_LANES, keys) for count in COUNTS)
    mix_1, mix_2, mix_4, mix_8 = (integer_mix(count, ROW_LANES, values) for count in COUNTS)

    @compiled()
    def score(rows, following, factors, queries, num_lanes, scales, lows, scores, num_keys, size):
        if num_lanes == 1:
            score_1(rows, following, factors, queries, scales, lows, scores, num_keys, size)
        elif num_lanes == 2:
            score_2(rows, following, factors, queries, scales, lows, scores, num_keys, size)
        elif num_lanes <= 4:
            score_4(rows, following, factors, queries, scales, lows, scores, num_keys, size)
        else:
            score_8(rows, following, factors, queries, scales, lows, scores, num_keys, size)

    @compiled()
    def mix(rows, following, weights, num_lanes, scales, lows, output, num_keys, size):
        if num_lanes == 1:
            mix_1(rows, following, weights, scales, lows, output, size, num_keys, size)
        elif num_lanes == 2:
            mix_2(rows, following, weights, scales, lows, output, size, num_keys, size)
        elif num_lanes <= 4:
            mix_4(rows, following, weights, scales, lows, output, size, num_keys, size)
        else:
            mix_8(rows, following, weights, scales, lows, output, size, num_keys, size)

    return score, mix
