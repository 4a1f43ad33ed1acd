"""Attention upside down: from the gradient of its output to those of queries, keys and values.

The T x S weights are never kept. With each query's log-sum-exp at hand, which `attend` gives along with
the output, a tile of weights is computed again, used and dropped: FlashAttention-2 (Dao 2023), algorithm
2. Memory is O(T + S).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.arrays import widen
from qkv.ops.compiled import takes
from qkv.ops.dense import mix
from qkv.ops.masks import Causal, Window
from qkv.ops.operands import Operands
from qkv.ops.scores import dot_products, masked_scores
from qkv.ops.tiles import spans
from qkv.ops.weights import finite_shift

TILE_QUERIES = 128
TILE_KEYS = 128

Floats = NDArray[np.floating]
Gradients = tuple[Floats, Floats, Floats]


def attend_backward(
    d_output: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    output: Floats,
    lse: Floats,
    *,
    causal: Causal = False,
    window: Window = None,
    scale: float | None = None,
    mask: NDArray[np.bool_] | None = None,
    q_lengths: Sequence[int] | None = None,
    kv_lengths: Sequence[int] | None = None,
) -> Gradients:
    """Return the gradients of q, k and v, given that of what `qkv.attend` made of them.

    With ``p`` the weights, ``s`` the scaled scores and ``'`` for transposing::

        d_v = p' d_output
        d_p = d_output v'
        d_s = p * (d_p - sum(d_output * output))
        d_q = scale * d_s k
        d_k = scale * d_s' q

    The sum is over D, one number per query: it is what the softmax, whose weights sum to one, takes from
    every score alike. A key head's gradients are summed over the query heads it serves.

    Parameters
    ----------
    d_output : (B, H, T, D)
        Gradient of the output.
    q, k, v, causal, window, scale, mask, q_lengths, kv_lengths
        As they were given to `qkv.attend`. Hidden slots are never read, also not in ``d_output``.
    output : (B, H, T, D)
    lse : (B, H, T)
        What `qkv.attend` returned, with ``return_lse=True``.

    Returns
    -------
    d_q : (B, H, T, D)
    d_k, d_v : (B, G, S, D)
        In the shapes and dtype of q, k and v. Exactly 0 for a query that sees nothing and for a key that
        no query sees.

    Raises
    ------
    ShapeError
        If axes do not fit together.
    OptionError, TypeError
        As `qkv.attend`.

    Examples
    --------
    One query shares its attention equally between two keys. Moving it towards the first key, whose
    value is the larger, makes the output larger:

    >>> import numpy as np
    >>> from qkv import attend
    >>> q, k, v = np.zeros((1, 1)), np.array([[1.0], [-1.0]]), np.array([[3.0], [1.0]])
    >>> output, lse = attend(q, k, v, return_lse=True)
    >>> d_q, d_k, d_v = attend_backward(np.ones((1, 1)), q, k, v, output, lse)
    >>> d_q.tolist(), d_k.tolist(), d_v.tolist()
    ([[1.0]], [[0.0], [0.0]], [[0.5], [0.5]])
    """
    operands = Operands.of(
        q,
        k,
        v,
        mask=mask,
        causal=causal,
        window=window,
        scale=scale,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
    )
    rows = operands.q.shape[:3]
    check_shape("d_output", d_output, (*q.shape[:-1], v.shape[-1]))
    check_shape("output", output, (*q.shape[:-1], v.shape[-1]))
    check_shape("lse", lse, q.shape[:-1])
    d_output, output = (
        widen(x, name).reshape(*rows, v.shape[-1]) for x, name in ((d_output, "d_output"), (output, "output"))
    )
    backward = backward_compiled if takes(operands) and mask is None else backward_tiled
    gradients = backward(d_output, operands, output, lse.reshape(rows))
    given = zip(gradients, (q, k, v), strict=True)
    d_q, d_k, d_v = (d_x.reshape(x.shape).astype(x.dtype, copy=False) for d_x, x in given)
    return d_q, d_k, d_v


def backward_compiled(d_output: Floats, operands: Operands, output: Floats, lse: Floats) -> Gradients:
    """Return what `backward_tiled` returns, from the kernels: NumPy float32, without a mask."""
    from qkv.kernels.attention_backward import attend_backward  # the compiler is loaded when first needed

    seen = operands.visibility
    return attend_backward(
        d_output,
        operands.q,
        operands.k,
        operands.v,
        output,
        lse,
        scale=operands.scale,
        offsets=seen.offsets,
        q_lengths=seen.q_lengths,
        kv_lengths=seen.kv_lengths,
        left=seen.left,
        right=seen.right,
    )


def backward_tiled(
    d_output: Floats,
    operands: Operands,
    output: Floats,
    lse: Floats,
    *,
    tile_queries: int = TILE_QUERIES,
    tile_keys: int = TILE_KEYS,
) -> Gradients:
    """Return the gradients tile by tile: for each tile of queries the keys pass by, tile after tile.

    Parameters
    ----------
    d_output, output : (B, H, T, D)
    operands : Operands
        NumPy arrays, without softcap, bias, slopes or sinks.
    lse : (B, H, T)
    tile_queries, tile_keys : int

    Returns
    -------
    d_q, d_k, d_v
        As `attend_backward`, in the dtype of the operands.
    """
    q, k, v = operands.q, operands.k, operands.v
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    # A NaN or an infinity in a hidden slot passes through the arithmetic before it is discarded.
    with np.errstate(invalid="ignore", over="ignore"):
        delta = (d_output * output).sum(axis=-1, keepdims=True)  # B H T 1
        for queries in spans(range(operands.num_queries), tile_queries):
            reachable = operands.visibility.reachable_keys(queries, operands.num_keys)
            for keys in spans(reachable, tile_keys):
                weights, visible = weights_of(operands, lse, queries, keys)
                d_rows = d_output[:, :, queries]
                d_weights = dot_products(d_rows, v[:, :, keys])
                d_scores = weights * (d_weights - delta[:, :, queries]) * operands.scale
                if visible is not None:
                    d_scores = np.where(visible, d_scores, 0)
                d_v[:, :, keys] += mix_queries(weights, d_rows, visible, k.shape[1])
                d_q[:, :, queries] += mix(d_scores, k[:, :, keys], visible)
                d_k[:, :, keys] += mix_queries(d_scores, q[:, :, queries], visible, k.shape[1])
    return d_q, d_k, d_v


def weights_of(
    operands: Operands, lse: Floats, queries: slice, keys: slice
) -> tuple[Floats, NDArray[np.bool_] | None]:
    """Return a rectangle of the weights, computed again, and what of it is visible."""
    scores, visible = masked_scores(operands, queries, keys)
    shift = finite_shift(lse[:, :, queries, None]).astype(scores.dtype, copy=False)
    weights = np.exp(scores - shift)
    return (weights if visible is None else np.where(visible, weights, 0)), visible


def mix_queries(weights: Floats, rows: Floats, visible: NDArray[np.bool_] | None, num_groups: int) -> Floats:
    """Return ``weights' rows``, (B, G, S, D), summed over the query heads of each key head.

    As in `mix`, a hidden slot contributes nothing, not even ``0 * NaN``.
    """
    B, _, _, S = weights.shape
    stacked = (B, num_groups, -1)
    if visible is not None:
        visible = np.broadcast_to(visible, weights.shape).reshape(*stacked, S).swapaxes(2, 3)
    weights = weights.reshape(*stacked, S).swapaxes(2, 3)  # B G S (H/G T)
    return mix(weights, rows.reshape(*stacked, rows.shape[-1]), visible)


def check_shape(name: str, array: Floats, wanted: tuple[int, ...]) -> None:
    """Raise `ShapeError` unless an array has the shape that the queries and values ask for."""
    if tuple(array.shape) != wanted:
        raise ShapeError(f"{name} must fit q and v, {wanted}, not {tuple(array.shape)}; try what attend gave")
