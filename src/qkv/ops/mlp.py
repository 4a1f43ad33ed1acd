"""What happens to each token on its own, between one attention and the next."""

import math
from collections.abc import Callable, Mapping

from qkv.ops.arrays import array_namespace, narrow, widen
from qkv.ops.compiled_steps import compiled_steps
from qkv.ops.normal import normal_cdf
from qkv.ops.projection import project
from qkv.shapes import Array, Hidden

Activation = Callable[[Array], Array]


def silu(x: Array) -> Array:
    """Return ``x * sigmoid(x)``, also called swish.

    Examples
    --------
    >>> import numpy as np
    >>> silu(np.array([0.0, 1.0, -1000.0])).round(4).tolist()
    [0.0, 0.7311, -0.0]
    """
    steps = compiled_steps(x)
    if steps:
        return steps.activate(x, "silu")
    xp = array_namespace(x)
    wide = widen(x, "x")
    # sigmoid(x) = exp(min(x, 0)) / (1 + exp(-|x|)): no exponent is positive, so none overflows
    sigmoid = xp.exp(xp.minimum(wide, xp.zeros_like(wide))) / (1.0 + xp.exp(-xp.abs(wide)))
    return narrow(wide * sigmoid, x.dtype)


def gelu(x: Array) -> Array:
    """Return ``x`` times the probability that a standard normal variable is below it.

    Source: Hendrycks and Gimpel 2016, equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(6).tolist()
    [-0.158655, 0.0, 0.841345]
    """
    wide = widen(x, "x")
    return narrow(wide * normal_cdf(wide), x.dtype)


def gelu_tanh(x: Array) -> Array:
    """Return GELU by its tanh approximation, which GPT-2 was trained with.

    Source: Hendrycks and Gimpel 2016, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> gelu_tanh(np.array([-1.0, 0.0, 1.0])).round(6).tolist()
    [-0.158808, 0.0, 0.841192]
    """
    steps = compiled_steps(x)
    if steps:
        return steps.activate(x, "gelu_tanh")
    xp = array_namespace(x)
    wide = widen(x, "x")
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return narrow(0.5 * wide * (1.0 + xp.tanh(inner)), x.dtype)


COMPILED: Mapping[Activation, str] = {silu: "silu", gelu_tanh: "gelu_tanh"}
"""What the kernels call the activations that they know."""


def gate(opening: Hidden, up: Hidden, activation: Activation = silu) -> Hidden:
    """Let one vector decide how much of another passes: ``f(opening) * up``.

    Parameters
    ----------
    opening, up : (..., F)
    activation : callable
        `silu`, `gelu`, `gelu_tanh`, or any elementwise function.

    Returns
    -------
    (..., F)

    Examples
    --------
    >>> import numpy as np
    >>> gate(np.array([-2.0, 3.0]), np.array([10.0, 100.0]), activation=np.abs).tolist()
    [20.0, 300.0]
    """
    steps = compiled_steps(opening, up)
    if steps and activation in COMPILED and opening.shape == up.shape:
        return steps.gate(opening, up, COMPILED[activation])
    return activation(opening) * up


def mlp(
    x: Hidden,
    w_in: Array,
    w_out: Array,
    b_in: Array | None = None,
    b_out: Array | None = None,
    *,
    activation: Activation = gelu_tanh,
) -> Hidden:
    """Widen each token's vector, bend it, and bring it back: ``f(x W_in^T) W_out^T``.

    Parameters
    ----------
    x : (..., E)
    w_in : (F, E)
    w_out : (E, F)
    b_in, b_out : (F,), (E,), optional
    activation : callable
        `gelu_tanh`, `gelu`, `silu`, or any elementwise function.

    Returns
    -------
    (..., E)

    Examples
    --------
    >>> import numpy as np
    >>> mlp(np.array([2.0]), np.array([[1.0], [3.0]]), np.array([[1.0, 1.0]]), activation=np.negative)
    array([-8.])
    """
    return project(activation(project(x, w_in, b_in)), w_out, b_out)


def gated_mlp(
    x: Hidden,
    w_gate_up: Array,
    w_down: Array,
    b_gate_up: Array | None = None,
    b_down: Array | None = None,
    *,
    activation: Activation = silu,
) -> Hidden:
    """Let one projection decide how much of another passes: ``(f(x W_gate^T) * x W_up^T) W_down^T``.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 6 (SwiGLU with `silu`).

    Parameters
    ----------
    x : (..., E)
    w_gate_up : (2F, E)
        W_gate and, below it, W_up: one product for both.
    w_down : (E, F)
    b_gate_up, b_down : (2F,), (E,), optional
    activation : callable
        `silu`, `gelu`, `gelu_tanh`, or any elementwise function.

    Returns
    -------
    (..., E)

    Examples
    --------
    >>> import numpy as np
    >>> gate_up, down = np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])
    >>> gated_mlp(np.array([2.0]), gate_up, down, activation=np.abs)
    array([12., 24.])
    """
    both = project(x, w_gate_up, b_gate_up)
    F = both.shape[-1] // 2
    return project(gate(both[..., :F], both[..., F:], activation), w_down, b_down)
