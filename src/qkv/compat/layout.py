"""Where the heads stand among the axes."""

from qkv.errors import ShapeError
from qkv.ops.arrays import array_namespace
from qkv.ops.projection import split_heads
from qkv.shapes import Array


def swap_heads(x: Array) -> Array:
    """Exchange heads and positions: ``(B, T, H, D)`` to ``(B, H, T, D)``, and back.

    Examples
    --------
    >>> import numpy as np
    >>> swap_heads(np.zeros((1, 2, 3, 5))).shape
    (1, 3, 2, 5)
    """
    return array_namespace(x).permute_dims(x, (0, 2, 1, 3))


def heads_of(name: str, x: Array, num_heads: int | None) -> Array:
    """Return ``(B, H, T, D)``: ``x`` itself, or the heads folded out of ``(B, T, H*D)``.

    Parameters
    ----------
    name : str
        What an error calls the array.
    x : (B, H, T, D) or (B, T, H*D)
    num_heads : int, optional
        H; for an ``x`` of three axes it must be given.

    Returns
    -------
    (B, H, T, D)

    Raises
    ------
    ShapeError
        If the axes and the number of heads do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> heads_of("Q", np.zeros((1, 2, 15)), num_heads=3).shape
    (1, 3, 2, 5)
    """
    if x.ndim == 4 and num_heads in (None, x.shape[1]):
        return x
    if x.ndim == 3 and num_heads and x.shape[2] % num_heads == 0:
        return split_heads(x, num_heads)
    raise ShapeError(
        f"{name} must be (B, heads, positions, D), or (B, positions, heads*D) with its number of heads, "
        f"not {tuple(x.shape)} with {num_heads} heads"
    )
