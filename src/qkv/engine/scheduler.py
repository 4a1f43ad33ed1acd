"""Who runs in a step, and what gives way when pages run out.

First come, first served, without exception: whoever runs came before everyone who waits, and what has to
give way is the newest that runs. So the oldest request is never held up, takes a chunk or a token in every
step, and is through in a number of steps known beforehand (`Request.most_steps`); then the next one is the
oldest. *No request waits for more steps than the sum of these numbers over itself and those before it.*

(One that is alone and has no room for a chunk is read in smaller ones; then chunks of one token give the
bound. Where all is kept as it comes this cannot be, as who does not fit in full fails at once: it is for
windows, of which a chunk exceeds what stays, and for codes of whole pages.)

A text that gives way keeps its tokens and loses its pages. When it is its turn again it is read anew,
prompt and new tokens, and goes on as if nothing had been.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qkv.cache import PagedCache, PagePool, Policy
from qkv.engine.planning import Event, EventKind, Plan, Run, cannot_fit, held_nbytes
from qkv.engine.prefixes import SharedPrefixes
from qkv.engine.requests import Choice
from qkv.engine.statistics import Memory

LOG_EVENTS = 100_000
"""How many events a log keeps: the latest."""


@dataclass(frozen=True)
class Counts:
    """How many times a text gave way, and how many tokens were found in shared pages."""

    preemptions: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class HeldUp:
    """One for whom there was no room to begin.

    Attributes
    ----------
    choice : Choice
    cache : PagedCache
        An empty one of its policy.
    nbytes : int
        What must be to be had for it.
    known_tokens : int
        Of its beginning, in shared pages.
    """

    choice: Choice
    cache: PagedCache
    nbytes: int
    known_tokens: int


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
        self._held_up: HeldUp | None = None

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

    def plan(self) -> Plan:
        """Decide what the next step runs, and see to it that it fits; nothing only if nobody is left."""
        self.step += 1
        plan = Plan(self.chunk_tokens)
        gave_way = False
        for choice in list(self.running):
            if choice in self.running:
                gave_way |= self._go_on(choice, plan)
        if not gave_way or not plan.runs:
            self._admit(plan)
        return plan

    def has_run(self, run: Run) -> None:
        """Take note of a run that is through, and let others know of the pages that it has filled."""
        choice = run.choice
        P = run.cache.policy.page_size
        if self._prefixes is not None and choice.num_held // P > run.start // P:
            self._prefixes.remember(choice)
        choice.peak_nbytes = max(choice.peak_nbytes, held_nbytes(run.cache))

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

    def remove(self, choice: Choice, why: EventKind) -> None:
        """Take a text out, wherever it is, and give its pages back; those who follow it go on."""
        self._note(why, choice, len(choice.ids))
        leader = next((one for one in [*self.waiting, *self.running] if choice in one.followers), None)
        if leader is not None:
            leader.followers.remove(choice)
            return
        queue = self.running if choice in self.running else self.waiting
        place = queue.index(choice)
        heir = _take_over(choice)
        queue[place : place + 1] = [] if heir is None else [heir]
        self._free(choice)

    def preempt(self, choice: Choice) -> None:
        """Take the pages of a running text; it waits, before all who came after it."""
        self._note("preempt", choice, choice.num_held)
        self._free(choice)
        choice.preemptions += 1
        self.counts = replace(self.counts, preemptions=self.counts.preemptions + 1)
        self.running.remove(choice)
        place = sum(other.order < choice.order for other in self.waiting)
        self.waiting.insert(place, choice)

    def preempt_all(self) -> None:
        """Take the pages of all, the newest first: what an interrupted step has left of them is not known."""
        for choice in reversed(self.running[:]):
            self.preempt(choice)
        for choice in self.waiting:  # one was about to begin, perhaps, with pages that are known
            self._free(choice)

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

    def _go_on(self, choice: Choice, plan: Plan) -> bool:
        """Plan the tokens of one who runs; return whether someone had to give way for them."""
        ids = plan.ids_of(choice)
        if not ids:
            return False
        gave_way = False
        while not self._fits(plan.nbytes + self._step_nbytes(choice, ids)):
            newest = self.running[-1]
            if newest is choice and not plan.runs:
                self._run_alone(choice, ids, plan)
                return gave_way
            self.preempt(newest)
            gave_way = True
            if newest is choice:
                return True
        self._run(choice, ids, plan)
        return gave_way

    def _run(self, choice: Choice, ids: tuple[int, ...], plan: Plan) -> None:
        plan.add(choice, ids, self._step_nbytes(choice, ids))
        self._note("run", choice, len(ids))

    def _run_alone(self, choice: Choice, ids: tuple[int, ...], plan: Plan) -> None:
        """Plan as many tokens as fit though nobody else is there; a text of which none do has failed.

        What is kept for others may be in the way: an eviction writes to copies of pages that are, and of
        layers with windows they stay as long as another layer needs them. Then nothing is kept.
        """
        fewer = self._fitting(choice, ids)
        if not fewer:
            self.forget_prefixes()
            fewer = self._fitting(choice, ids)
        if fewer:
            self._run(choice, fewer, plan)
        else:
            self._fail(choice, ids, plan)

    def _fitting(self, choice: Choice, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens, or as many of the first as fit where they need not come in one step."""
        while ids and not self._fits(self._step_nbytes(choice, ids)):
            ids = () if choice.request.repeats_steps else ids[: len(ids) // 2]
        return ids

    def _admit(self, plan: Plan) -> None:
        """Let those who wait begin, in their order, as long as there are places, tokens and pages."""
        while self.waiting:
            choice = self.waiting[0]
            if self.num_running + choice.num_texts > self.max_batch or not plan.ids_of(choice):
                return
            if self._is_held_up(choice, plan):
                return
            cached = self._give_cache(choice, plan)
            if self.running and not self._has_room(choice, plan):
                self._hold_up(choice)
                return
            self._held_up = None  # who begins takes room, and uses pages that may be those of the next
            self.running.append(self.waiting.pop(0))
            choice.cached_tokens = max(choice.cached_tokens, cached)
            self.counts = replace(self.counts, cached_tokens=self.counts.cached_tokens + cached)
            self._note("admit", choice, cached)
            if len(self.running) == 1:
                self._run_alone(choice, plan.ids_of(choice), plan)
            else:
                self._run(choice, plan.ids_of(choice), plan)

    def _give_cache(self, choice: Choice, plan: Plan) -> int:
        """Let a text begin with pages that are known; return how many tokens they hold.

        Under an eviction a text may fit into a pool of its own only if it is read from its first token on.
        """
        choice.cache = self._new_cache(choice.request.policy)
        cached = 0 if self._prefixes is None else self._prefixes.adopt(choice)
        if not cached or self.running or not choice.request.repeats_steps:
            return cached
        if self._fits(self._step_nbytes(choice, plan.ids_of(choice))):
            return cached
        self._free(choice)
        choice.cache = self._new_cache(choice.request.policy)
        return 0

    def _has_room(self, choice: Choice, plan: Plan) -> bool:
        """Whether a text may begin beside others: when all that it has to read fits.

        That, and a page more for every text that runs: who begins shall not have to give way at once.
        """
        return self._fits(self._spoken_for(plan) + self._left_nbytes(choice))

    def _spoken_for(self, plan: Plan) -> int:
        """Return the bytes that are not to be had, of those that nobody holds."""
        if self.pool.budget_bytes is None:
            return 0
        growing = [one.cache for one in self.running if one.cache is not None]
        return plan.nbytes + sum(cache.step_nbytes(cache.policy.page_size) for cache in growing)

    def _left_nbytes(self, choice: Choice) -> int:
        return self._step_nbytes(choice, choice.ids[choice.num_held :])

    def _hold_up(self, choice: Choice) -> None:
        """Take back the cache of one who has no room, and note what it lacks."""
        taken = self._taken_nbytes
        needed = self._left_nbytes(choice)
        cache = choice.cache
        assert cache is not None
        self._free(choice)
        known = 0 if self._prefixes is None else self._prefixes.known_tokens(choice, cache)
        self._held_up = HeldUp(choice, cache, needed + taken - self._taken_nbytes, known)

    def _is_held_up(self, choice: Choice, plan: Plan) -> bool:
        """Whether it is known that a text has no room: it lacked some, and nothing has become better since.

        To find out takes pages, if only for a moment, and brings those nobody uses out of their order.
        """
        past = self._held_up
        if not self.running or past is None or past.choice is not choice:
            return False
        if self._fits(self._spoken_for(plan) + past.nbytes):
            return False
        if self._prefixes is None:
            return True
        return self._prefixes.known_tokens(choice, past.cache) <= past.known_tokens

    @property
    def _taken_nbytes(self) -> int:
        """Bytes that those hold who run."""
        return self.pool.nbytes - self.pool.idle_bytes

    def _fits(self, nbytes: int) -> bool:
        budget = self.pool.budget_bytes
        return budget is None or nbytes <= budget - self._taken_nbytes

    def _step_nbytes(self, choice: Choice, ids: Sequence[int]) -> int:
        """Return how many bytes running these tokens takes at most; nobody counts them without a budget."""
        assert choice.cache is not None
        return 0 if self.pool.budget_bytes is None else choice.cache.step_nbytes(len(ids))

    def _fail(self, choice: Choice, ids: tuple[int, ...], plan: Plan) -> None:
        """Take out a text that does not fit though no other is there, and those that would need as much."""
        assert choice.cache is not None
        error = cannot_fit(choice.cache, held_nbytes(choice.cache) + self._step_nbytes(choice, ids))
        for one in [*choice.followers, choice]:
            self.remove(one, "error")
            plan.failed.append((one, error))

    def _free(self, choice: Choice) -> None:
        if choice.cache is not None:
            choice.past_evicted_tokens = choice.evicted_tokens
            choice.cache.free()
            choice.cache = None

    def _note(self, kind: EventKind, choice: Choice, tokens: int) -> None:
        self.log.append(Event(self.step, kind, choice.request.number, choice.index, tokens))


def _take_over(choice: Choice) -> Choice | None:
    """Return the first of those who follow a choice that ends, in its place; ``None`` if there is none."""
    if not choice.followers:
        return None
    heir, *others = choice.followers
    heir.followers, heir.cache, heir.admitted = others, choice.cache, choice.admitted
    heir.prompt_logprobs, heir.cached_tokens = choice.prompt_logprobs, choice.cached_tokens
    choice.followers, choice.cache = [], None
    return heir
