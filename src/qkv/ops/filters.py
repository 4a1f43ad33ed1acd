"""Which of V tokens may still be drawn: each filter keeps the most likely ones, by its own measure.

Every filter takes a row of logits and gives it back with ``-inf`` for what is out.
"""

import numpy as np
from numpy.typing import NDArray

from qkv.ops.logits import Row
from qkv.ops.weights import softmax

FIRST_LOOK = 256
"""Tokens that are sorted to begin with; a nucleus seldom has more, and sorting all V takes far longer."""

HAIR = 1e-12
"""Of a probability, is forgiven, so that 0.5 + 0.3 reaches 0.8."""


def keep_top_k(logits: Row, k: int) -> Row:
    """Keep the k largest logits; of equal ones the lower ids.

    Examples
    --------
    >>> keep_top_k(np.array([1.0, 3.0, 3.0, 2.0]), 2).tolist()
    [-inf, 3.0, 3.0, -inf]
    """
    possible = possible_ids(logits)
    return _keep(logits, possible[most_likely(logits[possible], k)])


def keep_top_p(logits: Row, p: float) -> Row:
    """Keep the smallest set of most likely tokens whose probabilities add up to at least p.

    The token that crosses p is kept, so at least one always is (Holtzman et al. 2020).

    Examples
    --------
    >>> keep_top_p(np.log(np.array([0.5, 0.3, 0.15, 0.05])), 0.6).round(2).tolist()
    [-0.69, -1.2, -inf, -inf]
    """
    if p >= 1:
        return logits
    possible = possible_ids(logits)
    return _keep(logits, possible[_nucleus(logits[possible], p)])


def keep_min_p(logits: Row, min_p: float) -> Row:
    """Keep tokens at least ``min_p`` times as likely as the most likely one.

    Examples
    --------
    >>> keep_min_p(np.log(np.array([0.5, 0.3, 0.2])), 0.5).round(2).tolist()
    [-0.69, -1.2, -inf]
    """
    if min_p == 0:
        return logits
    return np.where(logits >= logits.max() + np.log(min_p) - HAIR, logits, -np.inf)


def most_likely(logits: Row, count: int) -> NDArray[np.int64]:
    """Return the ids of the ``count`` largest logits, the largest first, of equal ones the lower id first.

    Examples
    --------
    >>> most_likely(np.array([1.0, 3.0, 3.0, 2.0, 1.0]), 4).tolist()
    [1, 2, 3, 0]
    """
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    larger = np.flatnonzero(logits > least)
    ids = np.concatenate([larger, np.flatnonzero(logits == least)[: count - len(larger)]])
    return ids[np.argsort(-logits[ids], kind="stable")]


def possible_ids(logits: Row) -> NDArray[np.int64]:
    """Return the ids of the tokens that may be chosen: often few, which are then quickly dealt with.

    Examples
    --------
    >>> possible_ids(np.array([-np.inf, 3.0, -np.inf, 2.0])).tolist()
    [1, 3]
    """
    return np.flatnonzero(logits > -np.inf)


def _nucleus(logits: Row, p: float) -> NDArray[np.int64]:
    probabilities, count = softmax(logits), FIRST_LOOK
    order = most_likely(logits, count)
    while count < len(logits) and probabilities[order].sum() < p:
        count *= 8
        order = most_likely(logits, count)
    likely = probabilities[order]
    kept = np.cumsum(likely) - likely < p - HAIR  # what is covered before each token
    kept[0] = True
    return order[kept]


def _keep(logits: Row, ids: NDArray[np.int64]) -> Row:
    kept = np.full_like(logits, -np.inf)
    kept[ids] = logits[ids]
    return kept
