"""One text as its caller sees it: pieces as they come, and what is known of it."""

from collections.abc import Callable, Iterator

from qkv.engine.requests import Choice, FinishReason
from qkv.engine.statistics import RequestStatistics
from qkv.errors import QKVError
from qkv.ops.logprobs import TokenLogprobs


class Stream:
    """One text that an engine makes: iterate over it to get pieces of text as they come.

    Nothing runs by itself. Asking for the next piece has the engine take steps until there is one, for all
    requests at once; what the others get waits for whoever asks them.

    Parameters
    ----------
    choices : list of Choice
        All texts of the request.
    index : int
        Which of them.
    step : callable
        Has the engine take a step.
    clock : callable
        Seconds.
    """

    def __init__(
        self, choices: list[Choice], index: int, step: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        self.choice = choices[index]
        self._choices = choices
        self._step, self._clock = step, clock

    def __iter__(self) -> Iterator[str]:
        """Give each new piece of text once; the pieces together are the text."""
        return self

    def __next__(self) -> str:
        """Return the next piece.

        Raises
        ------
        QKVError
            Behind the last piece, if the text has failed: `error`.
        """
        while not self.choice.pieces:
            if self.choice.error is not None:
                raise self.choice.error
            if self.choice.finish_reason is not None:
                raise StopIteration
            self._step()
        return self.choice.pieces.popleft()

    @property
    def choices(self) -> "tuple[Stream, ...]":
        """The n texts of the request, this one among them."""
        return tuple(
            Stream(self._choices, index, self._step, self._clock) for index in range(len(self._choices))
        )

    @property
    def number(self) -> int:
        """The request's place in the order of arrival, from 0."""
        return self.choice.request.number

    @property
    def index(self) -> int:
        """Which of the request's n texts it is, from 0."""
        return self.choice.index

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""
        return self.choice.request.prompt_ids

    @property
    def new_ids(self) -> tuple[int, ...]:
        """Token ids so far; one that ended the text is no part of it."""
        return tuple(self.choice.ids[len(self.prompt_ids) :])

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended: "stop" at an end id or a stop string, "length", "abort" or "error"; else ``None``."""
        return self.choice.finish_reason

    @property
    def error(self) -> QKVError | None:
        """Why it failed."""
        return self.choice.error

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """How likely each new token was; empty unless ``sampling.logprobs`` asks for it."""
        return tuple(self.choice.logprobs)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """How likely each token of the prompt was, from the second on, where that was asked for."""
        return tuple(self.choice.prompt_logprobs)

    @property
    def statistics(self) -> RequestStatistics:
        """What it took so far."""
        choice = self.choice
        now = self._clock() if choice.finished is None else choice.finished
        admitted = now if choice.admitted is None else choice.admitted
        first_token = now if choice.first_token is None else choice.first_token
        return RequestStatistics(
            queue_seconds=admitted - choice.submitted,
            prefill_seconds=first_token - admitted,
            decode_seconds=now - first_token,
            prompt_tokens=len(self.prompt_ids),
            new_tokens=choice.num_new,
            cached_tokens=choice.cached_tokens,
            preemptions=choice.preemptions,
            evicted_tokens=choice.evicted_tokens,
            peak_kv_bytes=choice.peak_nbytes,
        )
