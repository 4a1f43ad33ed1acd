"""Products of a few queries with rows of codes of floats, which become numbers in the registers.

For decode on pages of float16, bfloat16 and 8-bit floats: the sums of `row_products`, in the same order, of
the numbers that `qkv.cache.elements` decodes, to the bit. Where each row begins is told by a table of a
block's rows. `integer_products` has codes that are whole numbers.

The ladder: decode of one token over 32,768 keys, 32 query and 8 key heads of 128, two threads of a
processor with AVX-512 on units of half its width. How many times as fast as float32 in the same pages,
medians of interleaved pairs; from run to run they differ by a tenth.

==============================================  =====  =====  ========  ========
version                                         fp16   bf16   fp8-e4m3  fp8-e5m2
==============================================  =====  =====  ========  ========
16 keys at a time widened beside, then as rows  1.5    1.6    1.4       1.7
widened in the registers                        2.0    1.9    1.7       2.1
and no load that repeats what it reads          2.2    2.2    2.4       2.9
==============================================  =====  =====  ========  ========

The first lines are of minutes when float32 took 10.3 ms, the last of some when it took 11.7. The last step by
itself, one thread, ns a key and key head:

=======  =====  =====  ========  ========
version  fp16   bf16   fp8-e4m3  fp8-e5m2
=======  =====  =====  ========  ========
before   28.6   30.3   40.6      32.2
after    28.3   28.1   34.3      27.8
=======  =====  =====  ========  ========

What it found: a load that repeats a number, or eight, over a vector of 16 takes a turn of the units that
multiply, although it needs none when nothing else does. Scores went from 15.9 ns to 14.4 with queries that
are written down twice and 8 keys at once in place of 4, the mix from 12.0 to 10.5 when each multiplication
repeats its weight itself.

AVX2, vectors of 8 and 16 registers, one thread at 2.84 GHz, each product by itself, ns a key and key head, of
which the multiplications alone are 11.3:

=================================  ============  =========  ============  =========
version                            e4m3, scores  e4m3, mix  e5m2, scores  e5m2, mix
=================================  ============  =========  ============  =========
a vector of codes at a time        27.8          29.8       19.6          17.1
8 sums of a mix in place of 12     27.8          24.1       19.6          17.4
two vectors at once, as shorts     24.8          22.4       -             -
and e4m3's unit goes into weights  24.8          20.1       -             -
e5m2's codes laid between zeros    -             -          18.2          15.3
two vectors at once                -             -          17.3          15.3
=================================  ============  =========  ============  =========

With all around it e4m3 went from 78 ns to 56 and e5m2 from 45.6 to 41.4, where fp16 takes 39 and float32
61. 12 sums, the constants of e4m3 and its numbers did not fit into the registers. In scores its unit stays
with the numbers: 2 ns, but a large query would become infinite.

What limits: the multipliers, 128 multiplications of vectors of 8, or half as many of 16, for four queries and
each key; then what makes numbers of codes, chains that are added up in their order, and the softmax.

Tried and not kept: the softmax on vectors of 16, with maxima that wait for one instruction, or without its
additions (no change: what fills is the list of instructions that wait); blocks of four lanes apart before
single ones where chains are added up (no change), and chains written to memory and added up behind all keys
of a block (0.5 ns slower); lines into the first level (two blocks fill it); tables of rows by additions,
without divisions (no change); numbers of the next key made ready during this one (no change); fp16 in pairs
(mix 8 % slower).
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once

from qkv.kernels.attention_words import BLOCK_KEYS
from qkv.kernels.codes import Codes
from qkv.kernels.launch import LINE_BYTES
from qkv.kernels.memory import instruction
from qkv.kernels.micro import CHAINS
from qkv.kernels.row_addresses import row_at, rows_abreast
from qkv.kernels.vectors import F32, VectorWriter, index, repeat

WIDEST = 16
"""Numbers in the longest vectors, of AVX-512."""

MOST_SHORTS = 16
"""Integers of 16 bits that codes are read as at once: a register of AVX2."""

MOST_KEYS = 8
"""Keys that are read at the same time, each from its own address."""


def _at(builder: ir.IRBuilder, row: Any, codes: Codes, place: Any) -> Any:
    return builder.gep(row, [builder.mul(place, index(codes.code_bytes))])


def code_scores(queries: int, sums: int, beside: int, lanes: int, codes: Codes) -> Any:
    """Make ``scores = k q^T`` of rows of codes against ``queries`` rows of queries, a power of two.

    The result takes ``(rows, following, q, scores, num_keys, depth)``: addresses of two tables, where each
    row begins and which one to ask for meanwhile. Scores stand as those of `row_products.row_scores`, of
    which up to `MOST_KEYS` rows more than there are keys are written. Depth is a multiple of `CHAINS`.

    Several keys are read at once, as many as have their chains in ``sums`` registers: what is read of a query
    meets all of them, and no sum waits for itself. The chains of ``beside`` keys are beside each other in a
    vector. Queries are told as such vectors, each `CHAINS` numbers so many times one after another: at every
    `CHAINS` columns one of each of ``lanes`` queries.
    """

    @instruction
    def product(
        typing_context: Any, rows: Any, following: Any, q: Any, scores: Any, num_keys: Any, depth: Any
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, q, scores, size, size)
        return signature, _write_scores(queries, sums, beside, lanes, codes)

    return product


def _write_scores(queries: int, num_sums: int, beside: int, lanes: int, codes: Codes) -> Callable[..., Any]:
    abreast = min(MOST_KEYS, num_sums * beside // queries)
    at_once = _vectors_at_once(codes, beside * CHAINS)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, q, scores, num_keys, depth = arguments
        writer, last = VectorWriter(builder, beside * CHAINS), builder.sub(num_keys, index(1))
        row_bytes, turns = builder.mul(depth, index(codes.code_bytes)), builder.sdiv(depth, index(CHAINS))

        def score_some(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(abreast))
            tables = table, following
            _, rows = rows_abreast(builder, tables, first, abreast, last, row_bytes, near=False)

            def some_turns(turn: Any, sums: list[Any], count: int) -> list[Any]:
                """Multiply ``count`` vectors of each key from a turn on."""
                place = builder.mul(turn, index(CHAINS))
                starts = [_at(builder, row, codes, place) for row in rows]
                groups = [starts[key : key + beside] for key in range(0, abreast, beside)]
                read = [_neighbours(writer, codes, group, count) for group in groups]
                for further in range(count):
                    own_turn = builder.add(turn, index(further))
                    own = builder.gep(q, [builder.mul(own_turn, index(lanes * writer.width))])
                    against = [writer.load(own, index(query * writer.width)) for query in range(queries)]
                    growing = iter(sums)
                    sums = [
                        writer.fma(_whole(writer, vectors[further], codes), query, next(growing))
                        for vectors in read
                        for query in against
                    ]
                return sums

            zeros = [writer.constant(0.0)] * (abreast // beside * queries)
            sums = _in_steps(builder, turns, at_once, zeros, some_turns)
            _store_scores(writer, sums, queries, first, scores, lanes)
            return []

        rounds = builder.sdiv(builder.add(num_keys, index(abreast - 1)), index(abreast))
        repeat(builder, rounds, [], score_some)
        return context.get_dummy_value()

    return write


def _store_scores(
    writer: VectorWriter, sums: Sequence[Any], queries: int, first: Any, scores: Any, lanes: int
) -> None:
    """Add up the chains of some keys from ``first`` on; one key's in a vector for each query."""
    builder, beside = writer.builder, writer.width // CHAINS
    for some in range(0, len(sums), CHAINS):
        vectors = list(sums[some : some + CHAINS])
        totals = writer.sum_each(vectors + [writer.constant(0.0)] * (CHAINS - len(vectors)))
        for number in range(0, len(vectors), queries):
            for key in range(beside):
                place = builder.add(first, index((some + number) // queries * beside + key))
                part = writer.part(totals, key * CHAINS + number, queries)
                writer.store_part(part, scores, builder.mul(place, index(lanes)))


def _in_steps(
    builder: ir.IRBuilder, count: Any, at_once: int, carried: list[Any], body: Callable[..., list[Any]]
) -> list[Any]:
    """Write a loop over a number of turns, several at once, and then over what is left, one by one.

    ``body(turn, carried, count)`` writes ``count`` turns from one on.
    """
    whole = builder.sdiv(count, index(at_once))
    done = builder.mul(whole, index(at_once))
    carried = repeat(
        builder, whole, carried, lambda turn, sums: body(builder.mul(turn, index(at_once)), sums, at_once)
    )
    if at_once == 1:
        return carried
    left = builder.sub(count, done)
    return repeat(builder, left, carried, lambda turn, sums: body(builder.add(done, turn), sums, 1))


def _vectors_at_once(codes: Codes, width: int) -> int:
    """Return how many neighbouring vectors of codes are read at once."""
    return 2 if codes.in_pairs and 2 * width <= MOST_SHORTS else 1


def _neighbours(writer: VectorWriter, codes: Codes, addresses: Sequence[Any], count: int) -> list[Any]:
    """Read vectors one after another, the first at an address; one vector may have several addresses."""
    numbers = codes.load(VectorWriter(writer.builder, count * writer.width), *addresses)
    return [writer.part(numbers, number * writer.width, writer.width) for number in range(count)]


def _whole(writer: VectorWriter, numbers: Any, codes: Codes) -> Any:
    """Return as many times the numbers as makes up for the unit that codes are read in."""
    return numbers if codes.unit == 1 else writer.builder.fmul(numbers, writer.constant(1 / codes.unit))


def code_mix(queries: int, vectors: int, width: int, lanes: int, codes: Codes) -> Any:
    """Make ``output += weights v`` for ``queries`` rows of output, ``vectors`` of each in registers.

    The result takes ``(rows, following, weights, output, output_row, num_keys, depth)``, tables as
    `code_scores` does. Each number of the output is one chain over the keys in order. Key r's weights stand
    ``lanes`` apart. Depth is a whole number of vectors; keys are a block at most.
    """

    @instruction
    def product(
        typing_context: Any,
        rows: Any,
        following: Any,
        weights: Any,
        output: Any,
        output_row: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, weights, output, size, size, size)
        return signature, _write_mix(queries, vectors, width, lanes, codes)

    return product


def _write_mix(queries: int, vectors: int, width: int, lanes: int, codes: Codes) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, weights, output, output_row, num_keys, depth = arguments
        writer = VectorWriter(builder, width)
        outputs = [builder.gep(output, [builder.mul(output_row, index(query))]) for query in range(queries)]
        weights = _told_weights(builder, weights, num_keys, lanes, codes)

        def mix(first: Any, count: int) -> None:
            """Mix ``count`` vectors of columns from the first on."""
            columns = [builder.add(first, index(number * width)) for number in range(count)]

            def step(key: Any, sums: list[Any]) -> list[Any]:
                row, next_row = (row_at(builder, one, key) for one in (table, following))
                for column in columns[:: max(1, LINE_BYTES // (width * codes.code_bytes))]:
                    writer.prefetch(_at(builder, next_row, codes, column), index(0))
                numbers = _read(writer, codes, [_at(builder, row, codes, column) for column in columns])
                growing = iter(sums)
                first_weight = builder.mul(key, index(lanes))
                asked = [builder.add(first_weight, index(query)) for query in range(queries)]
                return [
                    writer.fma(writer.splat(builder.load(builder.gep(own, [weight]))), number, next(growing))
                    for weight in asked
                    for own, number in zip(own_weights, numbers, strict=True)
                ]

            own_weights = [_apart(builder, weights, width) for _ in columns]
            begun = [writer.load(row, column) for row in outputs for column in columns]
            growing = iter(repeat(builder, num_keys, begun, step))
            for row in outputs:
                for column in columns:
                    writer.store(next(growing), row, column)

        def wide(number: Any, _: list[Any]) -> list[Any]:
            mix(builder.mul(number, index(vectors * width)), vectors)
            return []

        def narrow(number: Any, _: list[Any]) -> list[Any]:
            mix(builder.add(done, builder.mul(number, index(width))), 1)
            return []

        num_wide = builder.sdiv(depth, index(vectors * width))
        done = builder.mul(num_wide, index(vectors * width))
        repeat(builder, num_wide, [], wide)
        repeat(builder, builder.sdiv(builder.sub(depth, done), index(width)), [], narrow)
        return context.get_dummy_value()

    return write


def _read(writer: VectorWriter, codes: Codes, addresses: Sequence[Any]) -> list[Any]:
    """Read neighbouring vectors of codes."""
    at_once = _vectors_at_once(codes, writer.width)
    at_once = 1 if len(addresses) % at_once else at_once
    return [
        number
        for address in addresses[::at_once]
        for number in _neighbours(writer, codes, [address], at_once)
    ]


def _told_weights(builder: ir.IRBuilder, weights: Any, num_keys: Any, lanes: int, codes: Codes) -> Any:
    """Return where the weights are that meet codes as these are read.

    To multiply them, a vector a key, makes up for the unit of all the vectors of that key, and loses no bit:
    a weight is 1 at most. Queries may be so large that they would become infinite.
    """
    if codes.unit == 1:
        return weights
    writer = VectorWriter(builder, lanes)
    room = alloca_once(builder, ir.ArrayType(F32, BLOCK_KEYS * lanes))
    told = builder.bitcast(room, F32.as_pointer())

    def tell(key: Any, _: list[Any]) -> list[Any]:
        place = builder.mul(key, index(lanes))
        writer.store(_whole(writer, writer.load(weights, place), codes), told, place)
        return []

    repeat(builder, num_keys, [], tell)
    return told


def _apart(builder: ir.IRBuilder, start: Any, width: int) -> Any:
    """Return the same address, of which the compiler does not know that it is the same.

    What is read from it for each multiplication anew is read by the multiplication itself, where an
    instruction can do both, with vectors of 16 numbers. To read it once and repeat it in a register for all
    of them takes the units that multiply.
    """
    if width != WIDEST:
        return start
    return builder.asm(ir.FunctionType(start.type, [start.type]), "", "=r,0", [start], True)
