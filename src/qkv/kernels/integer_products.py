"""Products of a few queries with rows of integer codes, in integers.

For int8, int8-kivi and int4. Queries and weights become whole numbers of 15 bits and a sign, each row of them
with a scale of its own (`integer_operands`); their products with codes are added up in 32 bits, exactly, and
what comes out is scaled back to float32. Exact sums have no order, so that prefill and decode give the same
bits however they are cut: for codes in whole vectors both come through here.

The ladder: decode of one token over 32,768 keys, 32 query and 8 key heads of 128, one thread at 2.84 GHz with
AVX2, ns a key and key head, where float32 in the same pages takes 61:

================================================  =====  =========  =====
version                                           int8   int8-kivi  int4
================================================  =====  =========  =====
numbers made of codes in registers, and float32   46.2   48.2       52.3
whole numbers                                     38.6   43.5       44.0
and lines of whole bytes into the second level    33.7   39.0       44.0
and the queries of a page written in one go       33.6   37.1       43.0
and a block's weights, not a page's               33.6   37.1       42.0
================================================  =====  =========  =====

With two threads float32 takes 9.0 to 9.7 ms, int8 4.5, int8-kivi 4.9, int4 5.6, of which 0.2 are Python.
Prefill, 256 tokens behind 2,048 with panels of 8 lanes, went from 169, 194 and 196 ms to 119, 131 and 155;
float32 takes 154.

What limits: for each key and query 8 products of 16 words with a score, 8 with a value, and as many
additions. By themselves int4's scores take 11 ns and its mix 12, where products in float32 took 22 and 17. In
place the sums of scores take 9.4, to add up 8 of each 3.0, the mix 13, the softmax 2.9, weights as words
2.7, tables of rows 3.1. Int4 takes longer than int8 because each group of channels has weights of its own.
Where one instruction multiplies words and adds them to a sum (AVX-512 VNNI) the compiler takes it, and the
additions are gone; that was read in its code and not timed.

Tried and not kept: weights written 8 times, to be read as vectors (2 ns slower: what is written does not
stay in the first level); two pairs of keys in a turn (0.6 ns of int4's mix by itself); lines of half bytes
into the second level (no change).
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.attention_words import GROUP
from qkv.kernels.codes import PER_GROUP, PER_ROW, IntegerCodes
from qkv.kernels.launch import LINE_BYTES
from qkv.kernels.memory import instruction
from qkv.kernels.row_addresses import least, row_at, rows_abreast
from qkv.kernels.vectors import I8, I16, I32, VectorWriter, index, repeat

WORDS = 16
"""Codes in a vector, as numbers of 16 bits."""

SUMS = 8
"""Sums in a vector, of 32 bits: each takes two neighbouring words."""

PARTIAL = 4
"""Sums that are added up together, to one number each."""

MOST_SUMS = 8
"""Vectors of sums in registers at once."""

PAIRS = 32
"""Pairs of keys in a block."""

WORD_VECTOR, SUM_VECTOR = ir.VectorType(I16, WORDS), ir.VectorType(I32, SUMS)


def integer_scores(queries: int, lanes: int, codes: IntegerCodes) -> Any:
    """Make ``scores = k q^T`` of rows of codes against ``queries`` rows of whole numbers, a power of two.

    The result takes ``(rows, following, factors, q, scales, lows, scores, num_keys, depth)``: addresses of
    two tables, where each row begins and which one to ask for meanwhile; a factor for each row, if these have
    one; the address of the queries, rows of ``depth`` words; for each query what its sums are multiplied by,
    and what is added. A key's scores are ``lanes`` numbers apart; up to `MOST_SUMS` rows more than there are
    keys are written. Depth is a whole number of `WORDS`, in each half.
    """

    @instruction
    def product(
        typing_context: Any,
        rows: Any,
        following: Any,
        factors: Any,
        q: Any,
        scales: Any,
        lows: Any,
        scores: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, factors, size, scales, lows, scores, size, size)
        return signature, _write_scores(queries, lanes, codes)

    return product


def _write_scores(queries: int, lanes: int, codes: IntegerCodes) -> Callable[..., Any]:
    abreast = max(1, MOST_SUMS // queries)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, factors, q, scales, lows, scores, num_keys, depth = arguments
        half, last = builder.sdiv(depth, index(codes.halves)), builder.sub(num_keys, index(1))
        own = builder.inttoptr(q, I16.as_pointer())
        q_rows = [builder.gep(own, [builder.mul(depth, index(query))]) for query in range(queries)]

        def score_some(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(abreast))
            tables, near = (table, following), codes.halves == 2
            keys, rows = rows_abreast(builder, tables, first, abreast, last, half, near=near)

            def step(turn: Any, sums: list[Any]) -> list[Any]:
                place = builder.mul(turn, index(WORDS))
                read = [read_words(builder, builder.gep(row, [place]), codes) for row in rows]
                for number_of_half in range(codes.halves):
                    column = builder.add(builder.mul(half, index(number_of_half)), place)
                    sums = list(sums)
                    for query, row in enumerate(q_rows):
                        against = _load(builder, builder.gep(row, [column]), WORD_VECTOR, 2)
                        for key, words in enumerate(read):
                            own = key * queries + query
                            sums[own] = builder.add(
                                sums[own], dot_pairs(builder, words[number_of_half], against)
                            )
                return sums

            zeros = [ir.Constant(SUM_VECTOR, [0] * SUMS)] * (abreast * queries)
            sums = repeat(builder, builder.sdiv(half, index(WORDS)), zeros, step)
            places = [(key, query) for key in range(abreast) for query in range(queries)]
            writer = VectorWriter(builder, PARTIAL)
            for some in range(0, len(sums), PARTIAL):
                totals = builder.sitofp(total_each(builder, sums[some : some + PARTIAL]), writer.type)
                where = places[some : some + PARTIAL]
                scale = _each(writer, scales, [index(query) for _, query in where])
                if codes.steps == PER_ROW:
                    factor = _each(writer, factors, [keys[key] for key, _ in where])
                    score = builder.fmul(builder.fmul(totals, scale), factor)
                else:
                    score = writer.fma(
                        totals, scale, _each(writer, lows, [index(query) for _, query in where])
                    )
                together = min(queries, PARTIAL)
                for part in range(0, PARTIAL, together):
                    key, query = where[part]
                    row = builder.mul(builder.add(first, index(key)), index(lanes))
                    numbers = writer.part(score, part, together)
                    writer.store_part(numbers, scores, builder.add(row, index(query)))
            return []

        rounds = builder.sdiv(builder.add(num_keys, index(abreast - 1)), index(abreast))
        repeat(builder, rounds, [], score_some)
        return context.get_dummy_value()

    return write


def integer_mix(queries: int, lanes: int, codes: IntegerCodes) -> Any:
    """Make ``output += weights v`` for ``queries`` rows of output.

    The result takes ``(rows, following, weights, scales, lows, output, output_row, num_keys, depth)``: tables
    as `integer_scores` does; the address of weights, for each group of channels, pair of keys and lane two
    words beside each other; and for each group and lane what a sum is multiplied by, and what is added.
    Without groups of channels there is one of all. Depth is a whole number of `WORDS`. Where keys are left
    over from pairs the tables have one row more, whose weight is 0.
    """

    @instruction
    def product(
        typing_context: Any,
        rows: Any,
        following: Any,
        weights: Any,
        scales: Any,
        lows: Any,
        output: Any,
        output_row: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, size, scales, lows, output, size, size, size)
        return signature, _write_mix(queries, lanes, codes)

    return product


def _write_mix(queries: int, lanes: int, codes: IntegerCodes) -> Callable[..., Any]:
    at_once = min(queries, MOST_SUMS // 2)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, weights, scales, lows, output, output_row, num_keys, depth = arguments
        writer = VectorWriter(builder, SUMS)
        half = builder.sdiv(depth, index(codes.halves))
        pairs = builder.sdiv(builder.add(num_keys, index(1)), index(2))
        chunk = WORDS // codes.halves  # bytes of a row, and two vectors of sums
        words_of_pairs = builder.inttoptr(weights, I32.as_pointer())
        last_line = builder.sdiv(builder.sub(half, index(1)), index(LINE_BYTES))

        def asked_for(number: Any) -> tuple[Any, Any]:
            """Return which key of a pair and which line of its row to ask for in a turn over the columns."""
            line = least(builder, builder.sdiv(number, index(2)), last_line)
            return builder.srem(number, index(2)), builder.mul(line, index(LINE_BYTES))

        def mix(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(chunk))
            which, line = asked_for(number)
            columns = [first, builder.add(first, half if codes.halves == 2 else index(SUMS))]
            groups = [
                builder.sdiv(column, index(GROUP)) if codes.steps == PER_GROUP else index(0)
                for column in columns
            ]
            for some in range(0, queries, at_once):
                asked = range(some, some + at_once)

                def step(pair: Any, sums: list[Any], asked: Sequence[int] = asked) -> list[Any]:
                    key = builder.mul(pair, index(2))
                    keys = key, builder.add(key, index(1))
                    starts = [builder.gep(row_at(builder, table, key), [first]) for key in keys]
                    if asked[0] == 0:
                        next_row = row_at(builder, following, builder.add(key, which))
                        writer.prefetch(next_row, line, near=codes.halves == 2)
                    read = read_pairs(builder, starts, codes)
                    growing, grown = iter(sums), []
                    for query in asked:
                        for words, group in zip(read, groups, strict=True):
                            place = builder.add(builder.mul(group, index(PAIRS)), pair)
                            place = builder.add(builder.mul(place, index(lanes)), index(query))
                            weight = builder.load(builder.gep(words_of_pairs, [place]))
                            grown.append(
                                builder.add(dot_pairs(builder, words, _both(builder, weight)), next(growing))
                            )
                    return grown

                zeros = [ir.Constant(SUM_VECTOR, [0] * SUMS)] * (2 * at_once)
                growing = iter(repeat(builder, pairs, zeros, step))
                for query in asked:
                    row = builder.gep(output, [builder.mul(output_row, index(query))])
                    for column, group in zip(columns, groups, strict=True):
                        own = builder.add(builder.mul(group, index(lanes)), index(query))
                        total, before = builder.sitofp(next(growing), writer.type), writer.load(row, column)
                        if codes.steps == PER_GROUP:
                            low = writer.splat(builder.load(builder.gep(lows, [own])))
                            before = builder.fadd(before, low)
                        scale = writer.splat(builder.load(builder.gep(scales, [own])))
                        writer.store(writer.fma(total, scale, before), row, column)
            return []

        repeat(builder, builder.sdiv(half, index(chunk)), [], mix)
        return context.get_dummy_value()

    return write


def read_words(builder: ir.IRBuilder, address: Any, codes: IntegerCodes) -> list[Any]:
    """Read the codes of `WORDS` bytes, of each half a vector of words."""
    code_bytes = _load(builder, address, ir.VectorType(I8, WORDS), 1)
    return _widened(builder, code_bytes, codes)


def read_pairs(builder: ir.IRBuilder, addresses: Sequence[Any], codes: IntegerCodes) -> list[Any]:
    """Read the codes of two rows into two vectors in which those of a channel are beside each other."""
    count = WORDS // codes.halves
    row, next_row = (_load(builder, address, ir.VectorType(I8, count), 1) for address in addresses)
    in_turn = [row * count + place for place in range(count) for row in range(2)]
    beside = [
        builder.shuffle_vector(
            row, next_row, ir.Constant(ir.VectorType(I32, WORDS), in_turn[some : some + WORDS])
        )
        for some in range(0, 2 * count, WORDS)
    ]
    return [words for one in beside for words in _widened(builder, one, codes)]


def _widened(builder: ir.IRBuilder, code_bytes: Any, codes: IntegerCodes) -> list[Any]:
    if codes.is_signed:
        return [builder.sext(code_bytes, WORD_VECTOR)]
    words = builder.zext(code_bytes, WORD_VECTOR)
    if codes.halves == 1:
        return [words]
    low, four = (ir.Constant(WORD_VECTOR, [number] * WORDS) for number in (15, 4))
    return [builder.and_(words, low), builder.lshr(words, four)]


def dot_pairs(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    """Return the products of words, those of neighbours added up, which many processors do at once."""
    wide = ir.VectorType(I32, WORDS)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    even, odd = (
        builder.shuffle_vector(products, products, ir.Constant(SUM_VECTOR, list(range(first, WORDS, 2))))
        for first in range(2)
    )
    return builder.add(even, odd)


def total_each(builder: ir.IRBuilder, vectors: Sequence[Any]) -> Any:
    """Return the sum over its lanes of each of `PARTIAL` vectors of sums."""

    def neighbours(one: Any, other: Any) -> Any:
        """Add up neighbours, within each half of a vector: first those of one, then those of the other."""
        even = [0, 2, 8, 10, 4, 6, 12, 14]
        odd = [lane + 1 for lane in even]
        first, second = (
            builder.shuffle_vector(one, other, ir.Constant(SUM_VECTOR, lanes)) for lanes in (even, odd)
        )
        return builder.add(first, second)

    first, second, third, fourth = vectors
    halves = neighbours(neighbours(first, second), neighbours(third, fourth))
    low, high = (
        builder.shuffle_vector(halves, halves, ir.Constant(ir.VectorType(I32, PARTIAL), lanes))
        for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])
    )
    return builder.add(low, high)


def _both(builder: ir.IRBuilder, weight: Any) -> Any:
    """Repeat a pair of words over a vector."""
    blank = ir.Constant(SUM_VECTOR, ir.Undefined)
    first = builder.insert_element(blank, weight, ir.Constant(I32, 0))
    repeated = builder.shuffle_vector(first, blank, ir.Constant(SUM_VECTOR, [0] * SUMS))
    return builder.bitcast(repeated, WORD_VECTOR)


def _each(writer: VectorWriter, numbers: Any, places: Sequence[Any]) -> Any:
    """Return the numbers at some places as a vector."""
    vector = ir.Constant(writer.type, ir.Undefined)
    for lane, place in enumerate(places):
        number = writer.builder.load(writer.builder.gep(numbers, [place]))
        vector = writer.builder.insert_element(vector, number, ir.Constant(I32, lane))
    return vector


def _load(builder: ir.IRBuilder, pointer: Any, type_: ir.Type, align: int) -> Any:
    loaded: Any = builder.load(builder.bitcast(pointer, type_.as_pointer()))
    loaded.align = align
    return loaded
