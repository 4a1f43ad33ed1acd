"""How likely a model found tokens: natural logarithms of probabilities, from the logits as they came.

Always of the raw logits, at every temperature and before any penalty or filter: so they say what the model
thinks, not what was done to it, and a greedy run has them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.ops.filters import most_likely
from qkv.ops.logits import Row, logit_row

LEAST_LOGPROB = -9999.0
"""Stands for itself and for all below, ``-inf`` included, which JSON has no word for."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a token was, and which others were likelier or next to it.

    Attributes
    ----------
    token_id : int
    logprob : float
        Never below `LEAST_LOGPROB`, so always finite.
    top : tuple of (int, float)
        The most likely tokens with theirs, the most likely first, of equal ones the lower id; as many
        as were asked for, the token itself among them if it is one.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def log_softmax(logits: NDArray) -> Row:
    """Return the logarithm of each token's probability, in float64.

    Raises
    ------
    NumericError
        If a logit is NaN or infinitely high, or all are infinitely low.

    Examples
    --------
    >>> log_softmax(np.array([2.0, 1.0, 0.0])).round(6).tolist()
    [-0.407606, -1.407606, -2.407606]
    """
    row = logit_row(logits)
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def token_logprobs(logits: NDArray, token_id: int, num_top: int = 0) -> TokenLogprobs:
    """Return how likely one token was, and the ``num_top`` most likely ones.

    Parameters
    ----------
    logits : (V,)
        As the model gave them, of any float type.
    token_id : int
    num_top : int
        More than V are V.

    Raises
    ------
    ShapeError
        If there is no such token.
    NumericError
        If a logit is NaN or infinitely high, or all are infinitely low.

    Examples
    --------
    >>> found = token_logprobs(np.array([0.0, 2.0, 1.0]), token_id=2, num_top=1)
    >>> found.token_id, round(found.logprob, 6), [(one, round(its, 6)) for one, its in found.top]
    (2, -1.407606, [(1, -0.407606)])
    """
    logprobs = np.maximum(log_softmax(logits), LEAST_LOGPROB)
    if not 0 <= token_id < len(logprobs):
        raise ShapeError(f"token_id must be from 0 to {len(logprobs) - 1}, not {token_id}")
    # By the logits themselves: what is below the least there is must not tie.
    ids = most_likely(logit_row(logits), num_top) if num_top else []
    top = tuple((int(one), float(logprobs[one])) for one in ids)
    return TokenLogprobs(int(token_id), float(logprobs[token_id]), top)


def text_logprobs(logits: NDArray, ids: Sequence[int], num_top: int = 0) -> tuple[TokenLogprobs, ...]:
    """Return how likely each token of a text was where it stands.

    Of a prompt's first token nothing is known, so a whole prompt takes
    ``text_logprobs(logits[:-1], prompt_ids[1:])``.

    Parameters
    ----------
    logits : (T, V)
        Each row is what the model said before the token in question.
    ids : T integers
    num_top : int

    Raises
    ------
    ShapeError
        If there are not as many rows as tokens.

    Examples
    --------
    >>> logits = np.log([[0.25, 0.75], [0.5, 0.5]])
    >>> [round(one.logprob, 4) for one in text_logprobs(logits, [1, 0])]
    [-0.2877, -0.6931]
    """
    if len(logits) != len(ids):
        raise ShapeError(f"logits must be (T, V) for T = {len(ids)} tokens, got {np.shape(logits)}")
    return tuple(token_logprobs(row, one, num_top) for row, one in zip(logits, ids, strict=True))
