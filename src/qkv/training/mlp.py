"""How a loss changes with the two vectors of a gate."""

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.compiled_steps import compiled_steps

Floats = NDArray[np.floating]


def gate_backward(d_y: Floats, gate_up: Floats) -> Floats:
    """Return the gradient of ``y = silu(gate) * up`` by both, which are the two halves of one array.

    With ``s = sigmoid(gate)``, so that ``silu(gate) = gate s`` and ``s' = s (1 - s)``::

        d_gate = d_y * up * s (1 + gate (1 - s))
        d_up   = d_y * gate s

    Parameters
    ----------
    d_y : (..., F)
    gate_up : (..., 2F)
        What one product with W_gate and, below it, W_up gave.

    Returns
    -------
    d_gate_up : (..., 2F)

    Raises
    ------
    ShapeError
        If ``gate_up`` is not twice as wide as ``d_y``.

    Examples
    --------
    >>> import numpy as np
    >>> gate_backward(np.array([2.0]), np.array([0.0, 3.0])).tolist()
    [3.0, 0.0]
    """
    F = d_y.shape[-1]
    if gate_up.shape != (*d_y.shape[:-1], 2 * F):
        raise ShapeError(
            f"gate_up must be {(*d_y.shape[:-1], 2 * F)} for d_y {d_y.shape}, got {gate_up.shape}"
        )
    if compiled_steps(d_y, gate_up):
        from qkv.kernels.backward_steps import gate_backward as compiled  # the compiler, when first needed

        return compiled(d_y, gate_up)
    gate, up = gate_up[..., :F], gate_up[..., F:]
    d_gate_up = np.empty_like(gate_up)
    # exp(min(x, 0)) / (1 + exp(-|x|)): no exponent is positive, so none overflows
    sigmoid = np.exp(np.minimum(gate, 0)) / (1 + np.exp(-np.abs(gate)))
    np.multiply(d_y, up * (sigmoid * (1 + gate * (1 - sigmoid))), out=d_gate_up[..., :F])
    np.multiply(d_y, gate * sigmoid, out=d_gate_up[..., F:])
    return d_gate_up
