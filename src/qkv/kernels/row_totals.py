"""What two rows, or all numbers of one, come to: functions that compiled code can call."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import instruction, number_at
from qkv.kernels.row_vectors import CHAINS
from qkv.kernels.vectors import I32, I64, VectorWriter, index, repeat

MAXIMA = 4
"""Vectors compared at once: one alone would wait for itself."""


def row_dot(width: int) -> Any:
    """Make the sum of two rows' products: `CHAINS` chains, added up in order, as `row_sum` does.

    The result takes ``(a, b, length)`` and returns a float32 number.
    """

    @instruction
    def total(typing_context: Any, a: Any, b: Any, length: Any) -> Any:
        return types.float32(a, b, types.intp), _write_dot(width)

    return total


def _write_dot(width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, b, length = arguments
        writer = VectorWriter(builder, width)
        places = [index(first) for first in range(0, CHAINS, width)]
        whole, rest = builder.sdiv(length, index(CHAINS)), builder.srem(length, index(CHAINS))

        def add(number: Any, sums: list[Any], load: Callable[..., Any] = writer.load) -> list[Any]:
            start = builder.mul(number, index(CHAINS))
            one, other = (builder.gep(row, [start]) for row in (a, b))
            pairs = ((load(one, place), load(other, place)) for place in places)
            return [writer.fma(*pair, chain) for pair, chain in zip(pairs, sums, strict=True)]

        def add_rest(_: Any, sums: list[Any]) -> list[Any]:
            def load(row: Any, place: Any) -> Any:
                return writer.load_first(builder.sub(rest, place), row, place)

            return add(whole, sums, load)

        sums = repeat(builder, whole, [writer.constant(0.0)] * len(places), add)
        is_left = builder.zext(builder.icmp_signed(">", rest, index(0)), I64)
        return _folded(writer, repeat(builder, is_left, sums, add_rest), builder.fadd)

    return write


def row_max(width: int) -> Any:
    """Make the largest number of a row, which has at least one.

    The result takes ``(row, length)`` and returns a float32 number.
    """
    step = MAXIMA * width

    @instruction
    def largest(typing_context: Any, row: Any, count: Any) -> Any:
        return types.float32(row, types.intp), _write_max(width)

    @compiled()
    def row_largest(row: Any, length: int) -> Any:
        highest = largest(row, length // step) if length >= step else number_at(row, 0)
        for place in range(length // step * step, length):
            highest = max(highest, number_at(row, place))
        return highest

    return row_largest


def _write_max(width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, count = arguments
        writer = VectorWriter(builder, width)
        places = [index(vector * width) for vector in range(MAXIMA)]

        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def compare(number: Any, highest: list[Any]) -> list[Any]:
            start = builder.gep(row, [builder.mul(number, index(MAXIMA * width))])
            vectors = [writer.load(start, place) for place in places]
            return [larger(*pair) for pair in zip(vectors, highest, strict=True)]

        first = [writer.load(row, place) for place in places]
        return _folded(writer, repeat(builder, count, first, compare), larger)

    return write


def _folded(writer: VectorWriter, vectors: list[Any], join: Callable[[Any, Any], Any]) -> Any:
    """Return all lanes of all vectors joined in order, as a number."""
    places = [(vector, ir.Constant(I32, lane)) for vector in vectors for lane in range(writer.width)]
    numbers = [writer.builder.extract_element(*place) for place in places]
    total = numbers[0]
    for number in numbers[1:]:
        total = join(total, number)
    return total
