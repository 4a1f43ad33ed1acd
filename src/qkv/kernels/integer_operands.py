"""Queries and weights as whole numbers, for `integer_products`.

A row of numbers becomes whole numbers of 16 bits and the one number that these are multiplied by: the largest
becomes `LARGEST`, and each is off by at most half of its 65,534th part. What belongs to the codes beside them
goes along: a step per channel into the queries, once for a page, a scale or step per key into the weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.integer_products import PAIRS, WORD_VECTOR, WORDS
from qkv.kernels.memory import instruction
from qkv.kernels.vectors import I8, I16, I32, VectorWriter, index, repeat
from qkv.kernels.widening import half_numbers

LARGEST = 32767
"""Of the whole numbers."""

NEXT_WHOLE = 1.5 * 2.0**23
"""Added to a number below 2^22 it leaves the nearest whole number in the last bits, ties to even."""

LEAST_TOP = 2.0**-100
"""Rows below it become 0: their scale's inverse could be infinite."""

LANES = 8
"""Queries beside each other, and numbers in a vector."""

GROUPS = 4
"""Groups of channels whose sums grow side by side, so that none waits for itself."""


def whole_rows(rows: int) -> Any:
    """Make what writes ``x * steps`` of several rows as whole numbers.

    The result takes ``(x, steps, lows, words, scales, totals, largest, depth)``: rows of ``depth`` numbers, a
    multiple of `WORDS`; the addresses of a float16 factor for each channel, and of what its code 0 stands
    for; the address of the words; where to write what each row's words are multiplied by, and the sum of
    ``x * lows``; the largest whole number, as float32. A row with a NaN or an infinity has a scale of NaN.
    """

    @instruction
    def write_rows(
        typing_context: Any,
        x: Any,
        steps: Any,
        lows: Any,
        words: Any,
        scales: Any,
        totals: Any,
        largest: Any,
        depth: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(x, size, size, size, scales, totals, types.float32, size)
        return signature, _write_whole_rows(rows)

    return write_rows


def _write_whole_rows(rows: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        x, steps, lows, words, scales, totals, largest, depth = arguments
        writer, largest = VectorWriter(builder, LANES), VectorWriter(builder, LANES).splat(largest)
        starts = [builder.gep(x, [builder.mul(depth, index(row))]) for row in range(rows)]
        words = builder.inttoptr(words, I16.as_pointer())
        targets = [builder.gep(words, [builder.mul(depth, index(row))]) for row in range(rows)]

        def halves_at(start: Any, place: Any) -> Any:
            address = builder.inttoptr(builder.add(start, builder.mul(place, index(2))), I8.as_pointer())
            return half_numbers(writer, address)

        def measure(turn: Any, so_far: list[Any]) -> list[Any]:
            place, grown = builder.mul(turn, index(LANES)), []
            step, low = halves_at(steps, place), halves_at(lows, place)
            for row, start in enumerate(starts):
                top, total = so_far[2 * row : 2 * row + 2]
                numbers = writer.load(start, place)
                top = writer.larger(writer.absolute(builder.fmul(numbers, step)), top)
                grown += [top, writer.fma(numbers, low, total)]
            return grown

        zeros = [writer.constant(0.0)] * (2 * rows)
        measured = repeat(builder, builder.sdiv(depth, index(LANES)), zeros, measure)
        inverses, first = [], ir.Constant(I32, 0)
        for row in range(rows):
            top = writer.folded(measured[2 * row], writer.larger)
            total = writer.folded(measured[2 * row + 1], builder.fadd)
            inverses.append(_inverse(writer, top, largest))
            # Only what is no finite number does not leave 0 when it is taken from itself.
            known = builder.fadd(top, builder.fsub(total, total))
            scale = builder.fdiv(known, largest)
            builder.store(builder.extract_element(scale, first), builder.gep(scales, [index(row)]))
            builder.store(builder.extract_element(total, first), builder.gep(totals, [index(row)]))

        def round_some(turn: Any, _: list[Any]) -> list[Any]:
            places = [builder.add(builder.mul(turn, index(WORDS)), index(number)) for number in (0, LANES)]
            some = [halves_at(steps, place) for place in places]
            for start, target, inverse in zip(starts, targets, inverses, strict=True):
                wholes = [
                    _whole(writer, builder.fmul(writer.load(start, place), step), inverse)
                    for place, step in zip(places, some, strict=True)
                ]
                rounded = builder.trunc(writer.joined(wholes), WORD_VECTOR)
                stored: Any = builder.store(
                    rounded, builder.bitcast(builder.gep(target, [places[0]]), WORD_VECTOR.as_pointer())
                )
                stored.align = 2
            return []

        repeat(builder, builder.sdiv(depth, index(WORDS)), [], round_some)
        return context.get_dummy_value()

    return write


@instruction
def row_weights(
    typing_context: Any, weights: Any, marks: Any, factors: Any, pairs: Any, scales: Any, num_keys: Any
) -> Any:
    """Write ``weights * factors`` as whole numbers, those of two keys beside each other.

    Takes ``(weights, marks, factors, pairs, scales, num_keys)``: rows of `LANES` weights; numbers beside
    them, ``-inf`` where a weight is of a key that its lane does not see; a factor of each key; the address of
    the pairs; where to write each lane's scale. Weights are overwritten by what the whole numbers stand for.
    """
    signature = types.void(weights, marks, factors, types.intp, scales, types.intp)
    return signature, _write_row_weights


def _write_row_weights(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
    weights, marks, factors, pairs, scales, num_keys = arguments
    writer = VectorWriter(builder, LANES)

    def weigh(key: Any, so_far: list[Any]) -> list[Any]:
        place = builder.mul(key, index(LANES))
        factor = writer.splat(builder.load(builder.gep(factors, [key])))
        seen = _seen(writer, writer.load(marks, place), builder.fmul(writer.load(weights, place), factor))
        writer.store(seen, weights, place)
        return [writer.maximum(seen, so_far[0])]

    (top,) = repeat(builder, num_keys, [writer.constant(0.0)], weigh)
    inverse = _inverse(writer, top, writer.constant(LARGEST))
    target = builder.inttoptr(pairs, I32.as_pointer())

    def pair_up(pair: Any, keys: Sequence[Any]) -> None:
        wholes = [
            _whole(writer, writer.load(weights, builder.mul(key, index(LANES))), inverse) for key in keys
        ]
        writer.store_part(_pair(writer, wholes), target, builder.mul(pair, index(LANES)))

    _for_pairs(builder, num_keys, pair_up)
    writer.store(_scale(writer, top, writer.constant(LARGEST)), scales)
    return context.get_dummy_value()


def group_weights(beside: int) -> Any:
    """Make what writes ``weights * steps`` as whole numbers, those of two keys beside each other.

    The result takes ``(weights, marks, steps, lows, products, pairs, scales, totals, num_keys, groups)``: the
    first two as `row_weights`, of which the first ``LANES // beside`` lanes count; for each key and group of
    channels a step, and what a code 0 stands for; room for `GROUPS` times `LANES` numbers of each key; the
    address of the pairs, `PAIRS` for each group; for each group and lane where to write the scale, and the
    sum of ``weights * lows``. ``beside`` groups are in a vector, one or two.
    """

    @instruction
    def weigh(
        typing_context: Any,
        weights: Any,
        marks: Any,
        steps: Any,
        lows: Any,
        products: Any,
        pairs: Any,
        scales: Any,
        totals: Any,
        num_keys: Any,
        groups: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(weights, marks, steps, lows, products, size, scales, totals, size, size)
        return signature, _write_group_weights(beside)

    return weigh


def _write_group_weights(beside: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        weights, marks, steps, lows, products, pairs, scales, totals, num_keys, groups = arguments
        target = builder.inttoptr(pairs, I32.as_pointer())

        def weigh(first: Any, count: int, beside: int) -> None:
            """Weigh ``count`` groups, ``beside`` of them in each vector."""
            own = GroupVectors(builder, beside)
            writer = own.writer
            some = [builder.add(first, index(number)) for number in range(0, count, beside)]

            def product_at(key: Any, vector: int) -> Any:
                return builder.mul(
                    builder.add(builder.mul(key, index(len(some))), index(vector)), index(LANES)
                )

            def measure(key: Any, so_far: list[Any]) -> list[Any]:
                weight, mark = own.of_lanes(weights, key), own.of_lanes(marks, key)
                grown = []
                for vector, group in enumerate(some):
                    top, total = so_far[2 * vector : 2 * vector + 2]
                    place = builder.add(builder.mul(key, groups), group)
                    product = _seen(writer, mark, builder.fmul(weight, own.of_groups(steps, place)))
                    low = _seen(writer, mark, own.of_groups(lows, place))
                    writer.store(product, products, product_at(key, vector))
                    grown += [writer.larger(product, top), writer.fma(weight, low, total)]
                return grown

            measured = repeat(builder, num_keys, [writer.constant(0.0)] * (2 * len(some)), measure)
            tops, largest = measured[::2], writer.constant(LARGEST)
            inverses = [_inverse(writer, top, largest) for top in tops]
            for group, top, total in zip(some, tops, measured[1::2], strict=True):
                own.store(_scale(writer, top, largest), scales, group, LANES)
                own.store(total, totals, group, LANES)

            def pair_up(pair: Any, keys: Sequence[Any]) -> None:
                for vector, (group, inverse) in enumerate(zip(some, inverses, strict=True)):
                    wholes = [
                        _whole(writer, writer.load(products, product_at(key, vector)), inverse)
                        for key in keys
                    ]
                    before = builder.gep(target, [builder.mul(pair, index(LANES))])
                    own.store(_pair(writer, wholes), before, group, PAIRS * LANES)

            _for_pairs(builder, num_keys, pair_up)

        def several(turn: Any, _: list[Any]) -> list[Any]:
            weigh(builder.mul(turn, index(GROUPS)), GROUPS, beside)
            return []

        def one(turn: Any, _: list[Any]) -> list[Any]:
            weigh(builder.add(done, turn), 1, 1)
            return []

        turns = builder.sdiv(groups, index(GROUPS))
        done = builder.mul(turns, index(GROUPS))
        repeat(builder, turns, [], several)
        repeat(builder, builder.sub(groups, done), [], one)
        return context.get_dummy_value()

    return write


class GroupVectors:
    """Vectors of the lanes of one group of channels, or of half the lanes of two neighbouring ones."""

    def __init__(self, builder: ir.IRBuilder, beside: int) -> None:
        self.builder, self.beside = builder, beside
        self.writer, self.few = VectorWriter(builder, LANES), VectorWriter(builder, LANES // beside)

    def of_lanes(self, numbers: Any, key: Any) -> Any:
        """Return a key's number for each lane, for all groups."""
        return self.writer.joined([self.few.load(numbers, self.builder.mul(key, index(LANES)))] * self.beside)

    def of_groups(self, numbers: Any, place: Any) -> Any:
        """Return the numbers of groups that begin at a place, for all lanes."""
        places = [self.builder.add(place, index(number)) for number in range(self.beside)]
        loaded = [self.builder.load(self.builder.gep(numbers, [one])) for one in places]
        return self.writer.joined([self.few.splat(one) for one in loaded])

    def store(self, vector: Any, start: Any, group: Any, group_step: int) -> None:
        """Write what belongs to each group ``group_step`` places apart."""
        for number in range(self.beside):
            part = self.writer.part(vector, number * self.few.width, self.few.width)
            place = self.builder.mul(self.builder.add(group, index(number)), index(group_step))
            self.writer.store_part(part, start, place)


def _for_pairs(builder: ir.IRBuilder, num_keys: Any, pair_up: Callable[[Any, Sequence[Any]], None]) -> None:
    """Write what is done for each pair of keys; one that is left over comes alone."""

    def both(pair: Any, _: list[Any]) -> list[Any]:
        first = builder.mul(pair, index(2))
        pair_up(pair, (first, builder.add(first, index(1))))
        return []

    def alone(_: Any, __: list[Any]) -> list[Any]:
        pair_up(whole, (builder.mul(whole, index(2)),))
        return []

    whole = builder.sdiv(num_keys, index(2))
    repeat(builder, whole, [], both)
    repeat(builder, builder.sub(num_keys, builder.mul(whole, index(2))), [], alone)


def _pair(writer: VectorWriter, wholes: Sequence[Any]) -> Any:
    """Return two whole numbers for each lane as words, or one and 0."""
    builder = writer.builder
    first = builder.and_(wholes[0], writer.int_constant(0xFFFF))
    if len(wholes) == 1:
        return first
    return builder.or_(first, builder.shl(wholes[1], writer.int_constant(16)))


def _seen(writer: VectorWriter, marks: Any, numbers: Any) -> Any:
    """Return numbers, and 0 in lanes whose mark is ``-inf``: these do not see the key."""
    hidden = writer.builder.fcmp_ordered("==", marks, writer.constant(float("-inf")))
    return writer.builder.select(hidden, writer.constant(0.0), numbers)


def _whole(writer: VectorWriter, numbers: Any, factor: Any) -> Any:
    """Return the whole numbers next to products, of which only the last 16 bits count."""
    return writer.builder.bitcast(writer.fma(numbers, factor, writer.constant(NEXT_WHOLE)), writer.int_type)


def _inverse(writer: VectorWriter, top: Any, largest: Any) -> Any:
    """Return what numbers up to ``top`` are multiplied by to be whole."""
    builder = writer.builder
    is_usable = builder.fcmp_ordered(">", top, writer.constant(LEAST_TOP))
    return builder.select(is_usable, builder.fdiv(largest, top), writer.constant(0.0))


def _scale(writer: VectorWriter, top: Any, largest: Any) -> Any:
    """Return what whole numbers are multiplied by; NaN where the largest number is none or infinite."""
    builder = writer.builder
    known = builder.fadd(top, builder.fsub(top, top))
    return builder.fdiv(known, largest)
