"""Products of a few queries with rows of codes, which become numbers in the registers.

For decode on pages that hold codes: the sums of `row_products`, in the same order, of the numbers that
`qkv.cache.elements` decodes, to the bit. Where each row begins is told by a table of a block's rows.

The ladder: decode of one token over 32,768 keys, 32 query and 8 key heads of 128, two threads of a
processor with AVX-512 on units of half its width. How many times as fast as float32 in the same pages,
medians of interleaved pairs; from run to run they differ by a tenth.

==============================================  =====  =====  ========  ========  =====  =========  =====
version                                         fp16   bf16   fp8-e4m3  fp8-e5m2  int8   int8-kivi  int4
==============================================  =====  =====  ========  ========  =====  =========  =====
16 keys at a time widened beside, then as rows  1.5    1.6    1.4       1.7       1.6    1.1        0.8
widened in the registers                        2.0    1.9    1.7       2.1       2.0    1.8        1.65
and lines of half bytes into the first level    2.0    1.9    1.7       2.1       2.0    1.8        1.75
and no load that repeats what it reads          2.2    2.2    2.4       2.9       2.5    2.2        2.4
==============================================  =====  =====  ========  ========  =====  =========  =====

The first three lines are of minutes when float32 took 10.3 ms, the last of some when it took 11.7: where it
takes 10, int4 is 2.0 to 2.2 times as fast, where 8.1, all are a fifth less. The last step by itself, one
thread, ns a key and key head:

=======  =====  =====  ========  ========  =====  =========  =====
version  fp16   bf16   fp8-e4m3  fp8-e5m2  int8   int8-kivi  int4
=======  =====  =====  ========  ========  =====  =========  =====
before   28.6   30.3   40.6      32.2      33.0   32.7       35.7
after    28.3   28.1   34.3      27.8      32.0   32.0       31.9
=======  =====  =====  ========  ========  =====  =========  =====

What it found: a load that repeats a number, or eight, over a vector of 16 takes a turn of the units that
multiply, although it needs none when nothing else does. The mix went from 12.0 ns a key to 10.5 when each
multiplication repeats its weight itself, and its two steps of a group lie beside each other. Scores with the
chains of two keys in a vector went from 15.9 to 18.3 with loads that repeat queries and steps; to 16.0 when
these are written down twice; to 14.4 with 8 keys at once in place of 4; and to 13.4 when a high half of a
byte stays where it is, for the compiler makes a shift of bytes of an instruction that multiplies.

What limits: the multipliers. Four queries take 64 multiplications of vectors of 16 for each key of int4, to
which widening adds 12: 20.6 ns at the clock's speed, where the products take 24 by themselves, 26 in place
and all of it 32. Of these 2.5 are chains added up in their order, 2.7 the softmax, 1.2 tables of rows, 1.0
steps from float16. Around that int4 and int8-kivi have a second call, in Python, for the page under way; what
Python does before and after takes 0.3 to 0.4 ms of 4.8, because 38 MB have passed through the caches. Fewer
multiplications would be other sums: a step that goes into the query once a page rounds elsewhere than in
prefill, where the same token must give the same bits.

Tried and not kept: keys of half bytes by a table of their numbers, not converted (no change); the softmax on
vectors of 16, with maxima that wait for one instruction, or without its additions (no change: what fills is
the list of instructions that wait); blocks of four lanes apart before single ones where chains are added up
(no change), and chains written to memory and added up behind all keys of a block (0.5 ns slower); lines of
whole bytes into the first level (int8 0.9 times: two blocks fill it).

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

With all around it e4m3 went from 78 ns to 56 and e5m2 from 45.6 to 41.4, where fp16 takes 39. 12 sums, the
constants of e4m3 and its numbers did not fit into the registers. In scores its unit stays with the numbers:
2 ns, but a large query would become infinite. Around the products are 3 ns (fp16: and 4 of waiting for
memory), of which none is one thing: tables of rows by additions, without divisions, changed nothing. Nor did
numbers of the next key made ready during this one; fp16 in pairs was 8 % slower in the mix.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once

from qkv.kernels.attention_words import BLOCK_KEYS, GROUP
from qkv.kernels.codes import EXACT, PER_CHANNEL, PER_GROUP, PER_ROW, Codes
from qkv.kernels.memory import instruction
from qkv.kernels.micro import CHAINS
from qkv.kernels.vectors import F32, I8, I64, VectorWriter, index, repeat
from qkv.kernels.widening import Load, unsigned_bytes

LINE_BYTES = 64
"""Of a line of the cache."""

LEVELS = 16
"""Numbers that a code of half a byte can stand for."""

MOST_SHORTS = 16
"""Integers of 16 bits that codes are read as at once: a register of AVX2."""

MOST_KEYS = 8
"""Keys that are read at the same time, each from its own address."""


def _row(builder: ir.IRBuilder, table: Any, key: Any) -> Any:
    """Return where a row begins, as a pointer to bytes."""
    words = builder.inttoptr(table, I64.as_pointer())
    return builder.inttoptr(builder.load(builder.gep(words, [key])), I8.as_pointer())


def _at(builder: ir.IRBuilder, row: Any, codes: Codes, place: Any) -> Any:
    return builder.gep(row, [builder.mul(place, index(codes.code_bytes))])


def code_scores(queries: int, sums: int, beside: int, lanes: int, codes: Codes) -> Any:
    """Make ``scores = k q^T`` of rows of codes against ``queries`` rows of queries, a power of two.

    The result takes ``(rows, following, steps, q, scores, num_keys, depth)``: addresses of two tables, where
    each row begins and which one to ask for meanwhile. Scores stand as those of `row_products.row_scores`, of
    which up to `MOST_KEYS` rows more than there are keys are written. Depth is a multiple of `CHAINS`, in
    each half.

    Several keys are read at once, as many as have their chains in ``sums`` registers: what is read of a query
    meets all of them, and no sum waits for itself. The chains of ``beside`` keys are beside each other in a
    vector. What meets all of these is told as such vectors, each `CHAINS` numbers so many times one after
    another: at every `CHAINS` columns one of each of ``lanes`` queries, and one each of factors of channels
    and of what is added to them.
    """

    @instruction
    def product(
        typing_context: Any,
        rows: Any,
        following: Any,
        steps: Any,
        q: Any,
        scores: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, steps, q, scores, size, size)
        return signature, _write_scores(queries, sums, beside, lanes, codes)

    return product


def _write_scores(queries: int, num_sums: int, beside: int, lanes: int, codes: Codes) -> Callable[..., Any]:
    abreast = min(MOST_KEYS, num_sums * beside // queries)
    at_once = _vectors_at_once(codes, beside * CHAINS)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, steps, q, scores, num_keys, depth = arguments
        writer = VectorWriter(builder, beside * CHAINS)
        half, last = builder.sdiv(depth, index(codes.halves)), builder.sub(num_keys, index(1))
        turns = builder.sdiv(half, index(CHAINS))

        def score_some(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(abreast))
            # Where fewer are left the last one is read again, so that nothing behind it is.
            keys = [_least(builder, builder.add(first, index(key)), last) for key in range(abreast)]
            _ask_for_rows(writer, [_row(builder, following, key) for key in keys], codes, half)
            rows = [_row(builder, table, key) for key in keys]
            widen = _widening(writer, beside, codes, steps, keys)
            sums = [writer.constant(0.0)] * (abreast // beside * queries)
            for number_of_half, load in enumerate(codes.loads):
                turns_before = builder.mul(turns, index(number_of_half))

                def some_turns(
                    turn: Any, sums: list[Any], count: int, load: Any = load, before: Any = turns_before
                ) -> list[Any]:
                    """Multiply ``count`` vectors of each key from a turn on."""
                    place, told = builder.mul(turn, index(CHAINS)), builder.add(before, turn)
                    starts = [_at(builder, row, codes, place) for row in rows]
                    groups = [starts[key : key + beside] for key in range(0, abreast, beside)]
                    read = [_neighbours(writer, load, group, count) for group in groups]
                    for further in range(count):
                        own_turn = builder.add(told, index(further))
                        own = builder.gep(q, [builder.mul(own_turn, index(lanes * writer.width))])
                        against = [writer.load(own, index(query * writer.width)) for query in range(queries)]
                        growing = iter(sums)
                        sums = [
                            writer.fma(number, query, next(growing))
                            for number in widen([vectors[further] for vectors in read], own_turn)
                            for query in against
                        ]
                    return sums

                sums = _in_steps(builder, turns, at_once, sums, some_turns)
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


def _neighbours(writer: VectorWriter, load: Load, addresses: Sequence[Any], count: int) -> list[Any]:
    """Read vectors one after another, the first at an address; one vector may have several addresses."""
    numbers = load(VectorWriter(writer.builder, count * writer.width), *addresses)
    return [writer.part(numbers, number * writer.width, writer.width) for number in range(count)]


def _whole(writer: VectorWriter, numbers: Any, codes: Codes) -> Any:
    """Return as many times the numbers as makes up for the unit that codes are read in."""
    if codes.steps != EXACT or codes.units[0] == 1:
        return numbers
    return writer.builder.fmul(numbers, writer.constant(1 / codes.units[0]))


def _least(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _ask_for_rows(writer: VectorWriter, rows: Sequence[Any], codes: Codes, half: Any) -> None:
    """Ask for the lines of some rows.

    A block of half bytes is small enough to wait in the first level beside the one that is read.
    """
    builder = writer.builder
    num_bytes = builder.mul(half, index(codes.code_bytes))
    lines = builder.sdiv(builder.add(num_bytes, index(LINE_BYTES - 1)), index(LINE_BYTES))

    def ask(line: Any, _: list[Any]) -> list[Any]:
        for row in rows:
            writer.prefetch(row, builder.mul(line, index(LINE_BYTES)), near=codes.halves == 2)
        return []

    ask(index(0), [])
    repeat(builder, builder.sub(lines, index(1)), [], lambda line, _: ask(builder.add(line, index(1)), _))


def _widening(
    writer: VectorWriter, beside: int, codes: Codes, steps: Any, keys: Sequence[Any]
) -> Callable[[list[Any], Any], list[Any]]:
    """Return what makes numbers of codes, each vector of ``beside`` keys, at some place of what is told."""
    builder = writer.builder
    if codes.steps == PER_ROW:
        chains = VectorWriter(builder, CHAINS)
        own = [chains.splat(builder.load(builder.gep(steps, [key]))) for key in keys]
        scales = [chains.joined(own[key : key + beside]) for key in range(0, len(own), beside)]
        return lambda read, _: [builder.fmul(one, scale) for one, scale in zip(read, scales, strict=True)]
    if codes.steps == PER_CHANNEL:

        def widen(read: list[Any], told: Any) -> list[Any]:
            own = builder.gep(steps, [builder.mul(told, index(2 * writer.width))])
            factor, low = writer.load(own), writer.load(own, index(writer.width))
            return [writer.fma(one, factor, low) for one in read]

        return widen
    return lambda read, _: [_whole(writer, one, codes) for one in read]


def code_mix(queries: int, vectors: int, width: int, lanes: int, codes: Codes) -> Any:
    """Make ``output += weights v`` for ``queries`` rows of output, ``vectors`` of each in registers.

    The result takes ``(rows, following, steps, weights, output, output_row, num_keys, depth)``, tables as
    `code_scores` does. Each number of the output is one chain over the keys in order. Key r's weights stand
    ``lanes`` apart. Depth is a whole number of vectors, in each half; keys are a block at most.
    """

    @instruction
    def product(
        typing_context: Any,
        rows: Any,
        following: Any,
        steps: Any,
        weights: Any,
        output: Any,
        output_row: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, steps, weights, output, size, size, size)
        return signature, _write_mix(queries, vectors, width, lanes, codes)

    return product


def _write_mix(queries: int, vectors: int, width: int, lanes: int, codes: Codes) -> Callable[..., Any]:
    at_once = max(1, vectors // codes.halves)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, steps, weights, output, output_row, num_keys, depth = arguments
        writer = VectorWriter(builder, width)
        outputs = [builder.gep(output, [builder.mul(output_row, index(query))]) for query in range(queries)]
        half = builder.sdiv(depth, index(codes.halves))
        begins = [builder.mul(half, index(number)) for number in range(codes.halves)]
        weights = _told_weights(builder, weights, num_keys, lanes, codes)

        def mix(first: Any, offsets: Sequence[int]) -> None:
            """Mix the columns at some offsets from the first of each half."""
            places = [builder.add(first, index(offset)) for offset in offsets]
            columns = [builder.add(begin, place) for place in places for begin in begins]
            read = _reading(writer, codes, steps, [builder.add(begin, first) for begin in begins], depth)

            def step(key: Any, sums: list[Any]) -> list[Any]:
                row, next_row = (_row(builder, one, key) for one in (table, following))
                for place in places[:: max(1, LINE_BYTES // (width * codes.code_bytes))]:
                    writer.prefetch(_at(builder, next_row, codes, place), index(0), near=codes.halves == 2)
                numbers = read(key, [_at(builder, row, codes, place) for place in places], offsets)
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
            mix(builder.mul(number, index(at_once * width)), range(0, at_once * width, width))
            return []

        def narrow(number: Any, _: list[Any]) -> list[Any]:
            mix(builder.add(done, builder.mul(number, index(width))), [0])
            return []

        num_wide = builder.sdiv(half, index(at_once * width))
        if codes.steps == PER_GROUP:  # whose offsets say which group a column is of
            begins_group = builder.icmp_signed("==", builder.srem(half, index(GROUP)), index(0))
            num_wide = builder.select(begins_group, num_wide, index(0))
        done = builder.mul(num_wide, index(at_once * width))
        repeat(builder, num_wide, [], wide)
        repeat(builder, builder.sdiv(builder.sub(half, done), index(width)), [], narrow)
        return context.get_dummy_value()

    return write


def _told_weights(builder: ir.IRBuilder, weights: Any, num_keys: Any, lanes: int, codes: Codes) -> Any:
    """Return where the weights are that meet codes as these are read.

    To multiply them, a vector a key, makes up for the unit of all the vectors of that key, and loses no bit:
    a weight is 1 at most. Queries may be so large that they would become infinite.
    """
    if codes.steps != EXACT or codes.units[0] == 1:
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
    if width != LEVELS:
        return start
    return builder.asm(ir.FunctionType(start.type, [start.type]), "", "=r,0", [start], True)


Read = Callable[[Any, Sequence[Any], Sequence[int]], list[Any]]
"""Writes what reads a row's numbers at some addresses: at each of them, those of all halves."""


