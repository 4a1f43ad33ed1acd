"""What is done at one place of a row between two products: the steps that `along_row` takes."""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from qkv.kernels.row_vectors import Place, RowStep
from qkv.kernels.vectors import VectorWriter

GELU_SLOPE = 2 * math.sqrt(2 / math.pi)
GELU_BEND = 0.044715 * GELU_SLOPE
"""GELU by tanh is ``x sigmoid(GELU_SLOPE x + GELU_BEND x^3)``, as ``1 + tanh(z) = 2 sigmoid(2z)``."""


def copy(place: Place, x: Any, a: Any, b: Any, number: Any, y: Any) -> None:
    """Write ``y = x``."""
    place.put(place.get(x), y)


def shift(place: Place, x: Any, a: Any, b: Any, mean: Any, y: Any) -> None:
    """Write ``y = x - mean``."""
    place.put(place.writer.builder.fsub(place.get(x), mean), y)


def scale(place: Place, x: Any, weight: Any, b: Any, size: Any, y: Any) -> None:
    """Write ``y = x / size * weight``."""
    builder = place.writer.builder
    place.put(builder.fmul(builder.fdiv(place.get(x), size), place.get(weight)), y)


def scale_and_add(place: Place, x: Any, weight: Any, bias: Any, size: Any, y: Any) -> None:
    """Write ``y = x / size * weight + bias``."""
    builder = place.writer.builder
    scaled = builder.fmul(builder.fdiv(place.get(x), size), place.get(weight))
    place.put(builder.fadd(scaled, place.get(bias)), y)


def turn_halves(place: Place, x: Any, cosines: Any, sines: Any, number: Any, y: Any) -> None:
    """Turn the pairs of a number in one row and that in the row behind it."""
    first, second = place, place.beside()
    turned = _turned(place, first.get(x), second.get(x), cosines, sines)
    first.put(turned[0], y)
    second.put(turned[1], y)


def turn_neighbours(place: Place, x: Any, cosines: Any, sines: Any, number: Any, y: Any) -> None:
    """Turn the pairs of two neighbours."""
    low, high = place.doubled()
    turned = _turned(place, *_sorted_pairs(place.writer, low.get(x), high.get(x)), cosines, sines)
    mixed = _mixed_pairs(place.writer, *turned)
    low.put(mixed[0], y)
    high.put(mixed[1], y)


def _turned(place: Place, first: Any, second: Any, cosines: Any, sines: Any) -> tuple[Any, Any]:
    builder, cosine, sine = place.writer.builder, place.get(cosines), place.get(sines)
    return (
        builder.fsub(builder.fmul(first, cosine), builder.fmul(second, sine)),
        builder.fadd(builder.fmul(first, sine), builder.fmul(second, cosine)),
    )


def _sorted_pairs(writer: VectorWriter, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the first and the second numbers of pairs that two vectors hold side by side."""
    lanes = list(range(2 * writer.width))
    return _picked(writer, low, high, lanes[0::2]), _picked(writer, low, high, lanes[1::2])


def _mixed_pairs(writer: VectorWriter, first: Any, second: Any) -> tuple[Any, Any]:
    """Return two vectors that hold pairs side by side, from their first and second numbers."""
    lanes = [lane for pair in range(writer.width) for lane in (pair, writer.width + pair)]
    halves = lanes[: writer.width], lanes[writer.width :]
    return _picked(writer, first, second, halves[0]), _picked(writer, first, second, halves[1])


def _picked(writer: VectorWriter, low: Any, high: Any, lanes: list[int]) -> Any:
    return writer.builder.shuffle_vector(low, high, ir.Constant(writer.int_type, lanes))


def silu(writer: VectorWriter, x: Any) -> Any:
    """Return ``x sigmoid(x)``."""
    return writer.builder.fmul(x, sigmoid(writer, x))


def gelu_tanh(writer: VectorWriter, x: Any) -> Any:
    """Return ``x sigmoid(z)``, z a polynomial of x."""
    square = writer.builder.fmul(x, x)
    slope = writer.fma(square, writer.constant(GELU_BEND), writer.constant(GELU_SLOPE))
    return writer.builder.fmul(x, sigmoid(writer, writer.builder.fmul(x, slope)))


def sigmoid(writer: VectorWriter, z: Any) -> Any:
    """Return ``exp(min(z, 0)) / (1 + exp(-|z|))``: no exponent is positive, so none overflows."""
    builder, one = writer.builder, writer.constant(1.0)
    is_negative = builder.fcmp_ordered("<", z, writer.constant(0.0))
    decay = writer.exp(builder.select(is_negative, z, builder.fneg(z)))
    return builder.fdiv(builder.select(is_negative, decay, one), builder.fadd(one, decay))


Activation = Callable[[VectorWriter, Any], Any]
"""`silu` or `gelu_tanh`."""


def bend(activation: Activation) -> RowStep:
    """Return the step ``y = f(x)``."""

    def step(place: Place, x: Any, a: Any, b: Any, number: Any, y: Any) -> None:
        place.put(activation(place.writer, place.get(x)), y)

    return step


def bend_and_multiply(activation: Activation) -> RowStep:
    """Return the step ``y = f(x) up``."""

    def step(place: Place, x: Any, up: Any, b: Any, number: Any, y: Any) -> None:
        bent = activation(place.writer, place.get(x))
        place.put(place.writer.builder.fmul(bent, place.get(up)), y)

    return step
