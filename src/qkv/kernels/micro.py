"""The smallest pieces of work, as functions that compiled code can call.

`tile_product` is the heart: a rectangle of rows x (vectors * width) results, all in registers,
grows by one fused multiply-add each for every step along the inner axis. Each result is one chain
in the order of that axis, however large the rectangle, so a product has the same bits whether its
rows are computed alone or together.

Each function here makes one piece, for one shape of work. `memory` has what hands it its operands.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.memory import instruction
from qkv.kernels.vectors import VectorWriter, index, repeat

CHAINS = 8
"""Sums that a score is added up from: number d of a key belongs to chain ``d % CHAINS``."""


MAXIMA = 4
"""Maxima that are raised at the same time; the highest of all does not depend on the order."""


def tile_product(rows: int, vectors: int, width: int, *, adds: bool, chains: int = 1) -> Any:
    """Make ``c (+)= a b`` for a rectangle held in registers.

    The result takes ``(a, a_row, a_step, b, b_step, c, c_row, depth)``: row r of a stands at
    ``a + r * a_row`` and moves by ``a_step`` per step of the inner axis; b moves by ``b_step`` and
    gives ``vectors * width`` neighbours; c is stored row by row, ``c_row`` apart.

    Parameters
    ----------
    rows, vectors, width : int
        The rectangle: rows x (vectors * width) numbers.
    adds : bool
        Go on from what c holds, rather than from 0.
    chains : int
        Deal the steps along the inner axis out to so many chains, each begun at 0, and add their sums
        up in order. Short chains lose less to rounding than a long one, and each can be a lane of a
        vector along that axis: `row_products`. It takes twice the registers.
    """

    @instruction
    def product(
        typing_context: Any,
        a: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b_step: Any,
        c: Any,
        c_row: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(a, size, size, b, size, c, size, size)
        return signature, _write_product(rows, vectors, width, adds=adds, chains=chains)

    return product


def _write_product(rows: int, vectors: int, width: int, *, adds: bool, chains: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, a_row, a_step, b, b_step, c, c_row, depth = arguments
        writer = VectorWriter(builder, width)
        columns = [index(vector * width) for vector in range(vectors)]
        a_rows = [builder.gep(a, [builder.mul(a_row, index(row))]) for row in range(rows)]
        c_rows = [builder.gep(c, [builder.mul(c_row, index(row))]) for row in range(rows)]

        def step(k: Any, sums: list[Any]) -> list[Any]:
            beside = builder.gep(b, [builder.mul(k, b_step)])
            along = builder.mul(k, a_step)
            b_vectors = [writer.load(beside, column) for column in columns]
            scalars = [writer.splat(builder.load(builder.gep(start, [along]))) for start in a_rows]
            pairs = ((scalar, vector) for scalar in scalars for vector in b_vectors)
            return [writer.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]

        def chain(number: Any, totals: list[Any]) -> list[Any]:
            left = builder.add(builder.sub(depth, number), index(chains - 1))
            zeros = [writer.constant(0.0)] * len(totals)

            def link(place: Any, sums: list[Any]) -> list[Any]:
                return step(builder.add(builder.mul(place, index(chains)), number), sums)

            sums = repeat(builder, builder.sdiv(left, index(chains)), zeros, link)
            return [builder.fadd(total, one) for total, one in zip(totals, sums, strict=True)]

        places = [(row, column) for row in c_rows for column in columns]
        totals = [writer.load(*place) if adds else writer.constant(0.0) for place in places]
        if chains == 1:
            totals = repeat(builder, depth, totals, step)
        else:
            totals = repeat(builder, index(chains), totals, chain)
        for total, place in zip(totals, places, strict=True):
            writer.store(total, *place)
        return context.get_dummy_value()

    return write


def online_softmax(vectors: int, width: int) -> Any:
    """Make the step that turns a block of scores into weights, each lane a query.

    The result takes ``(scores, num_keys, scale, highest, denominator, rescale)``. Scores are
    ``num_keys`` rows of lanes, and become ``exp(score * scale - highest)``. ``highest`` and
    ``denominator`` (one number per lane) are brought up to date, in the order of the keys;
    ``rescale`` gets what earlier sums must be multiplied by. A lane that has seen nothing keeps
    ``-inf`` and 0.
    """

    @instruction
    def step(
        typing_context: Any,
        scores: Any,
        num_keys: Any,
        scale: Any,
        highest: Any,
        denominator: Any,
        rescale: Any,
    ) -> Any:
        signature = types.void(scores, types.intp, types.float32, highest, denominator, rescale)
        return signature, _write_softmax(vectors, width)

    return step


def _write_softmax(vectors: int, width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, num_keys, scale, highest, denominator, rescale = arguments
        writer = VectorWriter(builder, width)
        columns = [index(vector * width) for vector in range(vectors)]
        scales = writer.splat(scale)

        def row(key: Any) -> Any:
            return builder.gep(scores, [builder.mul(key, index(vectors * width))])

        def scaled(key: Any) -> list[Any]:
            return [builder.fmul(writer.load(row(key), column), scales) for column in columns]

        def raise_highest(key: Any, so_far: list[Any]) -> list[Any]:
            return [writer.maximum(score, top) for score, top in zip(scaled(key), so_far, strict=True)]

        def raise_several(number: Any, so_far: list[Any]) -> list[Any]:
            """Raise a maximum each for neighbouring keys: one alone would wait for itself."""
            first, raised = builder.mul(number, index(MAXIMA)), []
            for place in range(MAXIMA):
                own = so_far[place * vectors : (place + 1) * vectors]
                raised += raise_highest(builder.add(first, index(place)), own)
            return raised

        before = [writer.load(highest, column) for column in columns]
        num_turns = builder.sdiv(num_keys, index(MAXIMA))
        several = repeat(builder, num_turns, before * MAXIMA, raise_several)
        after = several[:vectors]
        for place in range(1, MAXIMA):
            others = several[place * vectors : (place + 1) * vectors]
            after = [writer.maximum(one, other) for one, other in zip(after, others, strict=True)]
        done = builder.mul(num_turns, index(MAXIMA))
        rest = builder.sub(num_keys, done)
        after = repeat(builder, rest, after, lambda key, tops: raise_highest(builder.add(done, key), tops))
        shifts = [finite(writer, top) for top in after]
        factors = [writer.exp(builder.fsub(top, shift)) for top, shift in zip(before, shifts, strict=True)]

        def weigh(key: Any, sums: list[Any]) -> list[Any]:
            shifted = [builder.fsub(score, shift) for score, shift in zip(scaled(key), shifts, strict=True)]
            weights = [writer.exp(score) for score in shifted]
            for weight, column in zip(weights, columns, strict=True):
                writer.store(weight, row(key), column)
            return [builder.fadd(total, weight) for total, weight in zip(sums, weights, strict=True)]

        sums = [builder.fmul(writer.load(denominator, c), f) for c, f in zip(columns, factors, strict=True)]
        sums = repeat(builder, num_keys, sums, weigh)
        for column, top, total, factor in zip(columns, after, sums, factors, strict=True):
            writer.store(top, highest, column)
            writer.store(total, denominator, column)
            writer.store(factor, rescale, column)
        return context.get_dummy_value()

    return write


def finite(writer: VectorWriter, highest: Any) -> Any:
    """Return what to subtract before exp: the highest score, or 0 where nothing was seen."""
    nothing = writer.builder.fcmp_ordered("==", highest, writer.constant(float("-inf")))
    return writer.builder.select(nothing, writer.constant(0.0), highest)


def merge_states(vectors: int, width: int) -> Any:
    """Make the step that joins the attention over some keys with that over later ones, lane by lane.

    The result takes ``(output, highest, denominator, other_output, other_highest,
    other_denominator, num_rows)`` and leaves the joined state in the first three. A lane in which
    one side has seen nothing takes every bit of the other.
    """

    @instruction
    def step(
        typing_context: Any,
        output: Any,
        highest: Any,
        denominator: Any,
        other: Any,
        other_highest: Any,
        other_denominator: Any,
        num_rows: Any,
    ) -> Any:
        signature = types.void(
            output, highest, denominator, other, other_highest, other_denominator, types.intp
        )
        return signature, _write_merge(vectors, width)

    return step


def _write_merge(vectors: int, width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        output, highest, denominator, other, other_highest, other_denominator, num_rows = arguments
        writer = VectorWriter(builder, width)
        nothing = writer.constant(float("-inf"))
        for column in (index(vector * width) for vector in range(vectors)):
            top, other_top = writer.load(highest, column), writer.load(other_highest, column)
            joined = writer.maximum(top, other_top)
            shift = finite(writer, joined)
            share = writer.exp(builder.fsub(top, shift))
            other_share = writer.exp(builder.fsub(other_top, shift))
            only_first = builder.fcmp_ordered("==", other_top, nothing)
            only_other = builder.fcmp_ordered("==", top, nothing)

            shares = share, other_share, only_first, only_other

            def join_row(row: Any, _: list[Any], column: Any = column, shares: Any = shares) -> list[Any]:
                offset = builder.add(builder.mul(row, index(vectors * width)), column)
                first, second = writer.load(output, offset), writer.load(other, offset)
                writer.store(_join(writer, first, second, *shares), output, offset)
                return []

            first, second = writer.load(denominator, column), writer.load(other_denominator, column)
            total = _join(writer, first, second, *shares)
            repeat(builder, num_rows, [], join_row)
            writer.store(total, denominator, column)
            writer.store(joined, highest, column)
        return context.get_dummy_value()

    return write


def _join(
    writer: VectorWriter,
    first: Any,
    second: Any,
    share: Any,
    other_share: Any,
    only_first: Any,
    only_other: Any,
) -> Any:
    """Mix two sides by their shares, or take the one side that has seen something."""
    mixed = writer.fma(second, other_share, writer.builder.fmul(first, share))
    one_side = writer.builder.select(only_other, second, mixed)
    return writer.builder.select(only_first, first, one_side)


def scale_rows(vectors: int, width: int) -> Any:
    """Make the step that multiplies ``num_rows`` rows of lanes by one number per lane.

    The result takes ``(rows, num_rows, factors)``.
    """

    @instruction
    def step(typing_context: Any, rows: Any, num_rows: Any, factors: Any) -> Any:
        signature = types.void(rows, types.intp, factors)

        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            start, count, factors = arguments
            writer = VectorWriter(builder, width)
            columns = [index(vector * width) for vector in range(vectors)]
            multipliers = [writer.load(factors, column) for column in columns]

            def multiply(row: Any, _: list[Any]) -> list[Any]:
                place = builder.gep(start, [builder.mul(row, index(vectors * width))])
                for column, multiplier in zip(columns, multipliers, strict=True):
                    writer.store(builder.fmul(writer.load(place, column), multiplier), place, column)
                return []

            repeat(builder, count, [], multiply)
            return context.get_dummy_value()

        return signature, write

    return step