def _reading(writer: VectorWriter, codes: Codes, steps: Any, firsts: Sequence[Any], depth: Any) -> Read:
    """Return what reads a row, whose columns begin at ``firsts``, one in each half."""
    builder = writer.builder

    def read(key: Any, addresses: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
        at_once = _vectors_at_once(codes, writer.width)
        if at_once == 1 or len(addresses) % at_once:
            return [load(writer, address) for address in addresses for load in codes.loads]
        firsts, (load,) = [[address] for address in addresses[::at_once]], codes.loads
        return [number for first in firsts for number in _neighbours(writer, load, first, at_once)]

    def read_scaled(key: Any, addresses: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
        scale = writer.splat(builder.load(builder.gep(steps, [key])))
        return [builder.fmul(number, scale) for number in read(key, addresses, offsets)]

    def read_grouped(key: Any, addresses: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
        groups = builder.sdiv(builder.add(depth, index(GROUP - 1)), index(GROUP))
        own, stepped, numbers = builder.mul(key, groups), {}, []
        for address, offset in zip(addresses, offsets, strict=True):
            for half, first in enumerate(firsts):
                where = half, offset // GROUP
                if where not in stepped:
                    group = builder.add(builder.sdiv(first, index(GROUP)), index(offset // GROUP))
                    both = builder.gep(steps, [builder.mul(builder.add(own, group), index(2))])
                    factor, low = (
                        writer.splat(builder.load(builder.gep(both, [index(which)]))) for which in range(2)
                    )
                    stepped[where] = _stepping(writer, codes, half, factor, low)
                numbers.append(stepped[where](address))
        return numbers

    return {PER_ROW: read_scaled, PER_GROUP: read_grouped}.get(codes.steps, read)


def _stepping(writer: VectorWriter, codes: Codes, half: int, factor: Any, low: Any) -> Callable[[Any], Any]:
    """Return what reads the numbers of a group, by a table of all that there are if that is one vector."""
    if writer.width != LEVELS:
        return lambda address: writer.fma(codes.loads[half](writer, address), factor, low)
    levels = ir.Constant(writer.type, [float(level) for level in range(LEVELS)])
    table = writer.fma(levels, factor, low)

    def look_up(address: Any) -> Any:
        codes_of_both = unsigned_bytes(writer, address)
        shift = writer.int_constant(4 * half)
        return writer.look_up(table, writer.builder.lshr(codes_of_both, shift))

    return look_up
