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
==============================================  =====  =====  ========  ========  =====  =========  =====

That is where float32 reads 26 GB/s. On the same shared machine there were minutes of 35, when float32 took
8.1 ms in place of 10.3 and codes the same as ever, int8 4.7: then int8 was 1.7 times as fast, fp8-e4m3 1.4,
int8-kivi and int4 1.5; the first line's int8 1.1 and int4 0.6.

What limits: all but fp16 and bf16 wait for the multipliers, no more for memory; from the second level of
the cache they are 5 to 10 % faster. Four queries take 64 multiplications of vectors of 16 for each key, to
which widening adds 12, for int8 16: 22 ns of a core at the clock's speed, where the products take 28
and all of it 37. The rest is the softmax, the order in which chains are added up, steps from float16, and
for int4 and int8-kivi a second call, in Python, for the page under way. Fewer multiplications would be other
sums: a step that goes into the query once a page rounds elsewhere than in prefill, where the same token must
give the same bits.

Tried and not kept: chains of two keys in one vector of 16 lanes (int4 1.01 times as fast, fp16 0.9 times);
keys of half bytes by a table of their numbers, not converted (no change); the softmax on vectors of 16 (no
change); lines of whole bytes into the first level (int8 0.9 times: two blocks fill it).
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.attention_words import BLOCK_KEYS, GROUP
from qkv.kernels.codes import PER_CHANNEL, PER_GROUP, PER_ROW, Codes
from qkv.kernels.memory import instruction
from qkv.kernels.micro import CHAINS
from qkv.kernels.vectors import I8, I64, VectorWriter, index, repeat
from qkv.kernels.widening import unsigned_bytes

LINE_BYTES = 64
"""Of a line of the cache."""

LEVELS = 16
"""Numbers that a code of half a byte can stand for."""

MOST_KEYS = 8
"""Keys that are read at the same time, each from its own address."""


def _row(builder: ir.IRBuilder, table: Any, key: Any) -> Any:
    """Return where a row begins, as a pointer to bytes."""
    words = builder.inttoptr(table, I64.as_pointer())
    return builder.inttoptr(builder.load(builder.gep(words, [key])), I8.as_pointer())


def _at(builder: ir.IRBuilder, row: Any, codes: Codes, place: Any) -> Any:
    return builder.gep(row, [builder.mul(place, index(codes.code_bytes))])


