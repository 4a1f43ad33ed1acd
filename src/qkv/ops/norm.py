"""Bring each token's numbers to a common size before the next step reads them."""

from qkv.ops.arrays import array_namespace, narrow, widen
from qkv.ops.compiled_steps import compiled_steps
from qkv.shapes import Array, Hidden


def rms_norm(x: Hidden, weight: Array, eps: float) -> Hidden:
    """Divide each row by its root mean square, then scale: ``x / sqrt(mean(x^2) + eps) * weight``.

    Source: Zhang and Sennrich 2019, equation 4.

    Parameters
    ----------
    x : (..., E)
        float16 and bfloat16 are summed in float32.
    weight : (E,)
    eps : float
        Keeps a row of zeros from dividing by 0.

    Returns
    -------
    (..., E)
        In x's dtype.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.array([3.0, 4.0, 0.0, 0.0]), np.ones(4), eps=0.0).tolist()
    [1.2, 1.6, 0.0, 0.0]
    """
    steps = compiled_steps(x, weight)
    if steps and x.shape[-1:] == weight.shape:
        return steps.rms_norm(x, weight, eps)
    xp = array_namespace(x, weight)
    wide = widen(x, "x")
    root_mean_square = xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return narrow(wide / root_mean_square * widen(weight, "weight"), x.dtype)


def layer_norm(x: Hidden, weight: Array, bias: Array, eps: float) -> Hidden:
    """Shift each row to mean 0 and scale it to variance 1, then scale and shift as learned.

    Source: Ba et al. 2016, equation 4.

    Parameters
    ----------
    x : (..., E)
        float16 and bfloat16 are summed in float32.
    weight, bias : (E,)
    eps : float
        Keeps a constant row from dividing by 0.

    Returns
    -------
    (..., E)
        In x's dtype.

    Examples
    --------
    >>> import numpy as np
    >>> layer_norm(np.array([1.0, 3.0]), np.ones(2), np.zeros(2), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    steps = compiled_steps(x, weight, bias)
    if steps and x.shape[-1:] == weight.shape == bias.shape:
        return steps.layer_norm(x, weight, bias, eps)
    xp = array_namespace(x, weight, bias)
    wide = widen(x, "x")
    centred = wide - xp.mean(wide, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    normed = centred / xp.sqrt(variance + eps)
    return narrow(normed * widen(weight, "weight") + widen(bias, "bias"), x.dtype)
