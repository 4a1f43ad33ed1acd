"""Reach into memory from compiled code: by address, without bounds checks, without copies.

Workers get everything by address. Each function here is one instruction or two, which compiled code
can call; an address is a 64-bit integer, a pointer says also that float32 numbers lie there.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def instruction(write: Callable[..., Any]) -> Any:
    """Make a function that compiled code can call; its first argument is the compiler's and not given."""
    return intrinsic(write)


@instruction
def at(typing_context: Any, array: Any, offset: Any) -> Any:
    """Return the address of a contiguous array's element, without a bounds check."""
    signature = types.CPointer(array.dtype)(array, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.gep(made.data, [arguments[1]])

    return signature, write


@instruction
def pointer(typing_context: Any, address: Any) -> Any:
    """Return an array's address, passed as an integer, as a pointer to float32."""
    signature = types.CPointer(types.float32)(types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return signature, write


def pointer_to(element: Any) -> Any:
    """Make the function that takes an address, an integer, as a pointer to elements of a type."""

    @instruction
    def pointer_to_element(typing_context: Any, address: Any) -> Any:
        def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_data_type(element).as_pointer())

        return types.CPointer(element)(types.intp), write

    return pointer_to_element


@instruction
def moved(typing_context: Any, start: Any, offset: Any) -> Any:
    """Return the pointer ``offset`` numbers further on."""
    signature = start(start, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return signature, write


@instruction
def number_at(typing_context: Any, start: Any, offset: Any) -> Any:
    """Return the number ``offset`` places further on."""
    signature = types.float32(start, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return signature, write


@instruction
def prefetch(typing_context: Any, start: Any, offset: Any) -> Any:
    """Have the line of memory ``offset`` numbers further on brought nearer; any address is allowed."""
    signature = types.void(start, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start, offset = arguments
        pointer_type, kind = ir.IntType(8).as_pointer(), ir.IntType(32)
        module, name = builder.module, "llvm.prefetch.p0"
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer_type, kind, kind, kind]), name)
        line = builder.bitcast(builder.gep(start, [offset]), pointer_type)
        to_read, into_first_level, data = (ir.Constant(kind, value) for value in (0, 3, 1))
        builder.call(module.globals[name], [line, to_read, into_first_level, data])
        return context.get_dummy_value()

    return signature, write


@instruction
def put_number(typing_context: Any, start: Any, offset: Any, value: Any) -> Any:
    """Write a number ``offset`` places further on."""
    signature = types.void(start, types.intp, types.float32)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start, offset, value = arguments
        builder.store(value, builder.gep(start, [offset]))
        return context.get_dummy_value()

    return signature, write


@instruction
def integer_at(typing_context: Any, address: Any, offset: Any) -> Any:
    """Return the 64-bit integer ``offset`` places behind an address passed as an integer."""
    signature = types.int64(types.intp, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(start, [arguments[1]]))

    return signature, write


@instruction
def put_integer(typing_context: Any, address: Any, offset: Any, value: Any) -> Any:
    """Write a 64-bit integer ``offset`` places behind an address passed as an integer."""
    signature = types.void(types.intp, types.intp, types.int64)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        address, offset, value = arguments
        start = builder.inttoptr(address, ir.IntType(64).as_pointer())
        builder.store(value, builder.gep(start, [offset]))
        return context.get_dummy_value()

    return signature, write


@instruction
def byte_at(typing_context: Any, address: Any) -> Any:
    """Return the byte at an address passed as an integer."""
    signature = types.uint8(types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))

    return signature, write


@instruction
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of three float32 numbers with one rounding."""
    number = types.float32
    signature = number(number, number, number)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return signature, write


@instruction
def number_of_half(typing_context: Any, address: Any) -> Any:
    """Return the float16 number at an address passed as an integer, widened exactly."""
    signature = types.float32(types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        half = builder.load(builder.inttoptr(arguments[0], ir.HalfType().as_pointer()))
        return builder.fpext(half, ir.FloatType())

    return signature, write


@instruction
def number_of_bits(typing_context: Any, bits: Any) -> Any:
    """Return the float32 number that has these bits."""
    signature = types.float32(types.int32)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return signature, write


@instruction
def short_at(typing_context: Any, address: Any) -> Any:
    """Return the two bytes at an address passed as an integer, as an unsigned integer."""
    signature = types.uint16(types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()))

    return signature, write


@instruction
def put_byte(typing_context: Any, address: Any, value: Any) -> Any:
    """Write a byte to an address passed as an integer."""
    signature = types.void(types.intp, types.uint8)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return signature, write


@instruction
def short_integer_at(typing_context: Any, address: Any, offset: Any) -> Any:
    """Return the 32-bit integer ``offset`` places behind an address passed as an integer."""
    signature = types.int64(types.intp, types.intp)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.sext(builder.load(builder.gep(start, [arguments[1]])), ir.IntType(64))

    return signature, write


@instruction
def address_of(typing_context: Any, start: Any) -> Any:
    """Return a pointer to float32 as an integer."""
    signature = types.int64(start)

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return signature, write
