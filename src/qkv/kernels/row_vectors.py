"""Go along rows of float32 numbers, vector by vector, in functions that compiled code can call.

`row_sum` adds a row up; `along_row` makes a row from others by a step of `row_steps`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.memory import instruction
from qkv.kernels.vectors import I32, I64, VectorWriter, index, repeat

CHAINS = 16
"""Sums that a row is added up from at every vector width: its number i belongs to chain ``i % CHAINS``."""


def row_sum(width: int, *, squares: bool) -> Any:
    """Make the sum of a row's numbers, or of their squares: `CHAINS` chains, added up in order.

    The result takes ``(row, length)`` and returns a float32 number.
    """

    @instruction
    def total(typing_context: Any, row: Any, length: Any) -> Any:
        return types.float32(row, types.intp), _write_sum(width, squares=squares)

    return total


def _write_sum(width: int, *, squares: bool) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, length = arguments
        writer = VectorWriter(builder, width)
        places = [index(first) for first in range(0, CHAINS, width)]
        whole, rest = builder.sdiv(length, index(CHAINS)), builder.srem(length, index(CHAINS))

        def add(number: Any, sums: list[Any], load: Callable[..., Any] = writer.load) -> list[Any]:
            start = builder.gep(row, [builder.mul(number, index(CHAINS))])
            vectors = zip((load(start, place) for place in places), sums, strict=True)
            return [writer.fma(x, x, chain) if squares else builder.fadd(chain, x) for x, chain in vectors]

        def add_rest(_: Any, sums: list[Any]) -> list[Any]:
            def load(start: Any, place: Any) -> Any:
                return writer.load_first(builder.sub(rest, place), start, place)

            return add(whole, sums, load)

        sums = repeat(builder, whole, [writer.constant(0.0)] * len(places), add)
        return _added_up(writer, repeat(builder, _is_positive(builder, rest), sums, add_rest))

    return write


def _added_up(writer: VectorWriter, vectors: list[Any]) -> Any:
    """Return the sum of all lanes of all vectors, in order, as a number."""
    places = [(vector, ir.Constant(I32, lane)) for vector in vectors for lane in range(writer.width)]
    total = writer.builder.extract_element(*places[0])
    for place in places[1:]:
        total = writer.builder.fadd(total, writer.builder.extract_element(*place))
    return total


@dataclass(frozen=True)
class Place:
    """Where in its row a vector is.

    Attributes
    ----------
    writer : VectorWriter
    offset : int64 value
        Where it begins.
    left : int64 value or None
        How many of its lanes are still of the row; ``None`` = all.
    length : int64 value
        Of the row.
    """

    writer: VectorWriter
    offset: Any
    left: Any
    length: Any

    def get(self, row: Any) -> Any:
        """Read the vector."""
        if self.left is None:
            return self.writer.load(row, self.offset)
        return self.writer.load_first(self.left, row, self.offset)

    def put(self, vector: Any, row: Any) -> None:
        """Write the vector."""
        if self.left is None:
            self.writer.store(vector, row, self.offset)
        else:
            self.writer.store_first(self.left, vector, row, self.offset)

    def beside(self) -> "Place":
        """Return the place in a row behind this one."""
        return replace(self, offset=self.writer.builder.add(self.offset, self.length))

    def doubled(self) -> tuple["Place", "Place"]:
        """Return the two places that hold two neighbours for each number here."""
        builder, width = self.writer.builder, index(self.writer.width)
        offset = builder.add(self.offset, self.offset)
        left = None if self.left is None else builder.add(self.left, self.left)
        left_beyond = None if left is None else builder.sub(left, width)
        return (
            replace(self, offset=offset, left=left),
            replace(self, offset=builder.add(offset, width), left=left_beyond),
        )


RowStep = Callable[[Place, Any, Any, Any, Any, Any], None]
"""Writes what is done at a place of rows x, a and b and a number, repeated in a vector, for row y."""


def along_row(step: RowStep, width: int) -> Any:
    """Make a step from rows to a row. The result takes ``(x, a, b, number, y, length)``; y may be x."""

    @instruction
    def run(typing_context: Any, x: Any, a: Any, b: Any, number: Any, y: Any, length: Any) -> Any:
        return types.void(x, a, b, types.float32, y, types.intp), _write_along(step, width)

    return run


def _write_along(step: RowStep, width: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        x, a, b, number, y, length = arguments
        writer = VectorWriter(builder, width)
        numbers = writer.splat(number)
        whole, rest = builder.sdiv(length, index(width)), builder.srem(length, index(width))

        def step_at(number: Any, left: Any = None) -> list[Any]:
            place = Place(writer, builder.mul(number, index(width)), left, length)
            step(place, x, a, b, numbers, y)
            return []

        repeat(builder, whole, [], lambda number, _: step_at(number))
        repeat(builder, _is_positive(builder, rest), [], lambda _, __: step_at(whole, rest))
        return context.get_dummy_value()

    return write


def _is_positive(builder: ir.IRBuilder, count: Any) -> Any:
    """Return 1 or 0: how often a step is done that is there for what is left."""
    return builder.zext(builder.icmp_signed(">", count, index(0)), I64)
