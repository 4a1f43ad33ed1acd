"""FlashAttention 2's ``flash_attn_func`` and ``flash_attn_varlen_func``, on arrays of any kind.

================  ======================================  =======================================
what              FlashAttention 2                        `qkv.attend`
================  ======================================  =======================================
layout            (B, T, H, D); packed: (tokens, H, D)    (B, H, T, D)
mask              none                                    ``mask=``, ``bias=``
causal            last query on the last key              the same
window_size       (left, right), own key always seen,     (left, right) with None = no limit;
                  -1 = no limit                           an integer W counts the own key
softcap           0 = off; before ALiBi                   None = off; before ALiBi
alibi_slopes      (H,) or (B, H);                         (H,)
                  -slope * distance to the own key
fully hidden row  0, its log-sum-exp +inf                 0, its log-sum-exp -inf
dtypes            float16, bfloat16                       also float32, float64
================  ======================================  =======================================
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from array_api_compat import device

from qkv.compat.layout import swap_heads
from qkv.errors import OptionError, ShapeError
from qkv.ops.arrays import array_namespace
from qkv.ops.attention import Attended, attend_by, fastest_path
from qkv.ops.operands import Operands
from qkv.shapes import Array


def flash_attn(
    q: Array,
    k: Array,
    v: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
    *,
    return_softmax_lse: bool = False,
) -> Any:
    """Attend as ``flash_attn_func`` does.

    Parameters
    ----------
    q : (B, T, H, D)
    k, v : (B, S, G, D)
    dropout_p : float
        Must be 0: there is no randomness here.
    softmax_scale : float, optional
        ``1/sqrt(D)`` when left out.
    causal : bool
        No key after the query's own; the last query stands on the last key.
    window_size : (int, int)
        How many keys before and after its own each query sees; negative = no limit.
    softcap : float
        Squeezes scores into (-softcap, softcap); 0 = off.
    alibi_slopes : (H,) or (B, H), optional
        Subtracts ``slope * |t + S - T - s|`` from the score of query t and key s.
    return_softmax_lse : bool
        Also return the log-sum-exp of the scores.

    Returns
    -------
    out : (B, T, H, D)
        A query that may see nothing gets 0.
    softmax_lse : (B, H, T), if `return_softmax_lse`
        ``+inf`` for a query that may see nothing.

    Raises
    ------
    OptionError
        For dropout.
    ShapeError, TypeError
        As `qkv.attend`.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((1, 2, 1, 1)), np.zeros((1, 5, 1, 1)), np.arange(1.0, 6.0).reshape(1, 5, 1, 1)
    >>> flash_attn(q, k, v, causal=True).ravel().round(3).tolist()
    [2.5, 3.0]
    >>> flash_attn(q, k, v, causal=True, window_size=(1, -1)).ravel().round(3).tolist()
    [3.5, 4.5]
    """
    if dropout_p != 0.0:
        raise OptionError(f"flash_attn has no dropout: dropout_p must be 0.0, not {dropout_p}")
    left, right = (None if side < 0 else side for side in window_size)
    out, _, lse = attend_by(
        partial(_path, alibi_slopes=alibi_slopes),
        *(swap_heads(x) for x in (q, k, v)),
        causal=causal,
        window=(left, right),
        scale=softmax_scale,
        softcap=softcap if softcap > 0 else None,
    )
    xp = array_namespace(out)
    out = swap_heads(out)
    # The kernels mark a row that sees nothing by +inf, so that exp(score - lse) is 0 in the backward pass.
    return (out, xp.where(lse == -xp.inf, xp.inf, lse)) if return_softmax_lse else out


def flash_attn_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array | Sequence[int],
    cu_seqlens_k: Array | Sequence[int],
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
    *,
    return_softmax_lse: bool = False,
) -> Any:
    """Attend as ``flash_attn_varlen_func`` does: sequences packed one after the other, no padding.

    Parameters
    ----------
    q : (all T, H, D)
    k, v : (all S, G, D)
    cu_seqlens_q, cu_seqlens_k : B + 1 integers
        Where each sequence starts among all tokens, and last where the last one ends.
    max_seqlen_q, max_seqlen_k : int
        At least the longest sequence's length.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_softmax_lse
        As `flash_attn`.

    Returns
    -------
    out : (all T, H, D)
    softmax_lse : (H, all T), if `return_softmax_lse`

    Raises
    ------
    OptionError, ShapeError, TypeError
        As `flash_attn`; also if the boundaries do not fit each other or the tokens.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((3, 1, 1)), np.zeros((4, 1, 1)), np.arange(1.0, 5.0).reshape(4, 1, 1)
    >>> flash_attn_varlen(q, k, v, [0, 1, 3], [0, 2, 4], 2, 2, causal=True).ravel().round(3).tolist()
    [1.5, 3.0, 3.5]
    """
    queries = _spans("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q)
    keys = _spans("cu_seqlens_k", cu_seqlens_k, k.shape[0], max_seqlen_k)
    if len(queries) != len(keys):
        raise ShapeError(f"cu_seqlens_q has {len(queries)} sequences, cu_seqlens_k has {len(keys)}")
    parts = [
        flash_attn(
            *(q[None, own], k[None, seen], v[None, seen]),
            *(dropout_p, softmax_scale, causal, window_size, softcap),
            alibi_slopes=None if alibi_slopes is None else _slopes_of(alibi_slopes, row),
            return_softmax_lse=True,
        )
        for row, (own, seen) in enumerate(zip(queries, keys, strict=True))
    ]
    xp = array_namespace(q)
    out = xp.concat([out[0] for out, _ in parts], axis=0)
    return (out, xp.concat([lse[0] for _, lse in parts], axis=1)) if return_softmax_lse else out


def _path(operands: Operands, alibi_slopes: Array | None) -> Attended:
    """Attend with slopes that may differ by row of the batch, as those of `attend` may not."""
    if alibi_slopes is None:
        return fastest_path(operands)
    B, H = operands.q.shape[:2]
    if tuple(alibi_slopes.shape) not in ((H,), (B, H)):
        raise ShapeError(
            f"alibi_slopes must be (H,) = {(H,)} or (B, H) = {(B, H)}, not {tuple(alibi_slopes.shape)}"
        )
    xp = array_namespace(operands.q, alibi_slopes)
    slopes = xp.asarray(alibi_slopes, dtype=operands.q.dtype, device=device(operands.q))
    return fastest_path(replace(operands, slopes=xp.reshape(slopes, (-1, H, 1, 1))))


def _slopes_of(alibi_slopes: Array, row: int) -> Array:
    return alibi_slopes[row] if alibi_slopes.ndim == 2 else alibi_slopes


def _spans(name: str, boundaries: Array | Sequence[int], num_tokens: int, longest: int) -> list[slice]:
    starts = [int(boundary) for boundary in boundaries]
    spans = [slice(start, stop) for start, stop in pairwise(starts)]
    fits = spans and starts[0] == 0 and starts[-1] == num_tokens
    if not fits or any(not 0 <= span.stop - span.start <= longest for span in spans):
        raise ShapeError(
            f"{name} must rise from 0 to the {num_tokens} tokens in steps of at most {longest}, not {starts}"
        )
    return spans
