"""What a step is going to run, and the log of how that was decided."""

from dataclasses import dataclass
from typing import Literal

from qkv.cache import PagedCache
from qkv.engine.requests import Choice
from qkv.errors import CacheFull

EventKind = Literal["submit", "admit", "run", "fork", "preempt", "stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Event:
    """One decision, or what led to one.

    Attributes
    ----------
    step : int
        The step it belongs to, or comes behind.
    kind : EventKind
    request, choice : int
        Whose.
    tokens : int
        submit: of the prompt; admit: found in shared pages; run: run; the others: of prompt and text so far,
        or, where it gives way, those that have been run.
    """

    step: int
    kind: EventKind
    request: int
    choice: int
    tokens: int


@dataclass(frozen=True)
class Run:
    """The tokens of one text that a step runs, behind ``start`` that have been run."""

    choice: Choice
    ids: tuple[int, ...]
    start: int
    reads: bool
    """Whether they are of a prompt, or of a text that is read anew."""

    @property
    def cache(self) -> PagedCache:
        """Of the choice."""
        assert self.choice.cache is not None, "whoever runs has a cache"
        return self.choice.cache

    @property
    def decodes(self) -> bool:
        """Whether it is one token, of which nothing is wanted but the logits behind it."""
        return len(self.ids) == 1 and self.reaches_end and not self.choice.wants_prompt_logprobs

    @property
    def reaches_end(self) -> bool:
        """Whether it is then known what comes behind the text."""
        return self.start + len(self.ids) == len(self.choice.ids)


class Plan:
    """What a step is going to run, and at most how many bytes it takes.

    Parameters
    ----------
    chunk_tokens : int
        How many tokens of prompts are read in a step.

    Attributes
    ----------
    runs : list of Run
    failed : list of (Choice, CacheFull)
        Those that do not fit though no other is there.
    nbytes : int
    """

    def __init__(self, chunk_tokens: int) -> None:
        self.runs: list[Run] = []
        self.failed: list[tuple[Choice, CacheFull]] = []
        self.nbytes = 0
        self._chunk_tokens = chunk_tokens
        self._num_read = 0

    def ids_of(self, choice: Choice) -> tuple[int, ...]:
        """Return the tokens that a choice may run: one, or what is left for reading."""
        if not choice.is_reading:
            return tuple(choice.ids[-1:])
        return choice.next_ids(self._chunk_tokens - self._num_read, may_exceed=not self._num_read)

    def add(self, choice: Choice, ids: tuple[int, ...], nbytes: int) -> None:
        """Have a choice run tokens that take so many bytes at most."""
        run = Run(choice, ids, choice.num_held, reads=choice.is_reading)
        if run.reads:
            self._num_read += len(ids)
        self.runs.append(run)
        self.nbytes += nbytes


def held_nbytes(cache: PagedCache) -> int:
    """Return the bytes of all pages of a cache's sequences; one that several share counts in each."""
    return sum(one.nbytes for one in cache.sequences)


def cannot_fit(cache: PagedCache, nbytes: int, longest_tokens: int | None = None) -> CacheFull:
    """Return the error of a text for which the whole budget of its cache's pool is too small."""
    budget, page_nbytes = cache.pool.budget_bytes, cache.layout.nbytes
    assert budget is not None, "without a budget everything fits"
    return CacheFull(-(-nbytes // page_nbytes), page_nbytes, budget, 0, budget, longest_tokens)
