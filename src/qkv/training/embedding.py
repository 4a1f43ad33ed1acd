"""How a loss changes with the table that ids were looked up in."""

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.compiled_steps import compiled_steps

Floats = NDArray[np.floating]


def embed_backward(d_x: Floats, ids: NDArray[np.integer], V: int) -> Floats:
    """Return the gradient of `qkv.ops.embedding.embed`: each id's row gets all that came to its places.

    Parameters
    ----------
    d_x : (..., T, E)
    ids : (..., T) integers
        Each from 0 to V - 1.
    V : int

    Returns
    -------
    d_embedding : (V, E)
        Summed in the order of the ids.

    Raises
    ------
    ShapeError
        If there is not one row for each id, or an id is outside the table.

    Examples
    --------
    >>> import numpy as np
    >>> embed_backward(np.array([[1.0], [2.0], [4.0]]), np.array([2, 0, 2]), V=3).tolist()
    [[2.0], [0.0], [5.0]]
    """
    if d_x.shape[:-1] != ids.shape:
        raise ShapeError(f"d_x must be (*ids.shape, E) for ids {ids.shape}, got {d_x.shape}")
    if ids.size and not (ids.min() >= 0 and ids.max() < V):
        raise ShapeError(f"ids must be from 0 to {V - 1}, but range from {ids.min()} to {ids.max()}")
    E = d_x.shape[-1]
    rows, flat = d_x.reshape(ids.size, E), ids.reshape(-1)
    if compiled_steps(d_x):
        from qkv.kernels.embedding import embed_backward as compiled  # the compiler, when first needed

        return compiled(rows, flat, V)
    d_embedding = np.zeros((V, E), d_x.dtype)
    np.add.at(d_embedding, flat, rows)
    return d_embedding
