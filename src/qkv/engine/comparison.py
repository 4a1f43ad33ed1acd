"""How far caches of different policies lead a model from what it says with the full float32 cache.

All policies go through one text in step, each with a cache of its own, and are fed the same tokens
whatever they would have chosen (teacher forcing). At each token the model with the full cache says ``p``,
the model with the other cache ``q``, both over V tokens, and the loss is
``KL(p || q) = sum_v p_v (log p_v - log q_v)``, in nats: 0 where nothing was lost. Of all this only two
rows of V numbers are held at a time.

Where the text is what the full cache itself chooses, step by step the most likely token, a policy's first
other choice is the very place where a text of its own would part from it.

Other models can walk along with the full cache: so what smaller weights cost is told in the same figures.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.arguments import shown, whole_number
from qkv.cache import PagedCache, Policy
from qkv.cache.occupancy import held_mask
from qkv.engine.compared import Compared, Comparison, Divergence, NotCompared
from qkv.engine.generation import read_ids, require_tokenizer, room_behind
from qkv.errors import NumericError, OptionError, PromptError, QKVError
from qkv.models import Model, new_cache
from qkv.models.model import check_model

NEW_TOKENS = 128
"""How many tokens the full cache adds to a prompt where no number is given."""

LogProbs = NDArray[np.float64]
"""(V,) natural logarithms of probabilities."""

Step = Callable[[int, int], None]
"""Told how many tokens of the text are done, of how many."""


def compare(
    model: Model,
    prompt: str | Sequence[int],
    policies: Sequence[Policy | str] | None = None,
    *,
    text: str | Sequence[int] | None = None,
    max_tokens: int | None = None,
    others: Mapping[str, Model] | None = None,
    on_step: Step | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Run policies, and other models, in step through one text; measure each against the full float32 cache.

    Parameters
    ----------
    model : Model
    prompt : str or sequence of int
        Read at once, as a prompt is.
    policies : sequence of Policy or str, optional
        One of each kind when left out: `default_policies`. Each is run once.
    text : str or sequence of int, optional
        What stands behind the prompt and is scored. When left out, it is what the model itself writes
        with the full cache, always the most likely token, until it ends the text; the token that ends
        it counts.
    max_tokens : int, optional
        How many tokens of the text at most: all of them when left out, or 128 new ones. Never more than
        the model's context holds.
    others : mapping of str to Model, optional
        By their names, models that say what the same model says with other weights: loaded with
        ``weights="int8"``, say. Each runs with the full cache.
    on_step : callable, optional
        Called after each token with how many are done, and how many there are at most.
    clock : callable
        Seconds; for measuring.

    Returns
    -------
    Comparison

    Raises
    ------
    PromptError
        If prompt or text give no token, or the prompt fills the context.
    OptionError
        If a policy contradicts itself, ``max_tokens`` is less than 1, or another model has other token ids.
    NumericError
        If the logits with the full cache are not all finite.

    Examples
    --------
    ::

        found = compare(model, "Once upon a time", ["int8", "int4", "h2o=64"])
        for row in found.compared:
            print(row.policy, row.mean_kl, row.nbytes)
        small = qkv.load("folder", weights="int8")
        (row,) = compare(model, "Once upon a time", [], others={"int8": small}).compared
    """
    check_model(model)
    others = {} if others is None else others
    _check_alike(model, others)
    prompt_ids, given = _ids(model, prompt, begins=True), _given_ids(model, text)
    count = _num_tokens(given, max_tokens, room_behind(prompt_ids, 0, model.context_length))
    if policies is None:
        policies = default_policies(len(prompt_ids), len(prompt_ids) + count)
    if isinstance(policies, Policy | str) or not isinstance(policies, Iterable):
        example = str(policies) if isinstance(policies, Policy | str) else "int8"
        raise OptionError(f"policies is a list, such as [{example!r}], not {shown(policies)}")
    asked = [policy if isinstance(policy, Policy) else Policy.parse(policy) for policy in policies]
    full = _Follower(model, Policy(), clock)
    rows = [_admitted(model, policy, clock) for policy in dict.fromkeys(asked)]
    rows += [_Follower(other, Policy(), clock, name) for name, other in others.items()]
    text_ids: list[int] = []
    unseen = prompt_ids
    for position in range(count):
        expected = full.read(unseen)
        token_id = int(np.argmax(expected)) if given is None else given[position]
        full.judge(expected, expected, token_id)
        rows = [_followed(row, unseen, expected, token_id) for row in rows]
        text_ids.append(token_id)
        if on_step is not None:
            on_step(len(text_ids), count)
        if given is None and token_id in model.end_ids:
            break
        unseen = [token_id]
    results = tuple(row.result() if isinstance(row, _Follower) else row for row in rows)
    return Comparison(tuple(prompt_ids), tuple(text_ids), full.result(), results)


