"""From logits to the next token: a few filters in a fixed order, then one draw.

Repetition penalty, temperature, top-k, top-p, min-p, draw. All of it in float64 on NumPy, one
row of V logits at a time, so that the choice does not depend on the type the model ran in.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.errors import NumericError, OptionError
from qkv.ops.weights import softmax

Row = NDArray[np.float64]
"""(V,) logits; ``-inf`` = may not be chosen."""

GREEDY_BELOW_TEMPERATURE = 1e-5
"""Dividing by less would only overflow on the way to the same choice."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Parameters
    ----------
    temperature : float
        Divides the logits; 0 takes the most likely token, always.
    top_k : int, optional
        Keep only the k most likely tokens.
    top_p : float
        Keep the smallest set of most likely tokens whose probabilities reach ``top_p``.
    min_p : float
        Keep tokens at least ``min_p`` times as likely as the most likely one.
    repetition_penalty : float
        Makes tokens already seen less likely; 1 changes nothing.
    seed : int, optional
        Makes the draws reproducible; without one every run differs.

    Raises
    ------
    OptionError
        If a value has no meaning, such as ``top_p=1.5``.

    Examples
    --------
    >>> Sampling(temperature=0.8, top_p=0.95, seed=7).top_k is None
    True
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(0 <= self.temperature < np.inf, "temperature must be 0 (greedy) or more", self.temperature)
        counts = self.top_k is None or (isinstance(self.top_k, int | np.integer) and self.top_k >= 1)
        _require(counts, "top_k must be a whole number of at least 1, or None", self.top_k)
        _require(0 <= self.top_p <= 1, "top_p must be from 0 to 1", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p must be from 0 to 1", self.min_p)
        _require(self.repetition_penalty > 0, "repetition_penalty must be positive", self.repetition_penalty)
        _require(self.seed is None or self.seed >= 0, "seed must be 0 or more", self.seed)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE

    def generator(self) -> np.random.Generator:
        """Return the random generator of one run."""
        return np.random.default_rng(self.seed)


def sample(
    logits: NDArray, sampling: Sampling, generator: np.random.Generator, seen_ids: Iterable[int] = ()
) -> int:
    """Choose the next token.

    Parameters
    ----------
    logits : (V,)
        Of any float type.
    sampling : Sampling
    generator : numpy.random.Generator
        Gives one number per draw; greedy choice takes none.
    seen_ids : iterable of int
        Prompt and generated tokens so far, for the repetition penalty.

    Returns
    -------
    int
        A token id.

    Raises
    ------
    NumericError
        If a logit is NaN or infinitely high.

    Examples
    --------
    >>> sample(np.array([0.0, 2.0, 1.0]), Sampling(), np.random.default_rng(0))
    1
    """
    row = np.asarray(logits, np.float64)
    if not np.all(row < np.inf):
        raise NumericError(
            "a logit is NaN or infinitely high, so no token can be chosen; check the model's weights"
        )
    row = penalise_repetition(row, seen_ids, sampling.repetition_penalty)
    if sampling.is_greedy:
        return int(np.argmax(row))
    row = row / sampling.temperature
    if sampling.top_k is not None:
        row = keep_top_k(row, sampling.top_k)
    row = keep_top_p(row, sampling.top_p)
    row = keep_min_p(row, sampling.min_p)
    return draw(softmax(row), generator)


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
    seen = np.array(sorted(set(seen_ids)), dtype=np.int64)
    penalised = logits.copy()
    penalised[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return penalised


def keep_top_k(logits: Row, k: int) -> Row:
    """Keep the k largest logits; of equal ones the lower ids.

    Examples
    --------
    >>> keep_top_k(np.array([1.0, 3.0, 3.0, 2.0]), 2).tolist()
    [-inf, 3.0, 3.0, -inf]
    """
    return _keep(logits, _by_likelihood(logits)[:k])


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
    order = _by_likelihood(logits)
    probabilities = softmax(logits)[order]
    # What is already covered before each token; a hair is forgiven so that 0.5 + 0.3 covers 0.8.
    covered = np.cumsum(probabilities) - probabilities
    kept = covered < p - 1e-12
    kept[0] = True
    return _keep(logits, order[kept])


def keep_min_p(logits: Row, min_p: float) -> Row:
    """Keep tokens at least ``min_p`` times as likely as the most likely one.

    Examples
    --------
    >>> keep_min_p(np.log(np.array([0.5, 0.3, 0.2])), 0.5).round(2).tolist()
    [-0.69, -1.2, -inf]
    """
    if min_p == 0:
        return logits
    return np.where(logits >= logits.max() + np.log(min_p) - 1e-12, logits, -np.inf)


def draw(probabilities: Row, generator: np.random.Generator) -> int:
    """Draw one id: the first whose cumulative probability exceeds a uniform number.

    Examples
    --------
    >>> draw(np.array([0.0, 1.0, 0.0]), np.random.default_rng(0))
    1
    """
    cumulative = np.cumsum(probabilities)
    return int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))


def _by_likelihood(logits: Row) -> NDArray[np.int64]:
    return np.argsort(-logits, kind="stable")


def _keep(logits: Row, ids: NDArray[np.int64]) -> Row:
    kept = np.full_like(logits, -np.inf)
    kept[ids] = logits[ids]
    return kept


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise OptionError(f"{rule}, not {value}")
