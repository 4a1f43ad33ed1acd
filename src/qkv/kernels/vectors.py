"""Write LLVM instructions on vectors of float32, as a few readable verbs.

Numba turns loops into machine code but leaves to chance whether a loop becomes vector
instructions, and in which order it adds. Here both are said outright: one fused multiply-add is
one `VectorWriter.fma`, and a chain of them stays the chain that was written.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

F32 = ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))

# exp(r) for |r| <= ln(2)/2 as 1 + r + r^2 * (polynomial below), highest power first.
# Source: the single-precision exponential of the Cephes library (Moshier 1989).
EXP_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln(2) in two parts; the high one has few bits, so that multiples of it are exact."""

EXP_LOWEST = -87.0
"""Below this `VectorWriter.exp` gives 0: the true value is under 1.7e-38."""


def index(value: int) -> ir.Constant:
    """Return an address offset."""
    return ir.Constant(I64, value)


class VectorWriter:
    """Writes instructions on vectors of ``width`` float32 lanes at a builder's position.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Where the instructions go.
    width : int
        Lanes of one vector: 4 (NEON), 8 (AVX2) or 16 (AVX-512).
    """

    def __init__(self, builder: ir.IRBuilder, width: int) -> None:
        self.builder = builder
        self.width = width
        self.type = ir.VectorType(F32, width)
        self.int_type = ir.VectorType(I32, width)

    def load(self, pointer: Any, offset: Any = None) -> Any:
        """Read ``width`` numbers from memory of any alignment."""
        loaded: Any = self.builder.load(self._vector_pointer(pointer, offset, self.type))
        loaded.align = 4
        return loaded

    def load_bfloat16(self, pointer: Any, offset: Any = None) -> Any:
        """Read ``width`` bfloat16 numbers and widen them exactly: their bits are float32's upper half."""
        half: Any = self.builder.load(self._vector_pointer(pointer, offset, ir.VectorType(I16, self.width)))
        half.align = 2
        bits = self.builder.shl(self.builder.zext(half, self.int_type), self.int_constant(16))
        return self.builder.bitcast(bits, self.type)

    def load_int8(self, pointer: Any, offset: Any = None) -> Any:
        """Read ``width`` signed bytes as float32."""
        codes: Any = self.builder.load(self._vector_pointer(pointer, offset, ir.VectorType(I8, self.width)))
        codes.align = 1
        return self.builder.sitofp(self.builder.sext(codes, self.int_type), self.type)

    def store(self, vector: Any, pointer: Any, offset: Any = None) -> None:
        """Write ``width`` numbers to memory of any alignment."""
        stored: Any = self.builder.store(vector, self._vector_pointer(pointer, offset, self.type))
        stored.align = 4

    def load_first(self, count: Any, pointer: Any, offset: Any) -> Any:
        """Read the first ``count`` numbers, and 0 in the lanes behind them, whose memory is not touched."""
        arguments = [self._vector_pointer(pointer, offset, self.type), self._first(count), self.constant(0.0)]
        return self._masked("load", self.type, arguments, align_at=1)

    def store_first(self, count: Any, vector: Any, pointer: Any, offset: Any) -> None:
        """Write the first ``count`` lanes; the memory behind them is not touched."""
        arguments = [vector, self._vector_pointer(pointer, offset, self.type), self._first(count)]
        self._masked("store", ir.VoidType(), arguments, align_at=2)

    def prefetch(self, pointer: Any, offset: Any, *, near: bool = False) -> None:
        """Ask for a line of memory, into the first level if ``near``; any address is allowed."""
        pointer_type, module, name = I8.as_pointer(), self.builder.module, "llvm.prefetch.p0"
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer_type, I32, I32, I32]), name)
        line = self.builder.bitcast(self.builder.gep(pointer, [offset]), pointer_type)
        to_read, level, data = (ir.Constant(I32, value) for value in (0, 3 if near else 2, 1))
        self.builder.call(module.globals[name], [line, to_read, level, data])

    def part(self, vector: Any, first: int, count: int) -> Any:
        """Return ``count`` neighbouring lanes as a shorter vector."""
        lanes = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
        return self.builder.shuffle_vector(vector, vector, lanes)

    def joined(self, vectors: Sequence[Any]) -> Any:
        """Return the lanes of one vector after those of another, of as many as are a power of 2."""
        joined, width = list(vectors), vectors[0].type.count
        while len(joined) > 1:
            lanes = ir.Constant(ir.VectorType(I32, 2 * width), list(range(2 * width)))
            pairs = zip(joined[::2], joined[1::2], strict=True)
            joined, width = [self.builder.shuffle_vector(*pair, lanes) for pair in pairs], 2 * width
        return joined[0]

    def store_part(self, vector: Any, pointer: Any, offset: Any) -> None:
        """Write a vector of any number of lanes."""
        stored: Any = self.builder.store(vector, self._vector_pointer(pointer, offset, vector.type))
        stored.align = 4

    def sum_each(self, vectors: Sequence[Any]) -> Any:
        """Return a vector of each vector's sum over its lanes, added up in the lanes' order.

        There are as many vectors as lanes: they are transposed, so that the sums run lane by lane. Where
        there are fewer, a power of two, each part of as many lanes is summed on its own: the first parts of
        all come first, then the second ones.
        """
        columns, distance = list(vectors), 1
        while distance < len(vectors):
            columns = self._swap_blocks(columns, distance)
            distance *= 2
        total = columns[0]
        for column in columns[1:]:
            total = self.builder.fadd(total, column)
        return total

    def _swap_blocks(self, rows: list[Any], distance: int) -> list[Any]:
        """Transpose each 2 x 2 square of blocks of ``distance`` lanes: off the diagonal they swap."""
        width, swapped = self.width, list(rows)
        low = [lane if not lane & distance else width + lane - distance for lane in range(width)]
        high = [lane + distance if not lane & distance else width + lane for lane in range(width)]
        for row in range(len(rows)):
            if not row & distance:
                pair = rows[row], rows[row + distance]
                swapped[row], swapped[row + distance] = (
                    self.builder.shuffle_vector(*pair, ir.Constant(self.int_type, lanes))
                    for lanes in (low, high)
                )
        return swapped

    def _first(self, count: Any) -> Any:
        """Return a mask of the lanes before ``count``."""
        lanes = ir.Constant(self.int_type, list(range(self.width)))
        number = self.builder.trunc(count, I32)
        blank = ir.Constant(self.int_type, ir.Undefined)
        first = self.builder.insert_element(blank, number, ir.Constant(I32, 0))
        limits = self.builder.shuffle_vector(first, blank, self.int_constant(0))
        return self.builder.icmp_signed("<", lanes, limits)

    def _masked(self, verb: str, result: ir.Type, arguments: list[Any], align_at: int) -> Any:
        name = f"llvm.masked.{verb}.v{self.width}f32.p0"
        arguments.insert(align_at, ir.Constant(I32, 4))
        module = self.builder.module
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(result, [argument.type for argument in arguments]), name)
        return self.builder.call(module.globals[name], arguments)

    def constant(self, value: float) -> ir.Constant:
        """Return one number in every lane."""
        return ir.Constant(self.type, [float(value)] * self.width)

    def int_constant(self, value: int) -> ir.Constant:
        """Return one integer in every lane."""
        return ir.Constant(self.int_type, [value] * self.width)

    def splat(self, scalar: Any) -> Any:
        """Repeat a number in every lane."""
        blank = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(blank, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, blank, self.int_constant(0))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a * b + c`` with one rounding."""
        return self._intrinsic("fma", a, b, c)

    def absolute(self, x: Any) -> Any:
        """Return numbers without their signs."""
        return self._intrinsic("fabs", x)

    def folded(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        """Return all lanes joined, in every lane: each with its neighbour, then pairs, then fours."""
        distance = 1
        while distance < self.width:
            lanes = ir.Constant(self.int_type, [lane ^ distance for lane in range(self.width)])
            vector = join(vector, self.builder.shuffle_vector(vector, vector, lanes))
            distance *= 2
        return vector

    def larger(self, a: Any, b: Any) -> Any:
        """Return the larger of each pair; b where either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the larger of each pair, or NaN where either is NaN."""
        larger = self.larger(a, b)
        return self.builder.select(self.builder.fcmp_unordered("uno", a, a), a, larger)

    def exp(self, x: Any) -> Any:
        """Return ``exp(x)`` for x <= 0 within 2 units in the last place; 0 below `EXP_LOWEST`, NaN for NaN.

        ``exp(x) = 2^n exp(r)`` with n the nearest integer to x / ln 2.
        """
        builder = self.builder
        n = self._intrinsic("rint", builder.fmul(x, self.constant(LOG2_E)))
        r = self.fma(n, self.constant(-LN2_HIGH), x)
        r = self.fma(n, self.constant(-LN2_LOW), r)
        polynomial = self.constant(EXP_COEFFICIENTS[0])
        for coefficient in EXP_COEFFICIENTS[1:]:
            polynomial = self.fma(polynomial, r, self.constant(coefficient))
        value = self.fma(polynomial, builder.fmul(r, r), builder.fadd(r, self.constant(1.0)))
        exponent = builder.add(builder.fptosi(n, self.int_type), self.int_constant(127))
        power = builder.bitcast(builder.shl(exponent, self.int_constant(23)), self.type)
        too_low = builder.fcmp_ordered("<", x, self.constant(EXP_LOWEST))
        result = builder.select(too_low, self.constant(0.0), builder.fmul(value, power))
        return builder.select(builder.fcmp_unordered("uno", x, x), x, result)

    def _intrinsic(self, name: str, *arguments: Any) -> Any:
        full_name = f"llvm.{name}.v{self.width}f32"
        module = self.builder.module
        if full_name not in module.globals:
            signature = ir.FunctionType(self.type, [self.type] * len(arguments))
            ir.Function(module, signature, full_name)
        return self.builder.call(module.globals[full_name], arguments)

    def _vector_pointer(self, pointer: Any, offset: Any, type_: ir.Type) -> Any:
        moved = pointer if offset is None else self.builder.gep(pointer, [offset])
        return self.builder.bitcast(moved, type_.as_pointer())


def repeat(
    builder: ir.IRBuilder,
    count: Any,
    carried: Sequence[Any],
    body: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Write a loop that hands values from each turn to the next, and return the last ones.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    count : int64 value
        Turns; 0 or less gives back the first values.
    carried : sequence of values
        What the first turn gets.
    body : callable
        Takes the turn's number and its values, writes the turn, returns the next values.
    """
    before = builder.block
    turn, after = builder.append_basic_block("turn"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed(">", count, index(0)), turn, after)
    builder.position_at_end(turn)
    number, entering = builder.phi(I64), [builder.phi(value.type) for value in carried]
    leaving = list(body(number, list(entering)))
    end = builder.block
    next_number = builder.add(number, index(1))
    builder.cbranch(builder.icmp_signed("<", next_number, count), turn, after)
    for phi, first, later in zip(
        [number, *entering], [index(0), *carried], [next_number, *leaving], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(later, end)
    builder.position_at_end(after)
    return [_either(builder, first, before, last, end) for first, last in zip(carried, leaving, strict=True)]


def _either(builder: ir.IRBuilder, first: Any, before: Any, last: Any, end: Any) -> Any:
    phi = builder.phi(last.type)
    phi.add_incoming(first, before)
    phi.add_incoming(last, end)
    return phi
