"""Products of a few queries with rows of keys and values, read along the rows.

For decode: a row of a key is read in vectors, each of which meets every query of the group, so that a
line of memory costs few instructions and the processor sees far ahead. The sums are the same chains, in
the same order, as those of `micro.tile_product`: `CHAINS` chains along a key, added up in order, and
for the output one chain over the keys. `code_products` has the same for rows of codes.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.memory import instruction
from qkv.kernels.micro import CHAINS
from qkv.kernels.vectors import VectorWriter, index, repeat


def row_scores(queries: int, lanes: int) -> Any:
    """Make ``scores = k q^T`` of rows of keys against ``queries`` rows of queries, a power of two.

    The result takes ``(k, k_row, ahead, q, q_row, chains, scores, num_keys, depth)``. Row r of the scores,
    ``lanes`` numbers apart, gets key r's score for each query. ``chains`` is room for the sums before
    they are added up: (keys, queries, `CHAINS`) numbers. Of both, up to `CHAINS` rows more than there
    are keys are touched.

    One instruction reads all keys from front to end. The processor tells by the instruction what will
    be read next: with as few as two taking turns it guessed wrong, and read a third as fast.
    """

    @instruction
    def product(
        typing_context: Any,
        k: Any,
        k_row: Any,
        ahead: Any,
        q: Any,
        q_row: Any,
        chains: Any,
        scores: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(k, size, size, q, size, chains, scores, size, size)
        return signature, _write_scores(queries, lanes)

    return product


def _write_scores(queries: int, lanes: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        k, k_row, ahead, q, q_row, chains, scores, num_keys, depth = arguments
        writer = VectorWriter(builder, CHAINS)
        whole = builder.sdiv(depth, index(CHAINS))
        rest = builder.sub(depth, builder.mul(whole, index(CHAINS)))
        has_rest = builder.zext(builder.icmp_signed(">", rest, index(0)), ir.IntType(64))
        q_rows = [builder.gep(q, [builder.mul(q_row, index(query))]) for query in range(queries)]

        def grow_chains(key: Any, _: list[Any]) -> list[Any]:
            row = builder.gep(k, [builder.mul(key, k_row)])

            def step(number: Any, sums: list[Any], load: Callable[..., Any] = writer.load) -> list[Any]:
                column = builder.mul(number, index(CHAINS))
                writer.prefetch(row, builder.add(column, ahead))
                numbers = load(row, column)
                pairs = zip(q_rows, sums, strict=True)
                return [writer.fma(numbers, load(query, column), total) for query, total in pairs]

            def last_step(_: Any, sums: list[Any]) -> list[Any]:
                return step(whole, sums, lambda start, column: writer.load_first(rest, start, column))

            sums = repeat(builder, whole, [writer.constant(0.0)] * queries, step)
            sums = repeat(builder, has_rest, sums, last_step)
            place = builder.mul(key, index(queries * CHAINS))
            for query, total in enumerate(sums):
                writer.store(total, chains, builder.add(place, index(query * CHAINS)))
            return []

        def add_chains(number: Any, _: list[Any]) -> list[Any]:
            """Add up the chains of as many scores as a vector has lanes."""
            place = builder.mul(number, index(CHAINS * CHAINS))
            rows = [writer.load(chains, builder.add(place, index(one * CHAINS))) for one in range(CHAINS)]
            totals, first = writer.sum_each(rows), builder.mul(number, index(CHAINS // queries))
            for key in range(CHAINS // queries):
                part = writer.part(totals, key * queries, queries)
                writer.store_part(part, scores, builder.mul(builder.add(first, index(key)), index(lanes)))
            return []

        repeat(builder, num_keys, [], grow_chains)
        num_scores = builder.mul(num_keys, index(queries))
        repeat(
            builder, builder.sdiv(builder.add(num_scores, index(CHAINS - 1)), index(CHAINS)), [], add_chains
        )
        return context.get_dummy_value()

    return write


def row_mix(queries: int, vectors: int, width: int, lanes: int) -> Any:
    """Make ``output += weights v`` for ``queries`` rows of output, ``vectors`` of each in registers.

    The result takes ``(v, v_row, ahead, weights, output, output_row, num_keys, depth)``. Each number of the
    output is one chain over the keys in order. Key r's weights stand ``lanes`` apart.
    """

    @instruction
    def product(
        typing_context: Any,
        v: Any,
        v_row: Any,
        ahead: Any,
        weights: Any,
        output: Any,
        output_row: Any,
        num_keys: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(v, size, size, weights, output, size, size, size)
        return signature, _write_mix(queries, vectors, width, lanes)

    return product


def _write_mix(queries: int, vectors: int, width: int, lanes: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        v, v_row, ahead, weights, output, output_row, num_keys, depth = arguments
        writer = VectorWriter(builder, width)
        rows = [builder.gep(output, [builder.mul(output_row, index(query))]) for query in range(queries)]

        def mix(places: list[Any], load: Callable[..., Any], store: Callable[..., Any]) -> None:
            def step(key: Any, sums: list[Any]) -> list[Any]:
                value = builder.gep(v, [builder.mul(key, v_row)])
                weight = builder.gep(weights, [builder.mul(key, index(lanes))])
                for place in places:
                    writer.prefetch(value, builder.add(place, ahead))
                vectors, growing = [load(value, place) for place in places], iter(sums)
                splats = [writer.splat(builder.load(builder.gep(weight, [index(q)]))) for q in range(queries)]
                return [writer.fma(one, vector, next(growing)) for one in splats for vector in vectors]

            sums = repeat(builder, num_keys, [load(row, place) for row in rows for place in places], step)
            growing = iter(sums)
            for row in rows:
                for place in places:
                    store(next(growing), row, place)

        def wide(number: Any, _: list[Any]) -> list[Any]:
            first = builder.mul(number, index(vectors * width))
            mix(
                [builder.add(first, index(vector * width)) for vector in range(vectors)],
                writer.load,
                writer.store,
            )
            return []

        num_wide = builder.sdiv(depth, index(vectors * width))
        repeat(builder, num_wide, [], wide)
        done = builder.mul(num_wide, index(vectors * width))

        def narrow(number: Any, _: list[Any]) -> list[Any]:
            place = builder.add(done, builder.mul(number, index(width)))
            left = builder.sub(depth, place)
            mix(
                [place],
                lambda row, place: writer.load_first(left, row, place),
                lambda vector, row, place: writer.store_first(left, vector, row, place),
            )
            return []

        left = builder.add(builder.sub(depth, done), index(width - 1))
        repeat(builder, builder.sdiv(left, index(width)), [], narrow)
        return context.get_dummy_value()

    return write
