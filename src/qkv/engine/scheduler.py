"""Who runs in a step, and what gives way when pages run out.

First come, first served, without exception: whoever runs came before everyone who waits, and what has to
give way is the newest that runs. So the oldest request is never held up, takes a chunk or a token in every
step, and is through in a number of steps known beforehand (`Request.most_steps`); then the next one is the
oldest. *No request waits for more steps than the sum of these numbers over itself and those before it.*

A text that gives way keeps its tokens and loses its pages. When it is its turn again it is read anew,
prompt and new tokens, and goes on as if nothing had been.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from qkv.cache import PagedCache, PagePool, Policy
from qkv.engine.prefixes import SharedPrefixes
from qkv.engine.requests import Choice, FinishReason
from qkv.engine.statistics import Memory
from qkv.errors import CacheFull, QKVError

EventKind = Literal["submit", "admit", "run", "fork", "preempt", "stop", "length", "abort", "error"]

LOG_EVENTS = 100_000
"""How many events a log keeps: the latest."""


@dataclass(frozen=True)
class Event:
    """One decision, or what led to one.

    Attributes
    ----------
    step : int
        The step it belongs to, or comes before.
    kind : EventKind
    request, choice : int
        Whose.
    tokens : int
        submit: of the prompt; admit: found in shared pages; run: run; the others: read or made so far.
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
    def nbytes(self) -> int:
        """Bytes of all its pages, those included that it shares."""
        return held_nbytes(self.cache)

    @property
    def reaches_end(self) -> bool:
        """Whether it is then known what comes behind the text."""
        return self.start + len(self.ids) == len(self.choice.ids)


@dataclass(frozen=True)
class Counts:
    """How many times a text gave way, and how many tokens were found in shared pages."""

    preemptions: int = 0
    cached_tokens: int = 0


