"""The small steps between two products, row by row: norms, rotary positions, gates.

The ladder, against the formulas of `qkv.ops` in NumPy: how many times as fast a call is, for one token and
for 512, on one thread of AVX-512. E = 576, nine heads of 64 numbers, F = 1536; best of 250 or more, all in
turn within one run. "One token" is little work and the way to it:

=========================================================  ======================  ======================
version                                                    one token               512 tokens
                                                           norm  rotation  gate    norm  rotation  gate
=========================================================  ======================  ======================
loops that Numba turns into code; Python writes the words  0.8   0.7       0.5     2.5   1.3       1.0
vectors written out: `row_steps`                           0.8   0.7       0.7     2.6   1.6       5.7
words kept by the shapes of a call                         1.4   1.2       1.1     2.8   1.6       6.8
addresses written by compiled code: `row_calls`            3.6   3.0       2.6     2.9   1.6       7.0
=========================================================  ======================  ======================

With the dispatch in `qkv.ops` the last line is 2.9, 2.0 and 2.2 for one token. What is left there is Python:
the norm itself takes 0.2 of 2.8 microseconds. Loops need more time to compile, too, 1.1 to 1.6 times as much.
Rotation has the formula's bits, which are those of a product rounded before it is added.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import row_steps
from qkv.kernels.compiler import compiled
from qkv.kernels.host import VECTOR_WIDTH
from qkv.kernels.memory import integer_at, moved, number_of_bits
from qkv.kernels.row_calls import LENGTH, NUMBER, A, B, X, Y, first_row, row_at, run
from qkv.kernels.row_vectors import along_row, row_sum

Floats = NDArray[np.float32]
Activation = Literal["silu", "gelu_tanh"]

NOTHING = np.float32(0)
"""For steps that take no number."""

_sum = row_sum(VECTOR_WIDTH, squares=False)
_sum_of_squares = row_sum(VECTOR_WIDTH, squares=True)
_copy = along_row(row_steps.copy, VECTOR_WIDTH)
_shift = along_row(row_steps.shift, VECTOR_WIDTH)
_scale = along_row(row_steps.scale, VECTOR_WIDTH)
_scale_and_add = along_row(row_steps.scale_and_add, VECTOR_WIDTH)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Return what `qkv.ops.norm.rms_norm` does, each row with the same bits whatever stands beside it.

    Parameters
    ----------
    x : (..., E)
    weight : (E,)
    eps : float

    Returns
    -------
    (..., E)
    """
    return run(rms_norm_worker, x, weight, weight, number_bits(eps))


@compiled()
def rms_norm_worker(call: Any, worker: Any) -> None:
    """Norm a share of the rows of X by the weights A, to Y; the call's number is the bits of eps."""
    length, eps = integer_at(call, LENGTH), number_of_bits(integer_at(call, NUMBER))
    for row in range(first_row(call, worker), first_row(call, worker + 1)):
        x, weight, y = row_at(call, X, row), row_at(call, A, row), row_at(call, Y, row)
        root_mean_square = math.sqrt(_sum_of_squares(x, length) / np.float32(length) + eps)
        _scale(x, weight, weight, root_mean_square, y, length)


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """Return what `qkv.ops.norm.layer_norm` does, each row with the same bits whatever stands beside it.

    Parameters
    ----------
    x : (..., E)
    weight, bias : (E,)
    eps : float

    Returns
    -------
    (..., E)
    """
    return run(_layer_norm_rows, x, weight, bias, number_bits(eps))


@compiled()
def _layer_norm_rows(call: Any, worker: Any) -> None:
    length, eps = integer_at(call, LENGTH), number_of_bits(integer_at(call, NUMBER))
    for row in range(first_row(call, worker), first_row(call, worker + 1)):
        x, weight, bias = row_at(call, X, row), row_at(call, A, row), row_at(call, B, row)
        y = row_at(call, Y, row)
        _shift(x, x, x, _sum(x, length) / np.float32(length), y, length)
        deviation = math.sqrt(_sum_of_squares(y, length) / np.float32(length) + eps)
        _scale_and_add(y, weight, bias, deviation, y, length)


def rotate(x: Floats, cosines: Floats, sines: Floats, *, interleaved: bool = False) -> Floats:
    """Return what `qkv.ops.rotary.rotate` does, to the bit.

    Parameters
    ----------
    x : (..., T, D)
    cosines, sines : (..., T, pairs)
        Leading axes broadcast to those of ``x``.
    interleaved : bool

    Returns
    -------
    (..., T, D)
    """
    return run(_rotate_rows(interleaved), x, cosines, sines, cosines.shape[-1])


@cache
def _rotate_rows(interleaved: bool) -> Any:
    turn = along_row(row_steps.turn_neighbours if interleaved else row_steps.turn_halves, VECTOR_WIDTH)

    @compiled()
    def rotate_rows(call: Any, worker: Any) -> None:
        length, pairs = integer_at(call, LENGTH), integer_at(call, NUMBER)
        for row in range(first_row(call, worker), first_row(call, worker + 1)):
            x, cosines, sines = row_at(call, X, row), row_at(call, A, row), row_at(call, B, row)
            y = row_at(call, Y, row)
            turn(x, cosines, sines, NOTHING, y, pairs)
            others = moved(x, 2 * pairs)
            _copy(others, others, others, NOTHING, moved(y, 2 * pairs), length - 2 * pairs)

    return rotate_rows


def activate(x: Floats, activation: Activation) -> Floats:
    """Return each number bent, as `qkv.ops.mlp.silu` or `gelu_tanh` does.

    Parameters
    ----------
    x : (..., F)
    activation : "silu" or "gelu_tanh"

    Returns
    -------
    (..., F)
    """
    return run(_activate_rows(row_steps.bend, activation), x, x, x)


def gate(opening: Floats, up: Floats, activation: Activation) -> Floats:
    """Return ``activate(opening, activation) * up``, to the bit.

    Parameters
    ----------
    opening, up : (..., F)
    activation : "silu" or "gelu_tanh"

    Returns
    -------
    (..., F)
    """
    return run(gate_worker(activation), opening, up, up)


def gate_worker(activation: Activation) -> Any:
    """Return the worker that gates a share of the rows of A by those of X, to Y."""
    return _activate_rows(row_steps.bend_and_multiply, activation)


_ACTIVATIONS: Mapping[Activation, row_steps.Activation] = {
    "silu": row_steps.silu,
    "gelu_tanh": row_steps.gelu_tanh,
}


@cache
def _activate_rows(bend: Any, activation: Activation) -> Any:
    step = along_row(bend(_ACTIVATIONS[activation]), VECTOR_WIDTH)

    @compiled()
    def activate_rows(call: Any, worker: Any) -> None:
        for row in range(first_row(call, worker), first_row(call, worker + 1)):
            x, up, y = row_at(call, X, row), row_at(call, A, row), row_at(call, Y, row)
            step(x, up, up, NOTHING, y, integer_at(call, LENGTH))

    return activate_rows


@cache
def number_bits(number: float) -> int:
    """Return the bits of a number rounded to float32, as a call takes it."""
    return int(np.float32(number).view(np.int32))
