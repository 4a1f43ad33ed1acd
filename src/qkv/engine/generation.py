"""Generate text token by token: prefill the prompt, then decode, with or without a KV cache."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from qkv.arguments import as_whole, shown, whole_number
from qkv.cache import Cache, Policy
from qkv.engine.bad_words import spell
from qkv.errors import CacheFull, OptionError, PromptError
from qkv.models import Model, new_cache
from qkv.models.model import check_model
from qkv.ops.logprobs import TokenLogprobs, token_logprobs
from qkv.ops.sampling import Sampling, sample
from qkv.shapes import Logits
from qkv.tokens import StopMatcher, StreamDecoder, Tokenizer

FinishReason = Literal["stop", "length"]


class Generation:
    """One text in the making: iterate over it to get pieces of text as they come.

    Parameters
    ----------
    model : Model
        With a tokenizer.
    prompt : str or sequence of int
        Text, or ids that are taken as they are.
    sampling : Sampling
    max_tokens : int
        How many new tokens at most; fewer where the model's context ends.
    stop : sequence of str
        Texts that end the generation and are not part of it.
    stop_ids : iterable of int
        Ids that do so, beside those of the model.
    ignore_eos : bool
        Whether the model's own end ids are tokens like others.
    cache : Cache, optional
        Continued where it ends. ``None`` computes every earlier token anew at each step.
    clock : callable
        Seconds; for measuring.

    Attributes
    ----------
    tokenizer : Tokenizer
        The model's.
    prompt_ids, new_ids : list of int
    logprobs : list of TokenLogprobs
        Of the new tokens; empty unless ``sampling.logprobs`` asks for them.
    finish_reason : "stop", "length" or None
        ``None`` until the text has ended.
    prefill_seconds, decode_seconds : float
        Spent on the prompt up to the first new token, and on all later tokens.

    Raises
    ------
    PromptError
        If the prompt gives no token, one that the model does not have, or as many as the context holds.
    OptionError
        If a value has no meaning, or a stop id is none of the model's.
    """

    def __init__(
        self,
        model: Model,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        stop_ids: Iterable[int] = (),
        ignore_eos: bool = False,
        cache: Cache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        whole_number("max_tokens", max_tokens, least=1)
        self._model, self._sampling, self._cache, self._clock = model, sampling, cache, clock
        self.tokenizer = require_tokenizer(model)
        self._end_ids = read_end_ids(model, stop_ids, ignore_eos=ignore_eos)
        sampling.check_ids(model.vocab_size)
        # What begins a text belongs at its beginning, not where a cache is continued.
        begins = cache is None or cache.length == 0
        self.prompt_ids = (
            self.tokenizer.encode(prompt, add_special_tokens=begins)
            if isinstance(prompt, str)
            else list(read_ids(model, prompt))
        )
        held = 0 if cache is None else cache.length
        self._max_tokens = min(max_tokens, room_behind(self.prompt_ids, held, model.context_length))
        self._stops = StopMatcher(stop)
        self._generator = sampling.generator()
        self.new_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._num_steps = 0
        self._pieces = self._text()

    def __iter__(self) -> Iterator[str]:
        """Give each new piece of text once; the pieces together are the text.

        A loop that was left is gone on with by the next one. One that an error ended is not: no more comes,
        and ``finish_reason`` stays ``None``. Begin another with the ids so far, as `generate` says of its
        cache.

        Raises
        ------
        CacheFull
            If the pages of the cache do not fit into its budget; what came before it is the text so far.
        """
        return self._pieces

    def _text(self) -> Iterator[str]:
        decoder = self.tokenizer.stream()
        for token_id in self.prompt_ids:  # so that the first new word keeps the space before it
            decoder.push(token_id)
        try:
            for token_id in self._new_tokens():
                yield from _nonempty(self._stops.push(decoder.push(token_id)))
                if self._stops.stopped:
                    self.finish_reason = "stop"
                    return
        except CacheFull:
            yield from _nonempty(self._held_back(decoder))
            raise
        rest = self._held_back(decoder)
        if self._stops.stopped:
            self.finish_reason = "stop"
        yield from _nonempty(rest)

    def _held_back(self, decoder: StreamDecoder) -> str:
        """Return the text that waited for what would come behind it."""
        return self._stops.push(decoder.finish()) + self._stops.finish()

    @property
    def context_length(self) -> int:
        """How many tokens the model was made for, prompt and new ones together."""
        return self._model.context_length

    @property
    def wants_logprobs(self) -> bool:
        """Whether ``sampling.logprobs`` asks for them."""
        return self._sampling.logprobs is not None

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens over the time to the first new token."""
        return _rate(len(self.prompt_ids), self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, an end token included, over the time they took; 0 if there was only one."""
        return _rate(self._num_steps - 1, self.decode_seconds)

    def _new_tokens(self) -> Iterator[int]:
        """Yield new ids until the text ends by itself or by length."""
        unseen = self.prompt_ids
        while len(self.new_ids) < self._max_tokens:
            started = self._clock()
            logits = self._next_logits(unseen)
            token_id = self._choose(logits)
            self._record(self._clock() - started)
            if token_id in self._end_ids:
                self.finish_reason = "stop"
                return
            self.new_ids.append(token_id)
            if self.wants_logprobs:
                self.logprobs.append(token_logprobs(logits, token_id, self._sampling.logprobs or 0))
            yield token_id
            unseen = [token_id]
        self.finish_reason = "length"

    def _next_logits(self, unseen: Sequence[int]) -> Logits:
        """Run the tokens the cache has not seen, or the whole text where there is no cache."""
        ids = unseen if self._cache is not None else self.prompt_ids + self.new_ids
        return self._model.next_logits(np.asarray(ids), self._cache)

    def _choose(self, logits: Logits) -> int:
        return sample(
            logits,
            self._sampling,
            self._generator,
            self.prompt_ids + self.new_ids,
            num_new=len(self.new_ids),
            end_ids=self._end_ids,
        )

    def _record(self, seconds: float) -> None:
        self._num_steps += 1
        if self.new_ids:
            self.decode_seconds += seconds
        else:
            self.prefill_seconds += seconds


def generate(
    model: Model,
    prompt: str | Sequence[int],
    *,
    cache: Cache | Policy | str | None = None,
    max_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    bad_words: Sequence[str | Sequence[int]] = (),
    min_tokens: int = 0,
    logprobs: int | None = None,
    stop: Sequence[str] = (),
    stop_ids: Iterable[int] = (),
    ignore_eos: bool = False,
) -> Generation:
    """Continue a prompt, piece by piece.

    Parameters
    ----------
    model : Model
        From `qkv.load`.
    prompt : str or sequence of int
        Text, or ids.
    cache : Cache, Policy or str, optional
        From `qkv.new_cache`; continued where it ends. Afterwards it holds the prompt and every new
        token but the last, which has been chosen but not run: begin with it, as an id, to go on from
        there. A policy, such as ``"int8"``, makes a fresh one of it, and so does leaving it out.
    max_tokens : int
        How many new tokens at most.
    temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty
        See `Sampling`; the default takes the most likely token each time.
    seed, logit_bias, min_tokens, logprobs
        See `Sampling`.
    bad_words : sequence of str or of sequences of int
        What the text must not contain: sequences of token ids, or texts, in the spellings of
        `qkv.engine.bad_words`.
    stop : sequence of str
        Texts that end the generation and are not part of it.
    stop_ids : iterable of int
        Ids that do so, beside those of the model.
    ignore_eos : bool
        Whether the model's own end ids are tokens like others.

    Returns
    -------
    Generation
        Iterate over it for pieces of text; afterwards it knows ids, times and why it ended.

    Raises
    ------
    PromptError
        If the prompt gives no token, one that the model does not have, or as many as the context holds.
    OptionError
        If a sampling value has no meaning.

    Examples
    --------
    ::

        for piece in qkv.generate(model, "Once upon a time", max_tokens=64):
            print(piece, end="")
    """
    check_model(model)
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias={} if logit_bias is None else logit_bias,
        bad_words=spell(bad_words, model.tokenizer),
        min_tokens=min_tokens,
        logprobs=logprobs,
    )
    ends = {"stop": stop, "stop_ids": stop_ids, "ignore_eos": ignore_eos}
    cache = _cache_for(model, cache)
    return Generation(model, prompt, sampling, max_tokens=max_tokens, cache=cache, **ends)


def _cache_for(model: Model, cache: Cache | Policy | str | None) -> Cache:
    """Return a cache as it is, or a new one of a policy."""
    if cache is None or isinstance(cache, Policy | str):
        return new_cache(model, cache or "")
    if not hasattr(cache, "append"):
        raise OptionError(f"cache takes what qkv.new_cache(model, 'int8') returns, not {shown(cache)}")
    return cache


def require_tokenizer(model: Model) -> Tokenizer:
    """Return the model's tokenizer.

    Raises
    ------
    PromptError
        If it has none.
    """
    if model.tokenizer is None:
        raise PromptError("the model's folder has no tokenizer.json, so text cannot be generated; add it")
    return model.tokenizer


def read_ids(model: Model, prompt: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of a prompt that is given in ids.

    Raises
    ------
    PromptError
        If it is no sequence of ids, or one is none of the model's.
    """
    ids = _whole_ids(prompt)
    if ids is None:
        raise PromptError(f"a prompt is text or a sequence of token ids, not {shown(prompt)}")
    unknown = [token_id for token_id in ids if not 0 <= token_id < model.vocab_size]
    if unknown:
        raise PromptError(f"a prompt's ids are from 0 to {model.vocab_size - 1}, not {unknown[0]}")
    return ids


def read_end_ids(model: Model, stop_ids: Iterable[int], *, ignore_eos: bool) -> frozenset[int]:
    """Return the ids that end a text: the model's own, unless they are ignored, and those asked for.

    Raises
    ------
    OptionError
        If an id is none of the model's.
    """
    own = _whole_ids(stop_ids)
    if own is None:
        raise OptionError(f"stop_ids are token ids, such as [0], not {shown(stop_ids)}")
    unknown = sorted(token_id for token_id in own if not 0 <= token_id < model.vocab_size)
    if unknown:
        raise OptionError(f"stop_ids are from 0 to {model.vocab_size - 1}, not {unknown[0]}")
    return frozenset(own) if ignore_eos else model.end_ids.union(own)


def _whole_ids(ids: Iterable[int]) -> tuple[int, ...] | None:
    """Return ids as they are, ``None`` if something is none; bytes are text that nobody has decoded."""
    if isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Iterable):
        return None
    given = [as_whole(token_id) for token_id in ids]
    whole = tuple(token_id for token_id in given if token_id is not None)
    return whole if len(whole) == len(given) else None


def room_behind(prompt_ids: Sequence[int], held: int, context_length: int) -> int:
    """Return how many tokens fit behind a prompt that follows ``held`` tokens in a cache.

    Raises
    ------
    PromptError
        If the prompt has no token, or there is no room.

    Examples
    --------
    >>> room_behind([5, 7, 11], held=2, context_length=13)
    8
    """
    if not prompt_ids:
        raise PromptError("the prompt gives no token: this tokenizer adds none by itself; write some text")
    room = context_length - held - len(prompt_ids)
    if room < 1:
        behind = f" behind the {held} in the cache" if held else ""
        longest = context_length - held - 1
        advice = f"shorten it to at most {longest}" if longest > 0 else "begin with a new cache, or trim it"
        raise PromptError(
            f"the prompt has {len(prompt_ids)} tokens{behind}, but the model's context is "
            f"{context_length}; {advice}"
        )
    return room


def _nonempty(text: str) -> Iterator[str]:
    if text:
        yield text


def _rate(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if seconds > 0 and num_tokens > 0 else 0.0
