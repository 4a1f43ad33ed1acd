"""Which tokens stay: the budget of each layer, what is always kept, and the choice by score."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError

Eviction = Literal["streaming", "h2o", "snapkv", "tova", "knorm", "pyramidkv", "expected"]

OBSERVED_QUERIES = 64
"""SnapKV's observation window, at most: the last queries of a prompt."""

STEEPNESS = 20
"""PyramidKV's beta: the last layer chooses 1/20 of the mean."""

DEFAULT_SINKS: dict[Eviction, int] = {
    "streaming": 4,  # Xiao et al. 2023, section 3.1
    "h2o": 0,
    "snapkv": 0,
    "tova": 0,
    "knorm": 0,
    "pyramidkv": 0,
    "expected": 4,  # kvpress, n_sink
}


class AlwaysKept(NamedTuple):
    """Tokens that stay whatever their score."""

    sinks: int
    """The first tokens held."""
    recent: int
    """The last tokens held."""


def always_kept(eviction: Eviction, budget: int, sinks: int | None = None) -> AlwaysKept:
    """Return how many first and last tokens an eviction keeps whatever their score.

    ==========================  =====  ==================================================
    eviction                    sinks  recent
    ==========================  =====  ==================================================
    ``streaming``               4      all of the budget but the sinks (Xiao et al. 2023)
    ``h2o``                     0      half of the budget (Zhang et al. 2023)
    ``snapkv``, ``pyramidkv``   0      the observation window: min(64, budget // 2)
    ``tova``                    0      1 (kvpress; Oren et al. 2024 leave it to the score)
    ``knorm``                   0      0
    ``expected``                4      0 (kvpress)
    ==========================  =====  ==================================================

    The recent tokens give way where the sinks leave no room for them.

    Parameters
    ----------
    eviction : str
        A name of the table.
    budget : int
        Tokens kept in all.
    sinks : int, optional
        Instead of the table's.

    Returns
    -------
    AlwaysKept

    Raises
    ------
    OptionError
        If the name is unknown, or the sinks fill the budget.

    Examples
    --------
    >>> always_kept("streaming", 256), always_kept("snapkv", 512, sinks=4)
    (AlwaysKept(sinks=4, recent=252), AlwaysKept(sinks=4, recent=64))
    """
    if eviction not in DEFAULT_SINKS:
        raise OptionError(f"an eviction is one of {', '.join(DEFAULT_SINKS)}, not {eviction!r}")
    sinks = DEFAULT_SINKS[eviction] if sinks is None else sinks
    if not 0 <= sinks < budget:
        raise OptionError(
            f"{eviction}={budget} must keep more than its {sinks} sinks; raise the budget or set sinks=0"
        )
    half = max(1, budget // 2)
    window = min(OBSERVED_QUERIES, half)
    recent: dict[Eviction, int] = {
        "streaming": budget,
        "h2o": half,
        "snapkv": window,
        "tova": 1,
        "knorm": 0,
        "pyramidkv": window,
        "expected": 0,
    }
    return AlwaysKept(sinks, min(recent[eviction], budget - sinks))


def layer_budgets(
    eviction: Eviction, budget: int, num_layers: int, sinks: int | None = None
) -> tuple[int, ...]:
    """Return how many tokens each layer keeps per key head.

    All alike, but for PyramidKV (Cai et al. 2024, section 4.2): low layers look everywhere, high ones at
    few tokens. What is always kept stays so in each layer; of the rest, ``r`` on average, the last layer
    gets ``r // 20`` and the others more along a straight line, up to ``2r - r // 20`` in the first. Layers
    at equal distance from the middle are rounded together, so that the sum is exactly L times the budget.
    Unlike the published code the line does not depend on the prompt's length: a layer whose budget exceeds
    the prompt keeps the whole prompt, and leaves the difference unused.

    Parameters
    ----------
    eviction : str
    budget : int
        Tokens per layer and key head, on average.
    num_layers : int
        L.
    sinks : int, optional
        As in `always_kept`.

    Returns
    -------
    tuple of int
        L budgets, first layer first.

    Raises
    ------
    OptionError
        As `always_kept`.

    Examples
    --------
    >>> layer_budgets("snapkv", 128, 3)
    (128, 128, 128)

    64 tokens are the window; of the other 64 the last layer gets 64 // 20 = 3:

    >>> layer_budgets("pyramidkv", 128, 3)
    (189, 128, 67)
    """
    chosen = budget - sum(always_kept(eviction, budget, sinks))
    spread = chosen - chosen // STEEPNESS if eviction == "pyramidkv" else 0
    last = max(num_layers - 1, 1)
    # rint rounds x and -x to opposites, so each layer and its mirror image add up to twice the budget.
    offsets = [int(np.rint((num_layers - 1 - 2 * layer) * spread / last)) for layer in range(num_layers)]
    return tuple(budget + offset for offset in offsets)


def keep(scores: NDArray[Any], budget: int, sinks: int = 0, recent: int = 0) -> NDArray[np.int64]:
    """Return which held tokens stay: the first, the last, then those of the highest scores.

    Of equal scores the later token stays, so that equal scores throughout keep the most recent tokens.
    NaN counts as +inf: a token whose score is lost stays in sight.

    Parameters
    ----------
    scores : (G, S)
        Higher = keep, tokens in order of position.
    budget : int
        Tokens to keep per key head; all of them where S is no more.
    sinks, recent : int
        How many of the first and of the last tokens stay whatever their score.

    Returns
    -------
    (G, min(budget, S)) int64
        Indices of tokens, ascending.

    Raises
    ------
    OptionError
        If the budget has no room for the first and the last tokens.

    Examples
    --------
    >>> keep(np.array([[0.1, 0.9, 0.3, 0.3, 0.2]]), budget=3, recent=1).tolist()
    [[1, 3, 4]]

    StreamingLLM needs no score (Xiao et al. 2023):

    >>> keep(np.zeros((1, 9)), budget=5, sinks=2).tolist()
    [[0, 1, 6, 7, 8]]
    """
    if min(sinks, recent) < 0 or sinks + recent > budget:
        raise OptionError(f"a budget of {budget} cannot hold {sinks} first and {recent} last tokens")
    G, S = scores.shape
    if budget >= S:
        return np.tile(np.arange(S), (G, 1))
    choice = scores[:, sinks : S - recent]
    choice = np.where(np.isnan(choice), np.inf, choice)
    if budget == S - 1:  # as at every decode step
        return _all_but(sinks + choice.argmin(axis=1), S)  # argmin takes the first of equals
    kept = np.ones((G, S), bool)
    kept[:, sinks : S - recent] = _highest(choice, budget - sinks - recent)
    return np.flatnonzero(kept).reshape(G, budget) % S


def _all_but(dropped: NDArray[np.int64], S: int) -> NDArray[np.int64]:
    """Return the indices 0 .. S-1 without one of them in each row."""
    indices = np.arange(S - 1)
    return indices + (indices >= dropped[:, None])


def _highest(scores: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Mark the ``count`` highest of each row; of equal ones the last."""
    if count == 0:
        return np.zeros(scores.shape, bool)
    lowest_kept = np.partition(scores, -count, axis=1)[:, -count, None]  # much faster than sorting
    higher, equal = scores > lowest_kept, scores == lowest_kept
    places_left = count - higher.sum(axis=1, keepdims=True)
    equal_from_here_on = np.cumsum(equal[:, ::-1], axis=1)[:, ::-1]
    return higher | (equal & (equal_from_here_on <= places_left))
