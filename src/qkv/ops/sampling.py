"""From logits to the next token: a few rules in a fixed order, then one draw.

Penalties for repetition, presence and frequency, bias, what is ruled out (`qkv.ops.penalties`); temperature;
top-k, top-p, min-p (`qkv.ops.filters`); draw. All of it in float64 on NumPy, one row of V logits at a time,
so that the choice does not depend on the type the model ran in, nor on what else runs beside it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.arguments import shown
from qkv.errors import OptionError
from qkv.ops.filters import keep_min_p, keep_top_k, keep_top_p, possible_ids
from qkv.ops.logits import Row, likeliest, logit_row
from qkv.ops.penalties import (
    add_bias,
    completing_ids,
    penalise_presence_and_frequency,
    penalise_repetition,
    rule_out,
)
from qkv.ops.weights import softmax

GREEDY_BELOW_TEMPERATURE = 1e-5
"""Dividing by less would only overflow on the way to the same choice."""

LARGEST = 1e9
"""Of what is added to or divides a logit: more has no other effect, until it overflows."""


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
        Makes tokens of prompt and text less likely, by a factor; 1 changes nothing.
    seed : int, optional
        Makes the draws reproducible; without one every run differs.
    presence_penalty : float
        Is taken off the logit of every generated token.
    frequency_penalty : float
        Is taken off it for each time that the token was generated.
    logit_bias : mapping of int to float
        Is added to the logits of these tokens.
    bad_words : sequence of sequences of int
        Sequences of token ids that the text must not complete, wherever they began.
    min_tokens : int
        So many tokens are generated before one may end the text.
    logprobs : int, optional
        How many of the most likely tokens to report beside each chosen one, from the raw logits; 0
        reports the chosen one alone, ``None`` nothing.

    Raises
    ------
    OptionError
        If a value has no meaning, such as ``top_p=1.5``.

    Examples
    --------
    >>> Sampling(temperature=0.8, top_p=0.95, seed=7).top_k is None
    True
    >>> Sampling(bad_words=[[5], [7, 11]]).bad_words
    ((5,), (7, 11))
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    _: KW_ONLY
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        hot = _is_number(self.temperature) and self.temperature >= 0
        _require(hot, "temperature must be 0 (greedy) or more", self.temperature)
        self._require_between(0, 1, "top_p", "min_p")
        self._require_between(1 / LARGEST, LARGEST, "repetition_penalty")
        self._require_between(-LARGEST, LARGEST, "presence_penalty", "frequency_penalty")
        self._require_whole(1, "top_k", optional=True)
        self._require_whole(0, "seed", "logprobs", optional=True)
        self._require_whole(0, "min_tokens")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        object.__setattr__(self, "bad_words", _checked_words(self.bad_words))

    def _require_between(self, low: float, high: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            holds = _is_number(value) and low <= value <= high
            _require(holds, f"{name} must be from {low:g} to {high:g}", value)

    def _require_whole(self, least: int, *names: str, optional: bool = False) -> None:
        for name in names:
            value = getattr(self, name)
            holds = _is_whole(value, least) or (optional and value is None)
            or_none = ", or None" if optional else ""
            _require(holds, f"{name} must be a whole number of at least {least}{or_none}", value)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE

    @property
    def takes_highest(self) -> bool:
        """Whether the highest logit is taken as logits come, once a text may end."""
        changes = self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty
        return self.is_greedy and not (changes or self.logit_bias or self.bad_words)

    def generator(self, index: int = 0) -> np.random.Generator:
        """Return the random generator of one run, or of one of several from the same prompt.

        Parameters
        ----------
        index : int
            Which of the runs. Each draws its own numbers, and where there is a seed the same ones again.

        Examples
        --------
        >>> first, again, second = (Sampling(seed=7).generator(index).random() for index in (0, 0, 1))
        >>> first == again, first == second
        (True, False)
        """
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))

    def check_ids(self, V: int) -> None:
        """Raise `OptionError` if ``logit_bias`` or ``bad_words`` name a token that a model does not have.

        Examples
        --------
        >>> Sampling(logit_bias={5: 1.0, 101: 2.0}).check_ids(V=101)
        Traceback (most recent call last):
        qkv.errors.OptionError: logit_bias must name token ids from 0 to 100, not 101
        """
        for name, ids in (("logit_bias", self.logit_bias), ("bad_words", chain(*self.bad_words))):
            highest = max(ids, default=-1)
            _require(highest < V, f"{name} must name token ids from 0 to {V - 1}", highest)


def sample(
    logits: NDArray,
    sampling: Sampling,
    generator: np.random.Generator,
    seen_ids: Iterable[int] = (),
    *,
    num_new: int = 0,
    end_ids: Collection[int] = (),
) -> int:
    """Choose the next token.

    Parameters
    ----------
    logits : (V,)
        Of any float type.
    sampling : Sampling
    generator : numpy.random.Generator
        Gives one number per draw, whatever is drawn from; greedy choice takes none.
    seen_ids : iterable of int
        Prompt and generated tokens so far.
    num_new : int
        How many of them, at the end, were generated.
    end_ids : collection of int
        Those that end this text, which ``min_tokens`` puts off.

    Returns
    -------
    int
        A token id.

    Raises
    ------
    NumericError
        If a logit is NaN or infinitely high, or all are infinitely low.
    OptionError
        If a bias or a bad word is about no token, or no token is left.

    Examples
    --------
    >>> sample(np.array([0.0, 2.0, 1.0]), Sampling(), np.random.default_rng(0))
    1
    """
    if sampling.takes_highest and num_new >= sampling.min_tokens:
        return likeliest(logits)
    row = adjust(logit_row(logits), sampling, list(seen_ids), num_new, end_ids)
    if sampling.is_greedy:
        return int(np.argmax(row))
    row = narrow_down(row / sampling.temperature, sampling)
    possible = possible_ids(row)
    return int(possible[draw(softmax(row[possible]), generator)])


def adjust(
    logits: Row, sampling: Sampling, seen_ids: Sequence[int], num_new: int, end_ids: Collection[int]
) -> Row:
    """Apply what makes a token more or less likely by itself: penalties, bias, and what is ruled out."""
    sampling.check_ids(len(logits))
    row = penalise_repetition(logits, seen_ids, sampling.repetition_penalty)
    new_ids = seen_ids[len(seen_ids) - num_new :]
    row = penalise_presence_and_frequency(row, new_ids, sampling.presence_penalty, sampling.frequency_penalty)
    row = add_bias(row, sampling.logit_bias)
    too_early = end_ids if num_new < sampling.min_tokens else ()
    return rule_out(row, {*completing_ids(sampling.bad_words, seen_ids), *too_early})


def narrow_down(logits: Row, sampling: Sampling) -> Row:
    """Apply what keeps only likely tokens: top-k, then top-p of what it left, then min-p."""
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    return keep_min_p(keep_top_p(logits, sampling.top_p), sampling.min_p)


def draw(probabilities: Row, generator: np.random.Generator) -> int:
    """Draw one id: the first whose cumulative probability exceeds a uniform number.

    Examples
    --------
    >>> draw(np.array([0.0, 1.0, 0.0]), np.random.default_rng(0))
    1
    """
    cumulative = np.cumsum(probabilities)
    return int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))


def _checked_bias(bias: Any) -> dict[int, float]:
    rule = f"logit_bias must map token ids to numbers from -{LARGEST:g} to {LARGEST:g}"
    _require(isinstance(bias, Mapping), rule, bias)
    added = all(_is_number(value) and abs(value) <= LARGEST for value in bias.values())
    _require(added and all(_is_whole(token_id) for token_id in bias), rule, bias)
    return {int(token_id): float(value) for token_id, value in bias.items()}


def _checked_words(words: Any) -> tuple[tuple[int, ...], ...]:
    rule = "bad_words must be sequences of at least one token id, such as [[5], [7, 11]]"
    sequences = isinstance(words, Collection) and all(isinstance(word, Collection) for word in words)
    _require(sequences, rule, words)
    _require(all(len(word) > 0 and all(_is_whole(one) for one in word) for word in words), rule, words)
    return tuple(tuple(int(token_id) for token_id in word) for word in words)


def _is_number(value: Any) -> bool:
    numeric = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return numeric and bool(-np.inf < value < np.inf)


def _is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise OptionError(f"{rule}, not {shown(value)}")