def code_scores(queries: int, sums: int, lanes: int, codes: Codes) -> Any:
    """Make ``scores = k q^T`` of rows of codes against ``queries`` rows of queries, a power of two.

    The result takes ``(rows, following, steps, q, q_row, scores, num_keys, depth)``: addresses of two
    tables, where each row begins and which one to ask for meanwhile. Scores stand as those of
    `row_products.row_scores`, of which up to `MOST_KEYS` rows more than there are keys are written. Depth
    is a multiple of `CHAINS`, in each half.

    Several keys are read at once, as many as have their chains in ``sums`` registers: what is read of a
    query meets all of them, and no sum waits for itself.
    """

    @instruction
    def product(
        typing_context: Any,
        rows: Any,
        following: Any,
        steps: Any,
        q: Any,
        q_row: Any,
        scores: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(size, size, steps, q, size, scores, size, size)
        return signature, _write_scores(queries, sums, lanes, codes)

    return product


def _write_scores(queries: int, num_sums: int, lanes: int, codes: Codes) -> Callable[..., Any]:
    abreast = min(MOST_KEYS, num_sums // queries)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        table, following, steps, q, q_row, scores, num_keys, depth = arguments
        writer = VectorWriter(builder, CHAINS)
        half = builder.sdiv(depth, index(codes.halves))
        turns, last = builder.sdiv(half, index(CHAINS)), builder.sub(num_keys, index(1))
        q_rows = [builder.gep(q, [builder.mul(q_row, index(query))]) for query in range(queries)]

        def score_some(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(abreast))
            # Where fewer are left the last one is read again, so that nothing behind it is.
            keys = [_least(builder, builder.add(first, index(key)), last) for key in range(abreast)]
            rows = [_row(builder, table, key) for key in keys]
            _ask_for_rows(writer, [_row(builder, following, key) for key in keys], codes, half)
            widen = _widening(writer, codes, steps, keys, depth)
            sums = [writer.constant(0.0)] * (abreast * queries)
            for number_of_half, load in enumerate(codes.loads):
                begin = builder.mul(half, index(number_of_half))

                def step(turn: Any, sums: list[Any], load: Any = load, begin: Any = begin) -> list[Any]:
                    place, growing = builder.mul(turn, index(CHAINS)), iter(sums)
                    column = builder.add(begin, place)
                    read = [load(writer, _at(builder, row, codes, place)) for row in rows]
                    beside = [writer.load(row, column) for row in q_rows]
                    return [
                        writer.fma(number, query, next(growing))
                        for number in widen(read, column)
                        for query in beside
                    ]

                sums = repeat(builder, turns, sums, step)
            for some in range(0, len(sums), CHAINS):
                totals = writer.sum_each(sums[some : some + CHAINS])
                for key in range(CHAINS // queries):
                    place = builder.mul(builder.add(first, index(some // queries + key)), index(lanes))
                    writer.store_part(writer.part(totals, key * queries, queries), scores, place)
            return []

        rounds = builder.sdiv(builder.add(num_keys, index(abreast - 1)), index(abreast))
        repeat(builder, rounds, [], score_some)
        return context.get_dummy_value()

    return write


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

    repeat(builder, lines, [], ask)


def _widening(
    writer: VectorWriter, codes: Codes, steps: Any, keys: Sequence[Any], depth: Any
) -> Callable[[list[Any], Any], list[Any]]:
    """Return what makes numbers of vectors of codes from one column on, a vector for each key."""
    builder = writer.builder
    if codes.steps == PER_ROW:
        scales = [writer.splat(builder.load(builder.gep(steps, [key]))) for key in keys]
        return lambda read, _: [builder.fmul(one, scale) for one, scale in zip(read, scales, strict=True)]
    if codes.steps == PER_CHANNEL:

        def widen(read: list[Any], column: Any) -> list[Any]:
            factor, low = writer.load(steps, column), writer.load(steps, builder.add(depth, column))
            return [writer.fma(one, factor, low) for one in read]

        return widen
    return lambda read, _: read


def code_mix(queries: int, vectors: int, width: int, lanes: int, codes: Codes) -> Any:
    """Make ``output += weights v`` for ``queries`` rows of output, ``vectors`` of each in registers.

    The result takes ``(rows, following, steps, weights, output, output_row, num_keys, depth)``, tables as
    `code_scores` does. Each number of the output is one chain over the keys in order. Key r's weights stand
    ``lanes`` apart. Depth is a whole number of vectors, in each half.
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
                weight, growing = builder.gep(weights, [builder.mul(key, index(lanes))]), iter(sums)
                splats = [writer.splat(builder.load(builder.gep(weight, [index(q)]))) for q in range(queries)]
                return [writer.fma(one, number, next(growing)) for one in splats for number in numbers]

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


Read = Callable[[Any, Sequence[Any], Sequence[int]], list[Any]]
"""Writes what reads a row's numbers at some addresses: at each of them, those of all halves."""


def _reading(writer: VectorWriter, codes: Codes, steps: Any, firsts: Sequence[Any], depth: Any) -> Read:
    """Return what reads a row, whose columns begin at ``firsts``, one in each half."""
    builder = writer.builder

    def read(key: Any, addresses: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
        return [load(writer, address) for address in addresses for load in codes.loads]

    def read_scaled(key: Any, addresses: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
        scale = writer.splat(builder.load(builder.gep(steps, [key])))
        return [builder.fmul(number, scale) for number in read(key, addresses, offsets)]

    def read_grouped(key: Any, addresses: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
        groups = builder.sdiv(builder.add(depth, index(GROUP - 1)), index(GROUP))
        lows = builder.mul(groups, index(BLOCK_KEYS))
        own, stepped, numbers = builder.gep(steps, [builder.mul(key, groups)]), {}, []
        for address, offset in zip(addresses, offsets, strict=True):
            for half, first in enumerate(firsts):
                where = half, offset // GROUP
                if where not in stepped:
                    group = builder.add(builder.sdiv(first, index(GROUP)), index(offset // GROUP))
                    factor, low = (
                        writer.splat(builder.load(builder.gep(own, [place])))
                        for place in (group, builder.add(lows, group))
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
