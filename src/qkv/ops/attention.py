"""Attention: each query takes a weighted mean of the values, weighted by how its keys match.

Read `attend_dense` (the formula) first, then `attend_tiled` (the same in small rectangles).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from qkv.ops.arrays import array_namespace, narrow
from qkv.ops.compiled import attend_compiled, attend_plainly, takes, takes_plainly
from qkv.ops.dense import attend_dense
from qkv.ops.masks import Causal, Window
from qkv.ops.operands import AttendOptions, Operands
from qkv.ops.tiles import attend_tiled
from qkv.ops.weights import finite_shift, log_sum_exp, nonzero
from qkv.shapes import Array, LogSumExp, Scores

DENSE_UP_TO_SCORES = 128 * 128
"""Up to so many scores per head the dense path is as fast as the tiled one; see `make bench`."""


PLAIN = int, float, str, tuple, type(None)
"""What a rule may be for a call to be told from others by its rules."""


class Attended(NamedTuple):
    """What a path computed: output ``(B, H, T, D)``, weights ``(B, H, T, S)`` if it has them, lse."""

    output: Array
    weights: Scores | None
    lse: LogSumExp


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    causal: Causal = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | Sequence[float] | None = None,
    alibi_slopes: Array | Sequence[float] | None = None,
    q_lengths: Sequence[int] | None = None,
    kv_lengths: Sequence[int] | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """Let every query take a weighted mean of the values it may see.

    ``softmax(q k^T * scale) v``, after Vaswani et al. 2017, equation 1. All rules intersect, and
    act in this order: scale, softcap, bias and ALiBi, mask, causal, window, lengths, softmax, mix.

    Parameters
    ----------
    q : (B, H, T, D)
        Queries. Leading axes may be absent, from q, k and v alike.
    k, v : (B, G, S, D)
        Keys and values; key head g serves query heads g*H/G to (g+1)*H/G - 1. The values' D may
        be another one. Hidden slots are never read: NaN there changes no bit of the output.
    mask : bool, broadcasts to (B, H, T, S), optional
        ``True`` = may attend. Three axes are refused as ambiguous.
    bias : float, broadcasts to (B, H, T, S), optional
        Added to the scores; ``-inf`` hides.
    causal : bool or "top_left"
        No key after the query's own. ``True`` puts the last query on the last key, as a cache
        needs; ``"top_left"`` the first query on the first key.
    window : int or (int or None, int or None), optional
        ``W``: the query's own key and the W-1 before it. ``(left, right)``: so many keys on each
        side of its own; ``None`` on a side is no limit.
    scale : float, optional
        Multiplies the dot products; ``1/sqrt(D)`` when left out. 0 and negative numbers count.
    softcap : float, optional
        Squeezes scores into (-softcap, softcap) by ``softcap * tanh(score / softcap)``.
    sinks : (H,), optional
        One logit per head that enters the denominator once, unscaled, and selects no value.
    alibi_slopes : (H,), optional
        Subtracts ``slope * distance`` from each score; see `alibi_slopes` for the usual ones.
    q_lengths, kv_lengths : B integers, optional
        How many leading queries and keys of each row are real; the rest is padding, never read.
        Causal order and windows then align each row's own last query with its own last key.
    return_weights : bool
        Also return the weights, which takes the dense path and O(T*S) memory.
    return_lse : bool
        Also return the log-sum-exp of the scores, with which `merge_attended` joins results.

    Returns
    -------
    output : (B, H, T, D)
        In q's dtype. float16 and bfloat16 are summed in float32. A query that may see nothing
        gets exactly 0.
    weights : (B, H, T, S), if `return_weights`
    lse : (B, H, T), if `return_lse`
        float32, or float64 for float64; ``-inf`` for a query that may see nothing (its sink's
        logit if it has one).

    Raises
    ------
    ShapeError
        If axes do not fit together, H is no multiple of G, a mask is ambiguous, or an array is none.
    OptionError
        If an option has no meaning, such as ``window=0``, or is of another type, such as ``scale="1"``.
    TypeError
        If q, k and v are not of one floating dtype, or the mask is not bool.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.eye(3)
    >>> attend(x, x, x, causal=True).round(2)
    array([[1.  , 0.  , 0.  ],
           [0.36, 0.64, 0.  ],
           [0.26, 0.26, 0.47]])

    Four query heads share two key heads, each query sees two keys:

    >>> q, kv = np.ones((1, 4, 5, 8)), np.ones((1, 2, 5, 8))
    >>> attend(q, kv, kv, window=2).shape
    (1, 4, 5, 8)
    """
    arrays = mask, bias, sinks, alibi_slopes, q_lengths, kv_lengths
    rules = causal, window, scale, softcap
    plain = all(one is None for one in arrays) and all(isinstance(one, PLAIN) for one in rules)
    if plain and not return_weights and takes_plainly(q, k, v):
        output, lse = attend_plainly(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap)
        return (output, lse) if return_lse else output
    attended = attend_by(
        dense_path if return_weights else fastest_path,
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        causal=causal,
        window=window,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
    )
    chosen = [attended.output]
    if return_weights:
        chosen.append(attended.weights)
    if return_lse:
        chosen.append(attended.lse)
    return chosen[0] if len(chosen) == 1 else tuple(chosen)


Path = Callable[[Operands], Attended]


def fastest_path(operands: Operands) -> Attended:
    """Take the kernels where they serve; else the dense path for few scores per head, the tiled beyond."""
    if takes(operands):
        return compiled_path(operands)
    few = operands.num_queries * operands.num_keys <= DENSE_UP_TO_SCORES
    return dense_path(operands) if few else tiled_path(operands)


def dense_path(operands: Operands) -> Attended:
    """Compute all T x S weights."""
    return Attended(*attend_dense(operands))


def compiled_path(operands: Operands) -> Attended:
    """Run the compiled kernels, without weights."""
    output, lse = attend_compiled(operands)
    return Attended(output, None, lse)


def tiled_path(operands: Operands) -> Attended:
    """Compute tile by tile, in O(T + S) memory and without weights."""
    output, lse = attend_tiled(operands)
    return Attended(output, None, lse)


def attend_by(path: Path, q: Array, k: Array, v: Array, **options: Unpack[AttendOptions]) -> Attended:
    """Run `attend` by a chosen path, and give its results the dtype and axes of ``q``."""
    operands = Operands.of(q, k, v, **options)
    # A NaN or an infinity in a hidden slot passes through the arithmetic before it is discarded.
    with np.errstate(invalid="ignore", over="ignore"):
        output, weights, lse = path(operands)
    leading = tuple(q.shape[:-2])
    return Attended(
        _restore(output, leading, q.dtype),
        None if weights is None else _restore(weights, leading, q.dtype),
        array_namespace(lse).reshape(lse, (*leading, lse.shape[-1])),
    )


def scaled_dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    causal: Causal = False,
    scale: float | None = None,
) -> tuple[Array, Scores]:
    """Return attention's output together with its weights: `attend` for looking inside.

    Parameters
    ----------
    q, k, v : (B, H, T, D), (B, G, S, D), (B, G, S, D)
        Leading axes may be absent.
    mask : bool, broadcasts to (B, H, T, S), optional
        ``True`` = may attend.
    causal : bool or "top_left"
        No key after the query's own; see `attend`.
    scale : float, optional
        Multiplies the dot products; ``1/sqrt(D)`` when left out.

    Returns
    -------
    output : (B, H, T, D)
    weights : (B, H, T, S)
        Each row sums to one, or is all 0 where nothing may be seen.

    Raises
    ------
    ShapeError, OptionError, TypeError
        As `attend`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.eye(2)
    >>> output, weights = scaled_dot_product_attention(x, x, x, np.array([[True, False], [True, True]]))
    >>> weights.round(2)
    array([[1.  , 0.  ],
           [0.33, 0.67]])
    """
    return attend(q, k, v, mask=mask, causal=causal, scale=scale, return_weights=True)


def merge_attended(output: Array, lse: LogSumExp, other: Array, other_lse: LogSumExp) -> tuple[Array, Array]:
    """Join attention over two disjoint sets of keys into attention over both.

    Each part weighs as much as its share of the common denominator. A part that saw nothing
    (lse ``-inf``) leaves every bit of the other as it is.

    Parameters
    ----------
    output, other : (..., T, D)
        What `attend` returned for each set of keys.
    lse, other_lse : (..., T)
        What it returned with ``return_lse=True``.

    Returns
    -------
    output : (..., T, D)
    lse : (..., T)

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.ones((1, 4)), np.arange(24.0).reshape(6, 4) / 24
    >>> first, second = (attend(q, k[s], k[s], return_lse=True) for s in (slice(0, 2), slice(2, 6)))
    >>> merged, _ = merge_attended(*first, *second)
    >>> np.allclose(merged, attend(q, k, k))
    True
    """
    xp = array_namespace(output, lse, other, other_lse)
    highest = xp.maximum(lse, other_lse)
    share, other_share = (xp.exp(part - finite_shift(highest)) for part in (lse, other_lse))
    total = share + other_share
    mixed = share[..., None] * output + other_share[..., None] * other
    mixed = narrow(mixed / nonzero(total)[..., None], output.dtype)
    merged = xp.where((other_lse == -xp.inf)[..., None], output, mixed)
    return xp.where((lse == -xp.inf)[..., None], other, merged), log_sum_exp(highest, total)


def _restore(x: Array, leading: tuple[int, ...], dtype: Any) -> Array:
    xp = array_namespace(x)
    return narrow(xp.reshape(x, (*leading, *x.shape[-2:])), dtype)
