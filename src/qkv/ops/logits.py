"""From a token's last vector to one number per vocabulary entry."""

from qkv.ops.projection import project
from qkv.shapes import Array, Hidden, Logits


def unembed(x: Hidden, head: Array) -> Logits:
    """Compare each vector with every vocabulary row: ``x W^T``.

    Parameters
    ----------
    x : (..., E)
    head : (V, E)
        The output head; the embedding table itself in a model with tied weights.

    Returns
    -------
    (..., V)

    Examples
    --------
    >>> import numpy as np
    >>> unembed(np.array([2.0, 3.0]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).tolist()
    [2.0, 3.0, 5.0]
    """
    return project(x, head)
