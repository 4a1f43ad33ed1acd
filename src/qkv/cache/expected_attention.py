"""Which held tokens future queries will look at: expected attention, from the statistics of queries.

Queries before rotation are taken to be normally distributed, per query head. Rotated on average over
the next positions they give every key its expected weight in closed form, no attention needed.
Source: Devoto et al. 2025, "Expected attention: KV cache compression by estimating attention from
future queries distribution", and kvpress's ``ExpectedAttentionPress``, whose defaults stand here.
In order: `unrotate` a step's queries, take their `query_statistics`, `rotate_on_average`, score the keys.
Two things differ from kvpress. It takes the statistics from the hidden states of the whole prompt and
the query weights; here they come from the queries themselves, which is the same where queries are a
linear map, and also right where they are normalised or have a bias. And a prompt read in several
steps has the statistics of its last step.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.cache.importance import Importance
from qkv.errors import ShapeError
from qkv.ops.projection import prepare, project
from qkv.ops.rotary import Rotary, rotary_table, rotate

FUTURE_POSITIONS = 512
"""Over so many next positions queries are rotated on average."""

SKIPPED_QUERIES = 4
"""The first queries of a text are outliers; leave them out of the statistics."""


class QueryStatistics(NamedTuple):
    """Mean and covariance of the queries of each query head."""

    mean: NDArray[np.float32]
    """(H, D)"""
    covariance: NDArray[np.float32]
    """(H, D, D)"""


def unrotate(
    q: NDArray[Any], rotary: Rotary, positions: NDArray[Any], *, interleaved: bool = False
) -> NDArray[Any]:
    """Undo the rotation of queries.

    Parameters
    ----------
    q : (H, T, D)
    rotary : Rotary
        By which they were turned.
    positions : (T,)
        At which they stand.
    interleaved : bool
        As in `qkv.ops.rotary.rotate`.

    Returns
    -------
    (H, T, D)

    Examples
    --------
    >>> from qkv.ops.rotary import rotary_frequencies
    >>> q, rotary, positions = np.ones((1, 2, 4)), rotary_frequencies(4), np.array([7, 8])
    >>> turned = rotate(q, *rotary_table(rotary, positions))
    >>> bool(np.allclose(unrotate(turned, rotary, positions), q))
    True
    """
    cosines, sines = rotary_table(rotary, positions)
    square = rotary.magnitude**2  # turning there and back multiplies by the magnitude twice
    return rotate(q, cosines / square, -sines / square, interleaved=interleaved)


def query_statistics(q: NDArray[Any]) -> QueryStatistics:
    """Return mean and covariance over the queries of each head.

    Parameters
    ----------
    q : (H, T, D)
        Before rotation, without the first `SKIPPED_QUERIES` of the text.

    Returns
    -------
    QueryStatistics
        The covariance is divided by T.

    Raises
    ------
    ShapeError
        If there is no query.

    Examples
    --------
    >>> mean, covariance = query_statistics(np.array([[[1.0, 0.0], [3.0, 0.0]]]))
    >>> mean.tolist(), covariance.tolist()
    ([[2.0, 0.0]], [[[1.0, 0.0], [0.0, 0.0]]])
    """
    if q.shape[1] == 0:
        raise ShapeError(f"the statistics need at least one query, not q of shape {q.shape}")
    q = np.asarray(q, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite comes out as NaN
        mean = q.mean(axis=1, dtype=np.float64).astype(np.float32)
        covariance = np.stack([_covariance(head - middle) for head, middle in zip(q, mean, strict=True)])
    return QueryStatistics(mean, covariance)


def _covariance(centred: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of ``x x^T`` over the rows x, by a product whose sums have a fixed order."""
    by_number = centred.T  # D T
    return project(by_number, prepare(by_number)) / np.float32(len(centred))


