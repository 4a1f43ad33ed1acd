"""From token ids to vectors: one row of a table per id."""

from qkv.errors import ShapeError
from qkv.ops.arrays import array_namespace
from qkv.ops.projection import is_packed
from qkv.shapes import Array, Hidden, TokenIds


def embed(ids: TokenIds, table: Array) -> Hidden:
    """Look up each id's row.

    Parameters
    ----------
    ids : (..., T) integers
        Each from 0 to V - 1; a negative id is an error, not a row from the end.
    table : (V, E)
        An array, or what `prepare` made of one: then the rows are float32, whatever it keeps them in.

    Returns
    -------
    (..., T, E)

    Raises
    ------
    ShapeError
        If an id is outside the table.

    Examples
    --------
    >>> import numpy as np
    >>> embed(np.array([2, 0]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).tolist()
    [[5.0, 6.0], [1.0, 2.0]]
    """
    xp = array_namespace(ids) if is_packed(table) else array_namespace(ids, table)
    V, E = table.shape
    flat = xp.reshape(ids, (-1,))
    if flat.shape[0] and not (int(xp.min(flat)) >= 0 and int(xp.max(flat)) < V):
        raise ShapeError(
            f"ids must be from 0 to {V - 1}, the rows of the table, "
            f"but range from {int(xp.min(flat))} to {int(xp.max(flat))}"
        )
    rows = table.rows(flat) if is_packed(table) else xp.take(table, flat, axis=0)
    return xp.reshape(rows, (*ids.shape, E))
