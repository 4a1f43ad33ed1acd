"""How a loss changes with what was normed, and with the learned scale."""

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.compiled_steps import compiled_steps

Floats = NDArray[np.floating]


def rms_norm_backward(
    d_y: Floats, x: Floats, weight: Floats, eps: float, d_skip: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the gradients of `qkv.ops.norm.rms_norm`, ``y = x / r * weight`` with ``r^2 = mean(x^2) + eps``.

    With ``g = d_y * weight``, what comes back to ``x / r``::

        d_x      = g / r - x / r^3 * mean(g x) + d_skip      along a row
        d_weight = sum of d_y * x / r                        over the rows

    Parameters
    ----------
    d_y, x : (..., E)
    weight : (E,)
    eps : float
    d_skip : (..., E), optional
        What comes back to x beside the norm, along the residual stream.

    Returns
    -------
    d_x : (..., E)
    d_weight : (E,)

    Raises
    ------
    ShapeError
        If the shapes do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> d_x, d_weight = rms_norm_backward(np.array([4.0, 0.0]), np.array([2.0, 2.0]), np.ones(2), eps=0.0)
    >>> d_x.tolist(), d_weight.tolist()
    ([1.0, -1.0], [4.0, 0.0])
    """
    if not (d_y.shape == x.shape == (x if d_skip is None else d_skip).shape and x.shape[-1:] == weight.shape):
        raise ShapeError(
            f"d_y and d_skip must have the shape of x, weight its last axis, got d_y {d_y.shape}, "
            f"x {x.shape}, weight {weight.shape}, d_skip {None if d_skip is None else d_skip.shape}"
        )
    if compiled_steps(d_y, x, weight, *([] if d_skip is None else [d_skip])):
        from qkv.kernels.backward_steps import (
            rms_norm_backward as compiled,
        )  # the compiler, when first needed

        return compiled(d_y, x, weight, eps, d_skip)
    root_mean_square = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    normed = x / root_mean_square
    d_normed = d_y * weight
    along = np.mean(d_normed * normed, axis=-1, keepdims=True)
    d_x = (d_normed - normed * along) / root_mean_square
    if d_skip is not None:
        d_x += d_skip
    return d_x, np.sum((d_y * normed).reshape(-1, len(weight)), axis=0)