def default_policies(prompt_tokens: int, num_tokens: int) -> tuple[str, ...]:
    """Return one policy of each kind, with windows and budgets of a quarter.

    Of the whole text for those that act at every step, of the prompt for those that act behind it, and at
    least 8 tokens.

    Examples
    --------
    >>> default_policies(prompt_tokens=400, num_tokens=512)
    ('fp16', 'bf16', 'fp8-e4m3', 'fp8-e5m2', 'int8', 'int8-kivi', 'int4', 'window=128', 'streaming=128',
     'h2o=128', 'tova=128', 'knorm=128', 'snapkv=100', 'pyramidkv=100', 'expected=100', 'int8,h2o=128',
     'int4,snapkv=100')
    """
    elements = "fp16", "bf16", "fp8-e4m3", "fp8-e5m2", "int8", "int8-kivi", "int4"
    of_text, of_prompt = max(8, num_tokens // 4), max(8, prompt_tokens // 4)
    at_every_step = (f"{name}={of_text}" for name in ("window", "streaming", "h2o", "tova", "knorm"))
    behind_the_prompt = (f"{name}={of_prompt}" for name in ("snapkv", "pyramidkv", "expected"))
    both = f"int8,h2o={of_text}", f"int4,snapkv={of_prompt}"
    return *elements, *at_every_step, *behind_the_prompt, *both


def log_probabilities(logits: NDArray[Any]) -> LogProbs:
    """Return the log-softmax of logits, in float64.

    Parameters
    ----------
    logits : (V,)

    Raises
    ------
    NumericError
        If a logit is not finite: nothing can be said about such a choice.

    Examples
    --------
    >>> np.exp(log_probabilities(np.log([1.0, 3.0]))).round(9).tolist()
    [0.25, 0.75]
    """
    row = np.asarray(logits, np.float64)
    if not np.isfinite(row).all():
        raise NumericError("a logit is NaN or infinite, so there are no probabilities to compare")
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def kl_divergence(p: LogProbs, q: LogProbs) -> float:
    """Return ``KL(p || q)`` in nats, of two rows of log-probabilities.

    Examples
    --------
    Half of the mass sits where ``q`` is half as large, a quarter where it is twice as large:
    ``1/2 log 2 - 1/4 log 2``.

    >>> p, q = np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.5, 0.25])
    >>> kl_divergence(p, p), round(kl_divergence(p, q), 4), round(0.25 * float(np.log(2)), 4)
    (0.0, 0.1733, 0.1733)
    """
    # Never negative, but for rounding.
    return max(0.0, float(np.exp(p) @ (p - q)))


class _Follower:
    """One policy or other model on its way through the text: its cache, and what was found so far."""

    def __init__(self, model: Model, policy: Policy, clock: Callable[[], float], weights: str = "") -> None:
        self.policy, self.weights = policy, weights
        self._model, self._clock = model, clock
        self._cache: PagedCache = new_cache(model, policy)
        self._seconds: list[float] = []
        self._kl: list[float] = []
        self._agrees: list[bool] = []
        self._log_probs: list[float] = []
        self._divergence: Divergence | None = None

    def read(self, ids: Sequence[int]) -> LogProbs:
        """Run tokens and return how likely each next one is."""
        started = self._clock()
        logits = self._model.next_logits(np.asarray(ids), self._cache)
        self._seconds.append(self._clock() - started)
        return log_probabilities(logits)

    def judge(self, expected: LogProbs, given: LogProbs, token_id: int) -> None:
        """Note how far one row is from the full cache's, and how likely it makes the text's token."""
        expected_id, chosen_id = int(np.argmax(expected)), int(np.argmax(given))
        if chosen_id != expected_id and self._divergence is None:
            self._divergence = Divergence(len(self._kl), expected_id, chosen_id)
        self._kl.append(kl_divergence(expected, given))
        self._agrees.append(chosen_id == expected_id)
        self._log_probs.append(float(given[token_id]))

    @property
    def position(self) -> int:
        """How many tokens of the text have been judged."""
        return len(self._kl)

    def result(self) -> Compared:
        """Return what was found."""
        held = held_mask(self._cache)
        held.flags.writeable = False
        return Compared(
            policy=self.policy,
            kl=tuple(self._kl),
            agrees=tuple(self._agrees),
            log_probs=tuple(self._log_probs),
            divergence=self._divergence,
            nbytes=self._cache.nbytes,
            peak_nbytes=self._cache.pool.peak_nbytes,
            dropped_tokens=sum(dropped.positions.size for dropped in self._cache.drops[0]),
            prefill_seconds=self._seconds[0],
            decode_seconds=sum(self._seconds[1:]),
            held=held,
            weights=self.weights,
        )


def _check_alike(model: Model, others: Mapping[str, Model]) -> None:
    for name, other in others.items():
        if other.vocab_size != model.vocab_size or other.context_length < model.context_length:
            raise OptionError(
                f"{name!r} must be the same model with other weights, of V = {model.vocab_size} and a "
                f"context of {model.context_length}, not of {other.vocab_size} and {other.context_length}"
            )


def _admitted(model: Model, policy: Policy, clock: Callable[[], float]) -> _Follower | NotCompared:
    """Return a follower, or why the policy does not fit this model."""
    try:
        return _Follower(model, policy, clock)
    except OptionError as error:
        return NotCompared(policy, str(error))


def _followed(
    row: _Follower | NotCompared, ids: Sequence[int], expected: LogProbs, token_id: int
) -> _Follower | NotCompared:
    """Take a row one step further; one that fails is out, and the others go on."""
    if isinstance(row, NotCompared):
        return row
    try:
        row.judge(expected, row.read(ids), token_id)
    except QKVError as error:
        reason = f"failed behind {row.position} tokens of the text: {error}"
        return NotCompared(row.policy, reason, row.weights)
    return row


def _ids(model: Model, text: str | Sequence[int], *, begins: bool) -> list[int]:
    if not isinstance(text, str):
        return list(read_ids(model, text))
    return require_tokenizer(model).encode(text, add_special_tokens=begins)


def _given_ids(model: Model, text: str | Sequence[int] | None) -> list[int] | None:
    if text is None:
        return None
    ids = _ids(model, text, begins=False)
    if not ids:
        raise PromptError("the text behind the prompt gives no token to score; give some, or no text at all")
    return ids


def _num_tokens(given: list[int] | None, max_tokens: int | None, room: int) -> int:
    if max_tokens is not None:
        whole_number("max_tokens", max_tokens, least=1)
    most = NEW_TOKENS if given is None else len(given)
    wanted = most if max_tokens is None else max_tokens
    return min(room, wanted if given is None else min(wanted, most))
