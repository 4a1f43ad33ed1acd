"""How much attention each key gets: the columns of the weights, added up over queries.

Evicting caches choose by these sums. All T x S weights are never there: with each query's log-sum-exp
at hand, which `attend` gives along with the output, a weight is ``exp(score - lse)``, so that each tile
of weights can be computed again, summed and dropped, as the backward pass of FlashAttention does
(Dao et al. 2022, algorithm 4). Memory is O(T + S).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.operands import Operands
from qkv.ops.scores import masked_scores
from qkv.ops.tiles import TILE_KEYS, TILE_QUERIES, spans
from qkv.ops.weights import finite_shift


def attention_columns(
    operands: Operands,
    lse: NDArray[Any],
    factors: NDArray[Any] | None = None,
    *,
    tile_queries: int = TILE_QUERIES,
    tile_keys: int = TILE_KEYS,
) -> NDArray[Any]:
    """Return the attention weights summed over the queries: what each key gets from each head.

    ``column_{h,s} = sum_t factor_t exp(score_{h,t,s} - lse_{h,t})``

    Parameters
    ----------
    operands : Operands
        Queries and keys, NumPy arrays, with every rule of `attend`.
    lse : (B, H, T)
        What `attend` returned for them.
    factors : (B, T), optional
        How much each query counts; 1 when left out. A query of factor 0 is not looked at.
    tile_queries, tile_keys : int
        The size of a tile.

    Returns
    -------
    (B, H, S)
        In the dtype of the operands. A key that no query may see gets exactly 0, also beside a NaN.

    Raises
    ------
    ShapeError
        If ``lse`` or ``factors`` do not fit the queries.

    Examples
    --------
    Three queries, each sharing its attention equally among the keys up to its own: the first key gets
    1 + 1/2 + 1/3.

    >>> from qkv.ops import attend
    >>> q = k = np.zeros((1, 1, 3, 2))
    >>> _, lse = attend(q, k, k, causal=True, return_lse=True)
    >>> attention_columns(Operands.of(q, k, k, causal=True), lse).round(3).tolist()
    [[[1.833, 0.833, 0.333]]]
    """
    B, H, T, _ = operands.q.shape
    _check_shape("lse", lse, (B, H, T))
    if factors is not None:
        _check_shape("factors", factors, (B, T))
    columns = np.zeros((B, H, operands.num_keys), operands.q.dtype)
    # A NaN or an infinity in a hidden slot passes through the arithmetic before it is discarded.
    with np.errstate(invalid="ignore", over="ignore"):
        for queries in spans(range(T), tile_queries):
            reachable = operands.visibility.reachable_keys(queries, operands.num_keys)
            for keys in spans(reachable, tile_keys):
                weights = _weights(operands, lse, queries, keys)
                columns[:, :, keys] += _sum_over_queries(weights, factors, queries)
    return columns


def _weights(operands: Operands, lse: NDArray[Any], queries: slice, keys: slice) -> NDArray[Any]:
    scores, visible = masked_scores(operands, queries, keys)
    shift = finite_shift(lse[:, :, queries, None]).astype(scores.dtype, copy=False)
    weights = np.exp(scores - shift)
    return weights if visible is None else np.where(visible, weights, 0.0)


def _sum_over_queries(weights: NDArray[Any], factors: NDArray[Any] | None, queries: slice) -> NDArray[Any]:
    if factors is None:
        return weights.sum(axis=2)
    factor = factors[:, None, queries, None].astype(weights.dtype, copy=False)
    return np.where(factor == 0, 0.0, weights * factor).sum(axis=2)


def _check_shape(name: str, array: NDArray[Any], wanted: tuple[int, ...]) -> None:
    if tuple(array.shape) != wanted:
        raise ShapeError(f"{name} must fit the queries, {wanted}, not {tuple(array.shape)}")
