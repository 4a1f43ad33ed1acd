"""Patterns that heads are known for, as tables of which keys each query should look at.

A head's score on a pattern is the share of its attention that lies there, over the queries for which the
pattern names any key. Beside it stands what even attention would put there, so that a pattern which covers
much of the text earns nothing by that. Induction is the pattern behind copying: where the query's token has
been read before, it names the token that came after it then (Olsson et al. 2022).
"""

from collections.abc import Callable, Collection, Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from qkv.models import Model

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Ids = NDArray[np.integer]

FIRST_SCORED = 8
"""Earlier queries see so few keys that any pattern covers most of them."""
NEAR = 4
"""Tokens back that count as local, the query's own among them."""


def patterns(ids: Ids, delimiters: Collection[int]) -> Mapping[str, Bools]:
    """Return which keys each pattern names for each query of a text, ``(T, T)`` each.

    Parameters
    ----------
    ids : (T,) integers
    delimiters : collection of int
        Ids that divide a text: line ends, spaces, punctuation.

    Returns
    -------
    mapping of str to (T, T) bool
        Row = query, column = key; no key behind its query is named.

    Examples
    --------
    >>> found = patterns(np.array([5, 6, 7, 5]), delimiters=[7])
    >>> {name: np.flatnonzero(table[3]).tolist() for name, table in found.items() if name != "local"}
    {'previous': [2], 'first': [0], 'duplicate': [0], 'induction': [1], 'delimiter': [2]}
    """
    t = np.arange(len(ids))
    back = t[:, None] - t
    same = ids[:, None] == ids
    after_same = np.zeros_like(same)
    after_same[:, 1:] = same[:, :-1]
    return {
        "previous": back == 1,
        "first": np.broadcast_to(t == 0, same.shape),
        "local": (back >= 0) & (back < NEAR),
        "duplicate": same & (back > 0),
        "induction": after_same & (back > 0),
        "delimiter": np.isin(ids, list(delimiters)) & (back >= 0),
    }


def scores(weights: Floats, pattern: Bools) -> Floats:
    """Return the share of each head's attention that lies on a pattern.

    Parameters
    ----------
    weights : (..., T, T)
    pattern : (T, T) bool

    Returns
    -------
    (...) float
        0 where the pattern names no key.
    """
    counted = pattern.any(axis=-1) & (np.arange(len(pattern)) >= FIRST_SCORED)
    if not counted.any():
        return np.zeros(weights.shape[:-2])
    return (weights * pattern).sum(axis=-1)[..., counted].mean(axis=-1)


def even_attention(T: int) -> Floats:
    """Return the weights ``(T, T)`` of a head that looks at all it may see alike.

    Examples
    --------
    >>> even_attention(2).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    seen = np.tri(T)
    return seen / seen.sum(axis=-1, keepdims=True)


def divergences(weights: Floats) -> Floats:
    """Return how differently each two heads look: Jensen-Shannon in bits, mean over the queries.

    Parameters
    ----------
    weights : (N, T, T)

    Returns
    -------
    (N, N) float64
        0 = the same at each query, 1 = nothing in common. Symmetric.
    """
    N = len(weights)
    scored = weights[:, FIRST_SCORED:].astype(np.float64)
    own = entropies(scored)
    bits = np.zeros((N, N))
    for one, other in combinations(range(N), 2):
        between = entropies((scored[one] + scored[other]) / 2) - (own[one] + own[other]) / 2
        bits[one, other] = bits[other, one] = between.mean()
    return bits


def entropies(p: Floats) -> Floats:
    """Return the entropy of each distribution ``(..., S)`` in bits.

    Examples
    --------
    >>> entropies(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    return -(p * np.log2(p, where=p > 0, out=np.zeros_like(p))).sum(axis=-1) + 0.0


Delimiters = Callable[[Model], Collection[int]]


def delimiter_ids(model: Model) -> Collection[int]:
    """Return the ids whose text holds neither a letter nor a digit; none without a tokenizer."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return frozenset()
    texts = enumerate(tokenizer.decode([one]) for one in range(model.vocab_size))
    return frozenset(one for one, text in texts if text and not any(sign.isalnum() for sign in text))
