"""What is done to logits before a choice: tokens made less likely, or more, or ruled out.

In the order in which `qkv.ops.sampling.sample` applies them: what the text so far costs a token, what the
caller adds, what must not come at all. Each takes a row of V logits and gives a row back; the one that was
given is never written to.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError
from qkv.ops.logits import Row


def penalise_repetition(logits: Row, seen_ids: Iterable[int], penalty: float) -> Row:
    """Make every token seen before less likely, once, however often it was seen.

    A positive logit is divided, a negative one multiplied, so that both go down
    (Keskar et al. 2019, section 4.1, with the sign put right).

    Examples
    --------
    >>> penalise_repetition(np.array([2.0, -1.0, 0.5]), [0, 1, 1], 1.5).round(4).tolist()
    [1.3333, -1.5, 0.5]
    """
    if penalty == 1.0:
        return logits
    seen = np.unique(_as_ids(seen_ids))
    penalised = logits.copy()
    penalised[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return penalised


def penalise_presence_and_frequency(
    logits: Row, new_ids: Iterable[int], presence: float, frequency: float
) -> Row:
    """Take ``presence`` off every token that was generated, and ``frequency`` for each time it was.

    Parameters
    ----------
    logits : (V,)
    new_ids : iterable of int
        Generated tokens alone: a prompt may use its words as often as it likes.
    presence, frequency : float
        Below 0 they make a token more likely.

    Examples
    --------
    >>> penalise_presence_and_frequency(np.array([2.0, -1.0, 0.5]), [1, 0, 1], 0.5, 0.25).tolist()
    [1.25, -2.0, 0.5]
    """
    if presence == frequency == 0.0:
        return logits
    ids, counts = np.unique(_as_ids(new_ids), return_counts=True)
    penalised = logits.copy()
    penalised[ids] -= presence + frequency * counts
    return penalised


def add_bias(logits: Row, bias: Mapping[int, float]) -> Row:
    """Add a number to the logits of some tokens.

    Examples
    --------
    >>> add_bias(np.array([2.0, -1.0, 0.5]), {2: 4.0, 0: -1.0}).tolist()
    [1.0, -1.0, 4.5]
    """
    if not bias:
        return logits
    biased = logits.copy()
    biased[_as_ids(bias)] += np.fromiter(bias.values(), np.float64, len(bias))
    return biased


def rule_out(logits: Row, ids: Collection[int]) -> Row:
    """Give tokens a logit of ``-inf``, so that they cannot be chosen; ids of no token have none to lose.

    Raises
    ------
    OptionError
        If no token is left.

    Examples
    --------
    >>> rule_out(np.array([2.0, -1.0, 0.5]), [0, 7]).tolist()
    [-inf, -1.0, 0.5]
    """
    if not ids:
        return logits
    known = _as_ids(ids)
    left = logits.copy()
    left[known[known < len(logits)]] = -np.inf
    if left.max() == -np.inf:
        raise OptionError("no token is left to choose; rule out fewer by bad_words or min_tokens")
    return left


def completing_ids(bad_words: Sequence[Sequence[int]], ids: Sequence[int]) -> set[int]:
    """Return the tokens that would complete a bad word: its last one, where the text ends with the others.

    Parameters
    ----------
    bad_words : sequence of sequences of int
        A word of one token is always about to be completed.
    ids : sequence of int
        The text so far.

    Examples
    --------
    >>> sorted(completing_ids([[3], [5, 7], [5, 5, 8], [6, 9]], ids=[1, 5]))
    [3, 7]
    """
    return {word[-1] for word in bad_words if _ends_with(ids, word[:-1])}


def _ends_with(ids: Sequence[int], end: Sequence[int]) -> bool:
    return list(ids[len(ids) - len(end) :]) == list(end)


def _as_ids(ids: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(ids, np.int64)
