"""Linear maps of weights that change at each step, and how a loss changes with what went into them."""

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.compiled_steps import compiled_steps

Floats = NDArray[np.floating]


def project_plain(x: Floats, weight: Floats) -> Floats:
    """Map each row linearly, ``y = x W^T``, by a weight that is laid out for the kernels in each call.

    Parameters
    ----------
    x : (..., E_in)
    weight : (E_out, E_in)

    Returns
    -------
    (..., E_out)

    Examples
    --------
    >>> import numpy as np
    >>> project_plain(np.array([1.0, 2.0]), np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]])).tolist()
    [1.0, 3.0, 6.0]
    """
    if compiled_steps(x, weight):
        from qkv.kernels.matmul import matmul, pack  # the compiler is loaded when it is first needed

        return matmul(x, pack(weight))
    return x @ weight.T


def project_backward(d_y: Floats, x: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the gradients of ``y = x W^T``: ``d_x = d_y W`` and ``d_W = d_y^T x``.

    Parameters
    ----------
    d_y : (..., E_out)
    x : (..., E_in)
    weight : (E_out, E_in)

    Returns
    -------
    d_x : (..., E_in)
    d_weight : (E_out, E_in)
        Summed over the rows in order.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> d_x, d_weight = project_backward(np.array([[1.0]]), np.array([[2.0, 3.0]]), np.array([[5.0, 7.0]]))
    >>> d_x.tolist(), d_weight.tolist()
    ([[5.0, 7.0]], [[2.0, 3.0]])
    """
    if weight.shape != (d_y.shape[-1], x.shape[-1]) or d_y.shape[:-1] != x.shape[:-1]:
        raise ShapeError(
            f"d_y (..., E_out) and x (..., E_in) must have the same rows and weight be (E_out, E_in), "
            f"got {d_y.shape}, {x.shape} and {weight.shape}"
        )
    rows = d_y.reshape(-1, d_y.shape[-1]), x.reshape(-1, x.shape[-1])
    if compiled_steps(d_y, x, weight):
        from qkv.kernels.matmul import matmul, pack  # the compiler is loaded when it is first needed
        from qkv.kernels.weight_gradients import weight_gradient

        return matmul(d_y, pack(weight.T)), weight_gradient(*rows)
    return d_y @ weight, rows[0].T @ rows[1]
