"""How a loss changes with queries and keys before they were turned."""

import numpy as np
from numpy.typing import NDArray

from qkv.ops.rotary import rotate


def rotate_backward(
    d_y: NDArray[np.floating], cosines: NDArray[np.floating], sines: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Turn gradients back by the angles that `qkv.ops.rotary.rotate` turned x by.

    A rotation's transpose is the rotation by the opposite angle: the same cosine, the sine negated.

    Parameters
    ----------
    d_y : (..., T, D)
    cosines, sines : (..., T, pairs)
        As `rotate` had them.

    Returns
    -------
    d_x : (..., T, D)

    Raises
    ------
    ShapeError
        If there are more pairs than D/2.

    Examples
    --------
    >>> import numpy as np
    >>> quarter_turn = np.array([[0.0]]), np.array([[1.0]])
    >>> rotate_backward(np.array([[1.0, 2.0]]), *quarter_turn).tolist()
    [[2.0, -1.0]]
    """
    return rotate(d_y, cosines, -sines)
