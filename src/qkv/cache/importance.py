"""Which held tokens matter: the published scores from keys and from attention, as pure functions.

Every score is ``(G, S)`` float32 for one layer of one sequence: S held tokens per key head in order
of position, higher = keep. `qkv.cache.retention.keep` turns scores into what stays. Attention
arrives here as column sums: what each key got, added up over queries, from `qkv.ops.columns`.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError, ShapeError

Importance = NDArray[np.float32]
"""(G, S), higher = keep."""

Scoring = Literal["sum", "age", "decay"]

POOL = 5
"""Neighbouring tokens over which SnapKV averages, so that a whole phrase stays and not one word of it."""


def key_norm_scores(k: NDArray[Any]) -> Importance:
    """Score each token by how short its key is: ``-||k||``.

    Keys of small norm tend to draw much attention. Needs no query. Source: Devoto et al. 2024,
    "A simple and effective L2 norm-based strategy for KV cache compression".

    Parameters
    ----------
    k : (G, S, D)
        Keys as stored; a rotation does not change their norm.

    Returns
    -------
    (G, S) float32

    Examples
    --------
    >>> key_norm_scores(np.array([[[3.0, 4.0], [0.0, 1.0]]])).tolist()
    [[-5.0, -1.0]]
    """
    k = np.asarray(k, np.float32)
    return -np.sqrt(np.einsum("gsd,gsd->gs", k, k))


def observed_scores(column_sums: NDArray[Any], num_kv_heads: int, window: int) -> Importance:
    """Score each token by what the last queries look at, pooled over its neighbours (SnapKV).

    ``score_s = 1/5 sum_{i=s-2..s+2} mean_{h in group} sum_{t in window} weight_{h,t,i}``, where i runs
    over the tokens before the window and what lies outside counts as 0: an average pool of 5, as the
    authors' code and kvpress have it by default (some of the authors' experiments take the maximum).
    The window itself is always kept: its tokens get the highest score of their head.
    Source: Li et al. 2024, "SnapKV: LLM knows what you are looking for before generation". The mean
    over the group is kvpress's; the paper has as many key heads as query heads.

    Parameters
    ----------
    column_sums : (H, S)
        Attention weights summed over the queries of the window.
    num_kv_heads : int
        G.
    window : int
        How many of the last held tokens are the observation window.

    Returns
    -------
    (G, S) float32

    Raises
    ------
    ShapeError
        If H is no multiple of G.

    Examples
    --------
    One token that got all the attention lifts two neighbours on each side:

    >>> observed_scores(np.array([[0.0, 0, 0, 5, 0, 0, 0, 1]]), num_kv_heads=1, window=1).tolist()
    [[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0]]
    """
    means = _mean_over_group(column_sums, num_kv_heads)
    before = means.shape[1] - min(window, means.shape[1])
    scores = np.empty_like(means)
    padded = np.pad(means[:, :before], ((0, 0), (POOL // 2, POOL // 2)))
    neighbours = np.stack([padded[:, i : i + before] for i in range(POOL)])
    scores[:, :before] = neighbours.mean(axis=0, dtype=np.float64)
    scores[:, before:] = scores[:, :before].max(axis=1, keepdims=True, initial=0.0)
    return scores


def last_query_scores(weights: NDArray[Any], num_kv_heads: int) -> Importance:
    """Score each token by what the last query gives it, averaged over all heads of the layer (TOVA).

    ``score_s = mean_h weight_{h, last, s}``, the same for every key head, so that the heads of a layer
    always hold the same tokens. Source: Oren et al. 2024, "Transformers are multi-state RNNs".

    Parameters
    ----------
    weights : (H, S)
        The last query's attention weights.
    num_kv_heads : int
        G.

    Returns
    -------
    (G, S) float32

    Examples
    --------
    >>> last_query_scores(np.array([[0.5, 0.25, 0.25], [0.0, 0.75, 0.25]]), num_kv_heads=2).tolist()
    [[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]]
    """
    return np.repeat(_mean_over_group(weights, 1), num_kv_heads, axis=0)


def decay_factors(num_queries: int, decay: float) -> NDArray[np.float32]:
    """Return how much each of a step's queries counts: ``decay^(last query - query)``.

    Parameters
    ----------
    num_queries : int
        T.
    decay : float
        Above 0, at most 1.

    Returns
    -------
    (T,) float32

    Examples
    --------
    >>> decay_factors(3, 0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    return (decay ** np.arange(num_queries - 1, -1, -1, dtype=np.float64)).astype(np.float32)


def accumulate(
    score: NDArray[Any], column_sums: NDArray[Any], num_queries: int, decay: float = 1.0
) -> Importance:
    """Add one step's attention to what each token has got so far (H2O).

    ``score <- decay^T score + mean_{h in group} sum_t decay^(last - t) weight_{h,t}``: the result is the
    same whether T queries come in one step or one by one. New tokens start from 0.

    Parameters
    ----------
    score : (G, S or less)
        Of the tokens held before; those that the step appended come behind them.
    column_sums : (H, S)
        The step's weights summed over its queries, each times its `decay_factors`.
    num_queries : int
        T of the step.
    decay : float
        1 forgets nothing.

    Returns
    -------
    (G, S) float32

    Raises
    ------
    ShapeError
        If there are scores of more tokens than the sums have, or H is no multiple of G.

    Examples
    --------
    >>> accumulate(np.array([[2.0]]), np.array([[0.5, 0.5]]), num_queries=1, decay=0.5).tolist()
    [[1.5, 0.5]]
    """
    (G, known), S = score.shape, column_sums.shape[1]
    if known > S:
        raise ShapeError(f"the column sums must cover all {known} tokens that have scores, not S = {S}")
    total = _mean_over_group(column_sums, G)
    total[:, :known] += score * decay**num_queries
    return total


def heavy_hitter_scores(accumulated: NDArray[Any], ages: NDArray[Any], scoring: Scoring) -> Importance:
    """Score each token by the attention it has got so far (H2O, heavy hitters).

    Source: Zhang et al. 2023, "H2O: heavy-hitter oracle for efficient generative inference of large
    language models". As published the plain sum counts, which grows with every query that can see a
    token: under equal attention an old token outscores a new one by the ratio of their ages, however
    little it is looked at now. Hence two corrections:

    =========  ==================================================================================
    scoring    score
    =========  ==================================================================================
    ``sum``    ``sum_t weight_{t,s}``, as published
    ``age``    the same divided by the number of queries that could see token s
    ``decay``  ``sum_t decay^(last - t) weight_{t,s}``: old queries are forgotten, and no token
               gets more than ``1/(1-decay)`` times one query's weight
    =========  ==================================================================================

    A text's first tokens gain besides from queries that had few others to look at: ``age`` thins that
    out as the text goes on, ``decay`` forgets it.

    Parameters
    ----------
    accumulated : (G, S)
        From `accumulate`, with the decay where one is set.
    ages : (G, S) integers
        How many queries could see each token: tokens so far minus its position.
    scoring : "sum", "age" or "decay"

    Returns
    -------
    (G, S) float32

    Raises
    ------
    OptionError
        If ``scoring`` is another.

    Examples
    --------
    Four queries that shared their attention equally between two old tokens, of which the last two
    could also see a new one:

    >>> accumulated, ages = np.array([[2.0, 2.0, 1.0]]), np.array([[4, 4, 2]])
    >>> heavy_hitter_scores(accumulated, ages, "sum").tolist()
    [[2.0, 2.0, 1.0]]
    >>> heavy_hitter_scores(accumulated, ages, "age").tolist()
    [[0.5, 0.5, 0.5]]
    """
    if scoring not in get_args(Scoring):
        raise OptionError(f"h2o scores by sum, age or decay, not {scoring!r}")
    divisors = np.maximum(ages, 1) if scoring == "age" else 1
    return (accumulated / divisors).astype(np.float32)


def _mean_over_group(per_head: NDArray[Any], num_kv_heads: int) -> Importance:
    """Return the mean over the H/G query heads that each key head serves: ``(H, S)`` to ``(G, S)``."""
    H, S = per_head.shape
    if H % num_kv_heads:
        raise ShapeError(f"the query heads H = {H} must be a multiple of the key heads G = {num_kv_heads}")
    groups = per_head.reshape(num_kv_heads, H // num_kv_heads, S)
    return groups.mean(axis=1, dtype=np.float64).astype(np.float32)