def rotate_on_average(
    statistics: QueryStatistics,
    rotary: Rotary,
    first_position: int,
    *,
    num_positions: int = FUTURE_POSITIONS,
    interleaved: bool = False,
) -> QueryStatistics:
    """Return what the statistics become at the next positions, on average.

    With R the mean rotation over the positions: ``R mu`` and ``R Sigma R^T``. A rotation is linear in its
    cosines and sines, so the mean rotation is the rotation by the mean cosines and mean sines.

    Parameters
    ----------
    statistics : QueryStatistics
        Of queries before rotation.
    rotary : Rotary
        By which the model turns them.
    first_position : int
        The next token's.
    num_positions : int
        How many positions to average over.
    interleaved : bool
        As in `qkv.ops.rotary.rotate`.

    Returns
    -------
    QueryStatistics

    Examples
    --------
    Half a turn per position: opposite directions cancel.

    >>> statistics = QueryStatistics(np.ones((1, 2), np.float32), np.ones((1, 2, 2), np.float32))
    >>> half_turn = Rotary(frequencies=(np.pi,))
    >>> rotate_on_average(statistics, half_turn, first_position=0, num_positions=1).mean.round(3).tolist()
    [[1.0, 1.0]]
    >>> rotate_on_average(statistics, half_turn, first_position=0, num_positions=2).mean.round(3).tolist()
    [[0.0, -0.0]]
    """
    positions = np.arange(first_position, first_position + num_positions)
    means = [table.mean(axis=0, keepdims=True, dtype=np.float64) for table in rotary_table(rotary, positions)]

    def turned(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return rotate(rows, *means, interleaved=interleaved)

    columns = turned(statistics.covariance).swapaxes(1, 2)
    return QueryStatistics(turned(statistics.mean), turned(columns))


def expected_scores(
    statistics: QueryStatistics,
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    scale: float | None = None,
    sinks: int = 0,
    epsilon: float = 0.0,
) -> Importance:
    """Score each token by the attention it can expect, times the length of its value.

    ``score_s = (mean_{h in group} a_{h,s} + epsilon) ||v_s||``, where ``a_h`` is the softmax over the tokens
    of ``c mu_h . k_s + c^2 k_s . Sigma_h k_s / 2``, c the scale: the mean of ``exp(c q . k_s)`` for q
    distributed normally. The sinks take no part in the softmax and get the highest score of their head.

    Parameters
    ----------
    statistics : QueryStatistics
        Of the queries to come: (H, D) and (H, D, D).
    k : (G, S, D)
    v : (G, S, D)
        The values' D may be another one.
    scale : float, optional
        Of the scores; ``1/sqrt(D)`` when left out.
    sinks : int
        How many of the first tokens are kept anyway.
    epsilon : float
        Lets values count where hardly any attention is expected.

    Returns
    -------
    (G, S) float32
        Not finite where a key or a value is not; other tokens' scores are as without it.

    Raises
    ------
    ShapeError
        If H is no multiple of G.

    Examples
    --------
    With no spread it is plain attention of the mean query, here 1/4 and 3/4; the values' lengths are 5 and 1.

    >>> statistics = QueryStatistics(np.ones((1, 1), np.float32), np.zeros((1, 1, 1), np.float32))
    >>> k, v = np.log([[[1.0], [3.0]]]), np.array([[[3.0, 4.0], [0.0, 1.0]]])
    >>> expected_scores(statistics, k, v).round(4).tolist()
    [[1.25, 0.75]]
    """
    (H, D), (G, S, _) = statistics.mean.shape, k.shape
    if H % G:
        raise ShapeError(f"the query heads H = {H} must be a multiple of the key heads G = {G}")
    factor = D**-0.5 if scale is None else float(scale)
    scores = np.zeros((G, S))
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite comes out as NaN
        for head, (mean, covariance) in enumerate(zip(*statistics, strict=True)):
            g = head // (H // G)
            scores[g, sinks:] += _softmax_of_finite(_expected_logits(mean, covariance, k[g, sinks:], factor))
        lengths = np.sqrt(np.einsum("gsd,gsd->gs", v, v, dtype=np.float64))
        scores = (scores / (H // G) + epsilon) * lengths
    scores[:, :sinks] = np.fmax.reduce(scores[:, sinks:], axis=1, keepdims=True, initial=0.0)
    return scores.astype(np.float32)


def _expected_logits(
    mean: NDArray[np.float32], covariance: NDArray[np.float32], k: NDArray[Any], scale: float
) -> NDArray[np.float64]:
    """Return ``c mu . k + c^2 k . Sigma k / 2`` for each row of k, as ``c k . (c/2 Sigma k + mu)``."""
    k = np.ascontiguousarray(k, np.float32)
    half = (scale / 2 * covariance).astype(np.float32)
    return scale * np.einsum("sd,sd->s", k, project(k, prepare(half), mean), dtype=np.float64)


def _softmax_of_finite(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax over what is finite, and NaN elsewhere."""
    finite = np.isfinite(logits)
    exponentials = np.exp(logits - logits.max(where=finite, initial=-np.inf))
    return np.where(finite, exponentials / exponentials.sum(where=finite), np.nan)
