"""The online softmax of `micro` for few queries: two keys in a vector, so that no lane idles."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.memory import instruction
from qkv.kernels.micro import finite
from qkv.kernels.vectors import VectorWriter, index, repeat

TURN_KEYS = 4
"""Keys of a turn, in two vectors: one alone would wait for itself."""


def paired_softmax(queries: int, row: int) -> Any:
    """Make the step of `micro.online_softmax` for the first ``queries`` lanes of rows of ``row`` numbers.

    The others are left as they are. Every sum has the same order.
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
        return signature, _write(queries, row)

    return step


def _write(queries: int, row: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, num_keys, scale, highest, denominator, rescale = arguments
        one, pair = VectorWriter(builder, queries), VectorWriter(builder, 2 * queries)

        def place(key: Any) -> Any:
            return builder.mul(key, index(row))

        def scaled(writer: VectorWriter, key: Any) -> Any:
            """Return the scaled scores of a key, or of two."""
            keys = [builder.add(key, index(number)) for number in range(writer.width // queries)]
            vector = one.joined([one.load(scores, place(key)) for key in keys])
            return builder.fmul(vector, writer.splat(scale))

        def halves(vector: Any) -> list[Any]:
            return [pair.part(vector, 0, queries), pair.part(vector, queries, queries)]

        turns = builder.sdiv(num_keys, index(TURN_KEYS))
        done = builder.mul(turns, index(TURN_KEYS))
        rest = builder.sub(num_keys, done)

        def raise_several(turn: Any, tops: list[Any]) -> list[Any]:
            keys = [builder.add(builder.mul(turn, index(TURN_KEYS)), index(number)) for number in (0, 2)]
            return [pair.maximum(scaled(pair, key), top) for key, top in zip(keys, tops, strict=True)]

        def raise_one(number: Any, tops: list[Any]) -> list[Any]:
            return [one.maximum(scaled(one, builder.add(done, number)), tops[0])]

        before = one.load(highest)
        tops = repeat(builder, turns, [one.joined([before, before])] * 2, raise_several)
        first, *others = [half for top in tops for half in halves(top)]
        for other in others:
            first = one.maximum(first, other)
        (after,) = repeat(builder, rest, [first], raise_one)
        shift = finite(one, after)
        shifts = one.joined([shift, shift])
        factor = one.exp(builder.fsub(before, shift))

        def weigh_several(turn: Any, sums: list[Any]) -> list[Any]:
            total = sums[0]
            for number in (0, 2):
                key = builder.add(builder.mul(turn, index(TURN_KEYS)), index(number))
                weights = halves(pair.exp(builder.fsub(scaled(pair, key), shifts)))
                for beyond, weight in enumerate(weights):
                    one.store(weight, scores, place(builder.add(key, index(beyond))))
                    total = builder.fadd(total, weight)
            return [total]

        def weigh_one(number: Any, sums: list[Any]) -> list[Any]:
            key = builder.add(done, number)
            weight = one.exp(builder.fsub(scaled(one, key), shift))
            one.store(weight, scores, place(key))
            return [builder.fadd(sums[0], weight)]

        sums = [builder.fmul(one.load(denominator), factor)]
        sums = repeat(builder, rest, repeat(builder, turns, sums, weigh_several), weigh_one)
        one.store(after, highest)
        one.store(sums[0], denominator)
        one.store(factor, rescale)
        return context.get_dummy_value()

    return write