class Scheduler:
    """Owns the queues, the caches and what they share.

    Parameters
    ----------
    pool : PagePool
        Where all pages come from.
    new_cache : callable
        Returns an empty cache of one sequence, of a policy, on that pool.
    max_batch : int
        How many texts run at once.
    chunk_tokens : int
        How many tokens of prompts are read in a step; each text that is past its prompt adds one of its own.
    prefix_sharing : bool

    Attributes
    ----------
    waiting : list of Choice
        Oldest first; all came after those that run.
    running : list of Choice
        Oldest first.
    log : deque of Event
        The latest decisions. The same requests, submitted and aborted before the same steps, give the
        same log, provided that their sampling has seeds or none.
    step : int
        Steps planned so far.
    counts : Counts
    """

    def __init__(
        self,
        pool: PagePool,
        new_cache: Callable[[Policy], PagedCache],
        *,
        max_batch: int,
        chunk_tokens: int,
        prefix_sharing: bool,
    ) -> None:
        self.pool, self.max_batch, self.chunk_tokens = pool, max_batch, chunk_tokens
        self.waiting: list[Choice] = []
        self.running: list[Choice] = []
        self.log: deque[Event] = deque(maxlen=LOG_EVENTS)
        self.step = 0
        self.counts = Counts()
        self._new_cache = new_cache
        self._prefixes = SharedPrefixes(pool) if prefix_sharing else None

    @property
    def num_running(self) -> int:
        """How many texts run, those included that wait for the prompt of another."""
        return sum(choice.num_texts for choice in self.running)

    @property
    def num_waiting(self) -> int:
        """How many texts wait."""
        return sum(choice.num_texts for choice in self.waiting)

    def submit(self, choices: list[Choice]) -> None:
        """Put the texts of a new request at the end of the line."""
        first, *others = choices
        first.followers = others
        self.waiting.append(first)
        self._note("submit", first, len(first.ids))

    def plan(self) -> list[Run]:
        """Decide what the next step runs, and see to it that it fits; nothing only if nobody is left."""
        self.step += 1
        planned = _Plan(self.chunk_tokens)
        gave_way = False
        for choice in list(self.running):
            if choice in self.running:
                gave_way |= self._plan_running(choice, planned)
        if not gave_way:
            self._admit(planned)
        return planned.runs

    def has_run(self, run: Run) -> None:
        """Take note of a run that is through: remember what it read, and let followers begin."""
        choice = run.choice
        P = run.cache.policy.page_size
        if self._prefixes is not None and choice.num_held // P > run.start // P:
            self._prefixes.remember(choice)
        choice.peak_nbytes = max(choice.peak_nbytes, run.nbytes)
        choice.evicted_tokens = sum(dropped.positions.size for dropped in run.cache.drops[0])

    def fork(self, choice: Choice) -> list[Choice]:
        """Let those that follow a choice, whose prompt has been read, begin from its cache; return them."""
        assert choice.cache is not None
        followers, choice.followers = choice.followers, []
        place = self.running.index(choice) + 1
        for follower in followers:
            follower.cache = choice.cache.fork()
            follower.prompt_logprobs = list(choice.prompt_logprobs)
            follower.cached_tokens, follower.admitted = choice.cached_tokens, choice.admitted
            self._note("fork", follower, len(choice.ids))
        self.running[place:place] = followers
        return followers

    def finish(self, choice: Choice, reason: FinishReason, error: QKVError | None = None) -> None:
        """Take a text out, wherever it is, and give its pages back; those who follow it go on."""
        choice.finish_reason, choice.error = reason, error
        self._note(reason, choice, len(choice.ids))
        leader = next((one for one in [*self.waiting, *self.running] if choice in one.followers), None)
        if leader is not None:
            leader.followers.remove(choice)
            return
        queue = self.running if choice in self.running else self.waiting
        place = queue.index(choice)
        heir = _take_over(choice)
        queue[place : place + 1] = [heir] if heir is not None else []
        if choice.cache is not None:
            choice.cache.free()
            choice.cache = None

    def preempt(self, choice: Choice) -> None:
        """Take the pages of a running text; it waits, before all who came after it."""
        assert choice.cache is not None
        self._note("preempt", choice, choice.num_held)
        choice.cache.free()
        choice.cache = None
        choice.preemptions += 1
        self.counts = replace(self.counts, preemptions=self.counts.preemptions + 1)
        self.running.remove(choice)
        place = sum(other.order < choice.order for other in self.waiting)
        self.waiting.insert(place, choice)

    def preempt_all(self) -> None:
        """Take the pages of all, the newest first: what an interrupted step has left of them is not known."""
        for choice in reversed(self.running[:]):
            self.preempt(choice)

    @property
    def memory(self) -> Memory:
        """What the caches take now."""
        held = predicted = 0
        for choice in self.running:
            assert choice.cache is not None
            held += held_nbytes(choice.cache)
            prompt_tokens = min(len(choice.request.prompt_ids), choice.num_held)
            predicted += choice.cache.predict_nbytes(choice.num_held, prompt_tokens)
        return Memory(self.pool.num_pages, self.pool.nbytes, self.pool.idle_bytes, held, predicted)

    def forget_prefixes(self) -> None:
        """Give back every page that is kept for later requests only."""
        if self._prefixes is not None:
            self._prefixes.forget()

    def check_integrity(self) -> None:
        """Raise AssertionError if queues, caches and pages contradict each other."""
        self.pool.check_integrity()
        if self._prefixes is not None:
            self._prefixes.check_integrity()
        orders = [choice.order for choice in [*self.running, *self.waiting]]
        assert orders == sorted(set(orders)), "someone runs before one who came earlier"
        assert self.num_running <= self.max_batch, "more run than may"
        assert all(choice.cache is None for choice in self.waiting), "one who waits holds pages"
        for choice in self.running:
            assert choice.cache is not None and choice.num_unread >= 1, "one who runs has nothing to run"
            choice.cache.check_integrity()
        followers = [one for choice in [*self.running, *self.waiting] for one in choice.followers]
        assert all(one.cache is None and not one.followers and one.num_new == 0 for one in followers)
        if not self.running:
            assert self.pool.nbytes == self.pool.idle_bytes, "pages are held for no one"

    def _plan_running(self, choice: Choice, planned: "_Plan") -> bool:
        """Plan the tokens of one who runs; return whether someone had to give way for them."""
        ids = planned.ids_of(choice)
        if not ids:
            return False
        assert choice.cache is not None
        nbytes, gave_way = choice.cache.step_nbytes(len(ids)), False
        while not self._fits(planned.nbytes + nbytes):
            newest = self.running[-1]
            if newest is choice and not planned.runs:
                self.finish(choice, "error", self._full(choice, nbytes))
                return False
            self.preempt(newest)
            gave_way = True
            if newest is choice:
                return True
        planned.add(choice, ids, nbytes)
        self._note("run", choice, len(ids))
        return gave_way

    def _admit(self, planned: "_Plan") -> None:
        """Let those who wait begin, in their order, as long as there are places, tokens and pages."""
        while self.waiting:
            choice = self.waiting[0]
            if self.num_running + choice.num_texts > self.max_batch or not planned.ids_of(choice):
                return
            choice.cache = self._new_cache(choice.request.policy)
            cached = 0 if self._prefixes is None else self._prefixes.adopt(choice)
            ids = planned.ids_of(choice)
            nbytes = choice.cache.step_nbytes(len(ids))
            if not self._has_room(choice, planned.nbytes, nbytes):
                if not self.running:
                    self.finish(choice, "error", self._full(choice, nbytes))
                    continue
                choice.cache.free()
                choice.cache = None
                return
            self.running.append(self.waiting.pop(0))
            choice.cached_tokens = max(choice.cached_tokens, cached)
            self.counts = replace(self.counts, cached_tokens=self.counts.cached_tokens + cached)
            self._note("admit", choice, cached)
            planned.add(choice, ids, nbytes)
            self._note("run", choice, len(ids))

    def _has_room(self, choice: Choice, planned_nbytes: int, nbytes: int) -> bool:
        """Whether a text may begin: alone when its first chunk fits, beside others when all of it does.

        All of it, and a page more for every text that runs: who begins shall not have to give way at once.
        """
        if not self._fits(planned_nbytes + nbytes):
            return False
        if not self.running or self.pool.budget_bytes is None:
            return True
        assert choice.cache is not None
        growing = [one.cache for one in self.running if one.cache is not None]
        growth = sum(cache.step_nbytes(cache.policy.page_size) for cache in growing)
        return self._fits(planned_nbytes + growth + choice.cache.step_nbytes(choice.num_unread))

    def _fits(self, nbytes: int) -> bool:
        budget = self.pool.budget_bytes
        return budget is None or nbytes <= budget - self.pool.nbytes + self.pool.idle_bytes

    def _full(self, choice: Choice, nbytes: int) -> CacheFull:
        """Return the error of a text that does not fit though no other is there."""
        held = 0 if choice.cache is None else held_nbytes(choice.cache)
        return cannot_fit(self._new_cache(choice.request.policy), held + nbytes)

    def _note(self, kind: EventKind, choice: Choice, tokens: int) -> None:
        self.log.append(Event(self.step, kind, choice.request.number, choice.index, tokens))


