"""PyTorch's ``torch.nn.functional.scaled_dot_product_attention``, on arrays of any kind.

================  ======================================  =======================================
what              PyTorch 2.13                            `qkv.attend`
================  ======================================  =======================================
layout            (..., H, T, D), any leading axes        (B, H, T, D), leading axes may be absent
leading axes      broadcast against each other            must be equal
mask              bool, True = may attend; or float,      bool only; floats go to ``bias=``
                  added to the scores
is_causal         first query on the first key            last query on the last key
mask and causal   refused                                 intersected
window            none                                    ``window=``
H and G           equal, unless ``enable_gqa=True``       H a multiple of G
scale             None = 1/sqrt(D); 0, negative count     the same
fully hidden row  0                                       0
NaN in a hidden   spreads, as 0 * NaN                     not read (nor is it by this adapter)
slot
================  ======================================  =======================================

Where PyTorch disagrees with itself, the documented behaviour is taken: a mask together with
``is_causal`` is an error there and in the math kernel, while the flash kernel on CPUs
intersects the two.
"""

import math
from collections.abc import Iterable

import numpy as np

from qkv.compat.masks import mask_or_bias
from qkv.errors import OptionError, ShapeError
from qkv.ops.arrays import array_namespace
from qkv.ops.attention import attend
from qkv.shapes import Array

Axes = tuple[int, ...]


def torch_sdpa(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Attend as ``F.scaled_dot_product_attention`` does.

    Parameters
    ----------
    query : (..., H, T, D)
    key, value : (..., G, S, D)
        Leading axes broadcast, the heads among them, unless ``enable_gqa`` gives heads a meaning.
    attn_mask : broadcasts to (..., H, T, S), optional
        bool, ``True`` = may attend; or float, added to the scores.
    dropout_p : float
        Must be 0: there is no randomness here.
    is_causal : bool
        Query t sees keys 0 to t, whatever T and S. Not together with ``attn_mask``.
    scale : float, optional
        ``1/sqrt(D)`` when left out.
    enable_gqa : bool
        Let key head g serve query heads g*H/G to (g+1)*H/G - 1.

    Returns
    -------
    (..., H, T, D)
        Of the kind and dtype of ``query``. A query that may see nothing gets 0.

    Raises
    ------
    OptionError
        For dropout, or a mask together with ``is_causal``.
    ShapeError
        If axes do not fit together.
    TypeError
        If the dtypes differ, or the mask is neither bool nor floating point.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((2, 1)), np.zeros((5, 1)), np.arange(1.0, 6.0)[:, None]
    >>> torch_sdpa(q, k, v, is_causal=True).ravel().round(3).tolist()
    [1.0, 1.5]
    """
    if dropout_p != 0.0:
        raise OptionError(f"torch_sdpa has no dropout: dropout_p must be 0.0, not {dropout_p}")
    if is_causal and attn_mask is not None:
        raise OptionError(
            "PyTorch takes attn_mask or is_causal, not both; put the causal order into the mask, "
            "or use qkv.attend, which intersects them"
        )
    leading = _leading_axes(query, key, value, enable_gqa)
    mask, bias = mask_or_bias(None if attn_mask is None else _folded_mask(attn_mask, leading[0]))
    output = attend(
        *(_folded(x, axes) for x, axes in zip((query, key, value), leading, strict=True)),
        mask=mask,
        bias=bias,
        causal="top_left" if is_causal else False,
        scale=scale,
    )
    wanted = leading[0] if max(query.ndim, key.ndim, value.ndim) > 2 else ()
    return array_namespace(output).reshape(output, (*wanted, *output.shape[-2:]))


def _leading_axes(query: Array, key: Array, value: Array, enable_gqa: bool) -> list[Axes]:
    """Return the axes before the last two that each array is broadcast to, at least one each."""
    arrays = query, key, value
    if min(x.ndim for x in arrays) < (3 if enable_gqa else 2):
        raise ShapeError(
            f"query, key and value need {'(heads, positions, D)' if enable_gqa else '(positions, D)'} "
            f"as their last axes, not {[tuple(x.shape) for x in arrays]}"
        )
    if not enable_gqa:
        return [_broadcast([(1,), *(x.shape[:-2] for x in arrays)])] * 3
    batch = _broadcast(x.shape[:-3] for x in arrays)
    return [(*batch, x.shape[-3]) for x in arrays]


def _broadcast(shapes: Iterable[Axes]) -> Axes:
    shapes = [tuple(shape) for shape in shapes]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(
            f"the leading axes {shapes} do not broadcast against each other; "
            f"for fewer key heads than query heads pass enable_gqa=True"
        ) from None


def _folded(x: Array, leading: Axes) -> Array:
    """Broadcast to ``(*leading, rows, columns)`` and fold all axes before the heads into B."""
    xp = array_namespace(x)
    rows_columns = tuple(x.shape[-2:])
    x = xp.broadcast_to(x, (*leading, *rows_columns))
    return xp.reshape(x, (math.prod(leading[:-1]), leading[-1], *rows_columns))


def _folded_mask(mask: Array, leading: Axes) -> Array:
    if mask.ndim <= 2:
        return mask
    if _broadcast([mask.shape[:-2], leading]) != leading:
        raise ShapeError(
            f"attn_mask {tuple(mask.shape)} must broadcast to the scores' leading axes {leading}, "
            f"not the other way round"
        )
    return _folded(mask, leading)
