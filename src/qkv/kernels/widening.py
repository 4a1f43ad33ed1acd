"""Widen stored codes to float32, a vector at a time.

Each step takes whole vectors only and returns how many numbers it did; the few that are left are done
one by one in `key_rows`, by the same arithmetic.

The ladder, decode of one token over 32,768 keys of 8 key heads, int8: loops over single codes, which the
compiler did not turn into vectors, took 2.5 times as long as these.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from qkv.kernels.host import VECTOR_WIDTH
from qkv.kernels.memory import instruction
from qkv.kernels.micro import CHAINS
from qkv.kernels.vectors import I8, I16, I32, VectorWriter, index, repeat

HALF = ir.HalfType()

E4M3_UNIT = 2.0**-8
"""How many times the number of an e4m3 code what is read of it is."""

Load = Callable[..., Any]
"""Write what reads a vector of codes with a `VectorWriter` and returns it as float32.

Codes begin at an address, a pointer to bytes; at several, each has its share of the lanes.
"""


def half_numbers(writer: VectorWriter, *addresses: Any) -> Any:
    """Read float16 numbers."""
    return writer.builder.fpext(_codes(writer, addresses, HALF, 2), writer.type)


def bfloat16_numbers(writer: VectorWriter, *addresses: Any) -> Any:
    """Read bfloat16 numbers: their bits are float32's upper half."""
    bits = writer.builder.zext(_codes(writer, addresses, I16, 2), writer.int_type)
    return writer.builder.bitcast(writer.builder.shl(bits, writer.int_constant(16)), writer.type)


def e4m3_numbers(writer: VectorWriter, *addresses: Any) -> Any:
    """Read 8-bit floats of 4 exponent bits, as `E4M3_UNIT` times what they stand for.

    Moved up by 7 places they are float16 numbers too small by that, but for a copy of the sign where those
    have the exponent's uppermost bit. Adding 1 to the last place carries into that bit for the code of NaN
    alone, so that it differs from the sum's only then: what remains completes the exponent of NaN.
    """
    builder, shorts = writer.builder, ir.VectorType(I16, writer.width)

    def constant(value: int) -> ir.Constant:
        return ir.Constant(shorts, [value] * writer.width)

    moved = builder.shl(builder.sext(_codes(writer, addresses, I8, 1), shorts), constant(7))
    carried = builder.and_(builder.add(moved, constant(0x80)), constant(0x4000))
    half = builder.bitcast(builder.xor(moved, carried), ir.VectorType(HALF, writer.width))
    return builder.fpext(half, writer.type)


def e5m2_numbers(writer: VectorWriter, *addresses: Any) -> Any:
    """Read 8-bit floats of 5 exponent bits: float16 numbers without their last byte."""
    builder, codes = writer.builder, _codes(writer, addresses, I8, 1)
    if VECTOR_WIDTH > CHAINS:
        shorts = ir.VectorType(I16, writer.width)
        halves = builder.shl(builder.zext(codes, shorts), ir.Constant(shorts, [8] * writer.width))
    else:  # one instruction for both, which AVX-512 has for short vectors only
        zeros = ir.Constant(codes.type, [0] * writer.width)
        lanes = [lane + which for lane in range(writer.width) for which in (0, writer.width)]
        in_turn = ir.Constant(ir.VectorType(I32, 2 * writer.width), lanes)
        halves = builder.shuffle_vector(zeros, codes, in_turn)
    return builder.fpext(builder.bitcast(halves, ir.VectorType(HALF, writer.width)), writer.type)


def int8_numbers(writer: VectorWriter, *addresses: Any) -> Any:
    """Read signed bytes."""
    code = writer.builder.sext(_codes(writer, addresses, I8, 1), writer.int_type)
    return writer.builder.sitofp(code, writer.type)


def uint8_numbers(writer: VectorWriter, *addresses: Any) -> Any:
    """Read unsigned bytes."""
    return writer.builder.sitofp(unsigned_bytes(writer, *addresses), writer.type)


def low_nibbles(writer: VectorWriter, *addresses: Any) -> Any:
    """Read the lower halves of bytes."""
    code = writer.builder.and_(unsigned_bytes(writer, *addresses), writer.int_constant(15))
    return writer.builder.sitofp(code, writer.type)


def high_nibbles(writer: VectorWriter, *addresses: Any) -> Any:
    """Read the upper halves of bytes."""
    code = writer.builder.lshr(unsigned_bytes(writer, *addresses), writer.int_constant(4))
    return writer.builder.sitofp(code, writer.type)


def unsigned_bytes(writer: VectorWriter, *addresses: Any) -> Any:
    """Read unsigned bytes as integers."""
    return writer.builder.zext(_codes(writer, addresses, I8, 1), writer.int_type)


def _codes(writer: VectorWriter, addresses: Sequence[Any], kind: ir.Type, align: int) -> Any:
    vector, parts = ir.VectorType(kind, writer.width // len(addresses)), []
    for address in addresses:
        loaded: Any = writer.builder.load(writer.builder.bitcast(address, vector.as_pointer()))
        loaded.align = align
        parts.append(loaded)
    return writer.joined(parts)


def widen_scaled(load: Load, code_bytes: int) -> Any:
    """Make ``numbers = codes * scale``.

    The result takes ``(codes, scale, numbers, count)``, codes by address, and returns how many it did.
    """

    @instruction
    def widen(typing_context: Any, codes: Any, scale: Any, numbers: Any, count: Any) -> Any:
        signature = types.intp(types.intp, types.float32, numbers, types.intp)

        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            codes, scale, numbers, count = arguments
            writer = VectorWriter(builder, VECTOR_WIDTH)
            start, scales = builder.inttoptr(codes, I8.as_pointer()), writer.splat(scale)

            def step(number: Any, _: list[Any]) -> list[Any]:
                place = builder.mul(number, index(VECTOR_WIDTH))
                address = builder.gep(start, [builder.mul(place, index(code_bytes))])
                writer.store(builder.fmul(load(writer, address), scales), numbers, place)
                return []

            return _whole_vectors(builder, count, step)

        return signature, write

    return widen


def widen_stepped(load: Load) -> Any:
    """Make ``numbers = codes * steps + lows`` with one rounding, for codes of a byte.

    The result takes ``(codes, steps, lows, numbers, count)``, codes by address, and returns how many it
    did. Steps and lows are float32, one for each number.
    """

    @instruction
    def widen(typing_context: Any, codes: Any, steps: Any, lows: Any, numbers: Any, count: Any) -> Any:
        signature = types.intp(types.intp, steps, lows, numbers, types.intp)

        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            codes, steps, lows, numbers, count = arguments
            writer = VectorWriter(builder, VECTOR_WIDTH)
            start = builder.inttoptr(codes, I8.as_pointer())

            def step(number: Any, _: list[Any]) -> list[Any]:
                place = builder.mul(number, index(VECTOR_WIDTH))
                code = load(writer, builder.gep(start, [place]))
                widened = writer.fma(code, writer.load(steps, place), writer.load(lows, place))
                writer.store(widened, numbers, place)
                return []

            return _whole_vectors(builder, count, step)

        return signature, write

    return widen


def _whole_vectors(builder: ir.IRBuilder, count: Any, step: Callable[[Any, list[Any]], list[Any]]) -> Any:
    """Write a loop over the whole vectors among ``count`` numbers, and return how many numbers they are."""
    whole = builder.sdiv(count, index(VECTOR_WIDTH))
    repeat(builder, whole, [], step)
    return builder.mul(whole, index(VECTOR_WIDTH))