class _Plan:
    """What a step is going to run, and at most how many bytes it takes."""

    def __init__(self, chunk_tokens: int) -> None:
        self.runs: list[Run] = []
        self.nbytes = 0
        self._chunk_tokens = chunk_tokens
        self._num_read = 0

    def ids_of(self, choice: Choice) -> tuple[int, ...]:
        """Return the tokens that a choice may run: one, or what is left for reading."""
        if not choice.is_reading:
            return tuple(choice.ids[-1:])
        return choice.next_ids(self._chunk_tokens - self._num_read, may_exceed=not self._num_read)

    def add(self, choice: Choice, ids: tuple[int, ...], nbytes: int) -> None:
        run = Run(choice, ids, choice.num_held, reads=choice.is_reading)
        if run.reads:
            self._num_read += len(ids)
        self.runs.append(run)
        self.nbytes += nbytes


def held_nbytes(cache: PagedCache) -> int:
    """Return the bytes of all pages of a cache's sequences; one that several share counts in each."""
    return sum(one.nbytes for one in cache.sequences)


def cannot_fit(cache: PagedCache, nbytes: int) -> CacheFull:
    """Return the error of a request for which the whole budget of its cache's pool is too small."""
    budget, page_nbytes = cache.pool.budget_bytes, cache.layout.nbytes
    assert budget is not None, "without a budget everything fits"
    return CacheFull(-(-nbytes // page_nbytes), page_nbytes, budget, 0, budget)


def _take_over(choice: Choice) -> Choice | None:
    """Return the first of those who follow a choice that ends, in its place; ``None`` if there is none."""
    if not choice.followers:
        return None
    heir, *others = choice.followers
    heir.followers, heir.cache, heir.admitted = others, choice.cache, choice.admitted
    heir.prompt_logprobs, heir.cached_tokens = choice.prompt_logprobs, choice.cached_tokens
    choice.followers, choice.cache = [], None
    return heir
