"""JAX's ``jax.nn.dot_product_attention``, on arrays of any kind.

================  ======================================  =======================================
what              JAX (the XLA implementation)            `qkv.attend`
================  ======================================  =======================================
layout            (B, T, H, D), or (T, H, D)              (B, H, T, D), leading axes may be absent
mask              bool, True = may attend; fewer than 4   bool; 3 axes are refused as ambiguous
                  axes are the last ones
bias              added after the scale                   the same
is_causal         first query on the first key            last query on the last key
local window      (left, right) of the own key; one       one number W counts the own key and
                  number is both; query 0 on key 0,       looks back only; the last query on the
                  causal or not                           last key
lengths           never move the alignment; queries       align each row's last query with its
                  beyond theirs get 0                     last key; queries beyond get 0
fully hidden row  the mean of all S values, hidden ones   0
                  too: hidden scores become one large
                  negative number
bias of -inf      adds -inf: a row of nothing else is     hides; a row of nothing else is 0
                  NaN
softmax           always float32                          float32, or float64 for float64 (here
                                                          too)
NaN in a hidden   spreads, as 0 * NaN                     not read (nor is it by this adapter)
slot
================  ======================================  =======================================
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from array_api_compat import device

from qkv.compat.layout import swap_heads
from qkv.ops.arrays import array_namespace
from qkv.ops.attention import Attended, attend_by
from qkv.ops.dense import mix
from qkv.ops.operands import Operands
from qkv.ops.scores import dot_products
from qkv.ops.weights import normalise
from qkv.shapes import Array

HIDDEN_SCORE = -0.7 * float(np.finfo(np.float32).max)
"""What JAX puts in place of a hidden score. Being finite, it decides rows in which all is hidden."""


def jax_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | Sequence[int] | None = None,
    key_value_seq_lengths: Array | Sequence[int] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
) -> Array:
    """Attend as ``jax.nn.dot_product_attention`` does.

    Parameters
    ----------
    query : (B, T, H, D) or (T, H, D)
    key, value : (B, S, G, D) or (S, G, D)
    bias : float, broadcasts to (B, H, T, S), optional
        Added to the scores.
    mask : bool, broadcasts to (B, H, T, S), optional
        ``True`` = may attend.
    scale : float, optional
        ``1/sqrt(D)`` when left out.
    is_causal : bool
        Query t sees keys 0 to t, whatever T and S.
    query_seq_lengths, key_value_seq_lengths : B integers, optional
        How many leading queries and keys of each row are real; inside ``jax.jit`` not traced.
    local_window_size : int or (int, int), optional
        Query t sees keys t - left to t + right; one number is both.

    Returns
    -------
    (B, T, H, D) or (T, H, D)
        Of the kind and dtype of ``query``. A query that may see nothing gets the mean of all
        values, or 0 if it lies beyond ``query_seq_lengths``.

    Raises
    ------
    ShapeError, OptionError, TypeError
        As `qkv.attend`.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((2, 1, 1)), np.zeros((5, 1, 1)), np.arange(1.0, 6.0).reshape(5, 1, 1)
    >>> jax_attention(q, k, v, is_causal=True).ravel().round(3).tolist()
    [1.0, 1.5]

    A query that may see nothing gets the mean of everything:

    >>> mask = np.array([[False] * 5, [True, True, False, False, False]])
    >>> jax_attention(q, k, v, mask=mask).ravel().round(3).tolist()
    [3.0, 1.5]
    """
    both_sides = isinstance(local_window_size, int | np.integer)
    attended = attend_by(
        _path,
        *(swap_heads(_four_axes(x)) for x in (query, key, value)),
        bias=None if bias is None else _four_axes(bias),
        mask=None if mask is None else _four_axes(mask),
        causal=is_causal,
        window=(local_window_size, local_window_size) if both_sides else local_window_size,
        scale=scale,
        q_lengths=query_seq_lengths,
        kv_lengths=key_value_seq_lengths,
    )
    output = swap_heads(attended.output)
    if query_seq_lengths is not None:
        output = _without_padding(output, query_seq_lengths)
    return array_namespace(output).reshape(output, (*query.shape[:-1], output.shape[-1]))


def _path(operands: Operands) -> Attended:
    """Attend with hidden scores replaced by a finite number, and query 0 on key 0 throughout."""
    xp = array_namespace(operands.q)
    everything = slice(0, operands.num_queries), slice(0, operands.num_keys)
    visible = replace(operands.visibility, offsets=0).tile(*everything)
    scores = dot_products(operands.q, operands.k) * operands.scale
    if operands.bias is not None:
        scores = scores + operands.bias
    if visible is not None:
        scores = xp.where(visible, scores, HIDDEN_SCORE)
    weights, lse = normalise(scores)
    # Only a bias of -inf for every key leads here, and JAX's softmax then divides 0 by 0.
    weights = xp.where((lse == -xp.inf)[..., None], xp.nan, weights)
    seen = None if visible is None else visible | (weights > 0)
    return Attended(mix(weights, operands.v, seen), weights, lse)


def _four_axes(x: Array) -> Array:
    return array_namespace(x).reshape(x, (1,) * (4 - x.ndim) + tuple(x.shape))


def _without_padding(output: Array, lengths: Array | Sequence[int]) -> Array:
    """Set the queries beyond each row's length to 0: ``output`` is ``(B, T, H, D)``."""
    xp = array_namespace(output)
    rows = xp.asarray([int(length) for length in lengths], device=device(output))
    positions = xp.arange(output.shape[1], device=device(output))
    real = positions[None, :] < rows[:, None]
    return xp.where(real[..., None, None], output, xp.zeros_like(output))
