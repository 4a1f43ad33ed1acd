"""The pieces of attention's backward: weights computed again, rows turned, rows multiplied."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.attention_backward_words import LANE_COUNT, LANE_DELTA, LANE_FIRST, LANE_LSE, LANES
from qkv.kernels.memory import instruction
from qkv.kernels.row_vectors import Place
from qkv.kernels.vectors import I32, VectorWriter, index, repeat


def weights_and_gradients(rows: int, vectors: int, width: int) -> Any:
    """Make the step that computes a rectangle of weights again, and the gradients of their scores.

    The result takes ``(k, k_row, v, v_row, queries, d_output, lane_numbers, key, weights, d_scores, size,
    value_size)``. ``queries``, scaled already, and ``d_output`` have `LANES` numbers for each step along D,
    ``lane_numbers`` four rows of as many: each lane's log-sum-exp, its sum of d_output * output, and as
    int32 the first key it sees and how many it sees from there on. ``key`` is the position of the first
    row of k and v. For each key, in rows of `LANES` numbers::

        weights = exp(k . query - lse)
        d_scores = weights * (v . d_output - sum)

    and exactly 0 in both where a lane does not see the key.

    Parameters
    ----------
    rows, vectors, width : int
        The rectangle: rows keys x (vectors * width) lanes, which stay in registers until they are done.
    """

    @instruction
    def step(
        typing_context: Any,
        k: Any,
        k_row: Any,
        v: Any,
        v_row: Any,
        queries: Any,
        d_output: Any,
        lane_numbers: Any,
        key: Any,
        weights: Any,
        d_scores: Any,
        size: Any,
        value_size: Any,
    ) -> Any:
        n = types.intp
        signature = types.void(k, n, v, n, queries, d_output, lane_numbers, n, weights, d_scores, n, n)
        return signature, _write_weights(rows, vectors, width)

    return step


def _write_weights(rows: int, vectors: int, width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        k, k_row, v, v_row, queries, d_output, numbers, key, weights, d_scores, size, value_size = arguments
        writer = VectorWriter(builder, width)
        columns = [index(vector * width) for vector in range(vectors)]
        places = [index(row * LANES + vector * width) for row in range(rows) for vector in range(vectors)]

        def lane_numbers(number: int) -> list[Any]:
            start = builder.gep(numbers, [index(number * LANES)])
            return [writer.load(start, column) for column in columns] * rows

        def products(a: Any, a_row: Any, b: Any, depth: Any) -> list[Any]:
            starts = [builder.gep(a, [builder.mul(a_row, index(row))]) for row in range(rows)]

            def add(d: Any, sums: list[Any]) -> list[Any]:
                beside = builder.gep(b, [builder.mul(d, index(LANES))])
                b_vectors, growing = [writer.load(beside, column) for column in columns], iter(sums)
                scalars = (writer.splat(builder.load(builder.gep(start, [d]))) for start in starts)
                return [writer.fma(scalar, one, next(growing)) for scalar in scalars for one in b_vectors]

            return repeat(builder, depth, [writer.constant(0.0)] * len(places), add)

        def visible() -> list[Any]:
            """Say which lanes see which key: taken as unsigned, a key before the first is far behind it."""
            position, seen = _splat_integer(writer, key), []
            firsts, counts = (
                [builder.bitcast(x, writer.int_type) for x in lane_numbers(n)]
                for n in (LANE_FIRST, LANE_COUNT)
            )
            for number, (first, count) in enumerate(zip(firsts, counts, strict=True)):
                own = builder.add(position, writer.int_constant(number // vectors))
                seen.append(builder.icmp_unsigned("<", builder.sub(own, first), count))
            return seen

        seen, nothing = visible(), writer.constant(0.0)
        scores = products(k, k_row, queries, size)
        for score, lse, sees, place in zip(scores, lane_numbers(LANE_LSE), seen, places, strict=True):
            weight = writer.exp(builder.fsub(score, lse))
            writer.store(builder.select(sees, weight, nothing), weights, place)
        d_weights = products(v, v_row, d_output, value_size)
        for d_weight, delta, sees, place in zip(
            d_weights, lane_numbers(LANE_DELTA), seen, places, strict=True
        ):
            d_score = builder.fmul(writer.load(weights, place), builder.fsub(d_weight, delta))
            writer.store(builder.select(sees, d_score, nothing), d_scores, place)
        return context.get_dummy_value()

    return write


def _splat_integer(writer: VectorWriter, number: Any) -> Any:
    bits = writer.builder.bitcast(writer.builder.trunc(number, I32), ir.FloatType())
    return writer.builder.bitcast(writer.splat(bits), writer.int_type)


def transpose_square(width: int) -> Any:
    """Make the step that turns ``width`` rows of as many numbers into columns.

    The result takes ``(rows, row, columns, column)``: where they begin and how far they are apart.
    """

    @instruction
    def step(typing_context: Any, rows: Any, row: Any, columns: Any, column: Any) -> Any:
        signature = types.void(rows, types.intp, columns, types.intp)

        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            rows, row, columns, column = arguments
            writer = VectorWriter(builder, width)
            vectors = [writer.load(rows, builder.mul(row, index(number))) for number in range(width)]
            distance = 1
            while distance < width:
                vectors = writer._swap_blocks(vectors, distance)
                distance *= 2
            for number, vector in enumerate(vectors):
                writer.store(vector, columns, builder.mul(column, index(number)))
            return context.get_dummy_value()

        return signature, write

    return step


def row_dots(width: int) -> Any:
    """Make the step that multiplies ``width`` rows by as many others, each by its own.

    The result takes ``(a, b, row, length, sums)``: rows ``row`` apart, of ``length`` numbers, a multiple
    of ``width``. Number i of a row belongs to chain ``i % width``; chains are added up in order.
    """

    @instruction
    def step(typing_context: Any, a: Any, b: Any, row: Any, length: Any, sums: Any) -> Any:
        signature = types.void(a, b, types.intp, types.intp, sums)

        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            a, b, row, length, sums = arguments
            writer = VectorWriter(builder, width)
            starts = [builder.mul(row, index(number)) for number in range(width)]

            def add(number: Any, totals: list[Any]) -> list[Any]:
                offset = builder.mul(number, index(width))
                places = [builder.add(start, offset) for start in starts]
                pairs = zip(places, totals, strict=True)
                return [
                    writer.fma(writer.load(a, place), writer.load(b, place), total) for place, total in pairs
                ]

            zeros = [writer.constant(0.0)] * width
            totals = repeat(builder, builder.sdiv(length, index(width)), zeros, add)
            writer.store(writer.sum_each(totals), sums)
            return context.get_dummy_value()

        return signature, write

    return step


def multiply(place: Place, x: Any, a: Any, b: Any, factor: Any, y: Any) -> None:
    """Write ``y = x * factor``, as a step along a row."""
    place.put(place.writer.builder.fmul(place.get(x), factor), y)
