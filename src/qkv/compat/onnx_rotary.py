"""ONNX's ``RotaryEmbedding`` (opset 23), on arrays of any kind.

================  ======================================  =======================================
what              ONNX                                    `qkv.ops.rotary.rotate`
================  ======================================  =======================================
layout            (B, H, T, D), or (B, T, H*D) with       (..., T, D)
                  ``num_heads``
angles            caches of cosines and sines, one row    cosines and sines of each token
                  per position, picked by
                  ``position_ids``; or of each token
pairs             half against half, or neighbours with   the same
                  ``interleaved=1``
partial rotation  ``rotary_embedding_dim`` numbers        as many as there are pairs
================  ======================================  =======================================
"""

from qkv.compat.layout import heads_of
from qkv.errors import ShapeError
from qkv.ops.projection import merge_heads
from qkv.ops.rotary import rotate
from qkv.shapes import Array


def onnx_rotary_embedding(
    X: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Turn queries or keys as the ONNX operator does.

    Parameters
    ----------
    X : (B, H, T, D) or (B, T, H*D)
    cos_cache, sin_cache : (positions, pairs), or (B, T, pairs) without ``position_ids``
    position_ids : (B, T), integers, optional
        Which rows of the caches each token takes.
    interleaved : int
        1: a pair is two neighbours; 0: one number of each half of the turned part.
    num_heads : int
        H, for an X with three axes.
    rotary_embedding_dim : int
        How many leading numbers of each head are turned; 0 = all D.

    Returns
    -------
    Array
        In X's shape and dtype.

    Raises
    ------
    ShapeError
        If the caches do not hold half as many numbers as are turned.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[[[1.0, 2.0, 3.0, 4.0]]]])
    >>> angles = np.array([[0.0, 0.0], [np.pi / 2, np.pi]])
    >>> onnx_rotary_embedding(x, np.cos(angles), np.sin(angles), np.array([[1]])).round(3).tolist()
    [[[[-3.0, -2.0, 1.0, -4.0]]]]
    """
    x = heads_of("X", X, num_heads or None)
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    turned_size = rotary_embedding_dim or x.shape[-1]
    if not cos_cache.shape[-1] == sin_cache.shape[-1] == turned_size / 2:
        raise ShapeError(
            f"turning {turned_size} numbers of each head needs caches of {turned_size / 2:g} pairs, "
            f"not cos_cache {tuple(cos_cache.shape)} and sin_cache {tuple(sin_cache.shape)}"
        )
    turned = rotate(x, cos_cache[:, None], sin_cache[:, None], interleaved=bool(interleaved))
    return turned if X.ndim == 4 else merge_heads(turned)
