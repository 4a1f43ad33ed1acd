"""How much of a pool holds tokens: one stream of requests through contiguous and paged allocation.

Requests wait in a line that never ends, first come first served. Each step every running request
grows by one token. A contiguous allocator sets aside a run when a request begins: for the longest
request there can be, for the prompt and the next power of two of its answer, or, were that known, for
exactly its tokens. A paged one gives a page when a token needs it; when none is left the request that
came last waits at the head of the line and begins anew with what it had (Kwon et al. 2023, section 4).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import cycle

import numpy as np

from qkv.errors import PlanError
from qkv.planner.allocators import BuddyAllocator, Pages
from qkv.planner.lengths import Lengths

WATERMARK = 0.01
"""Share of the pages that new requests leave free for the running ones to grow."""

WARM_UP = 4
"""How many times the pool's requests must have ended before counting begins."""


@dataclass(frozen=True)
class Utilisation:
    """What the slots of a pool were used for, as shares of all slots, on average over time.

    Parameters
    ----------
    strategy : str
    token_states : float
        Keys and values of tokens.
    reserved : float
        Set aside for tokens that do come later.
    internal : float
        Set aside for tokens that never come.
    external : float
        Free, or lost to rounding, and of no use to the next request.
    batch : float
        Requests that run at once.
    """

    strategy: str
    token_states: float
    reserved: float
    internal: float
    external: float
    batch: float

    @property
    def of_allocated(self) -> float:
        """Tokens' share of what is set aside: the paper's "utilisation" of paging, free pages not counted."""
        return self.token_states / (self.token_states + self.reserved + self.internal)


Reserve = Callable[[int, int, int], int]
"""Slots for a prompt and an answer, given the longest request."""

RESERVES: dict[str, Reserve] = {
    "max": lambda prompt, answer, longest: longest,
    "power of two": lambda prompt, answer, longest: min(longest, prompt + (1 << (answer - 1).bit_length())),
    "oracle": lambda prompt, answer, longest: prompt + answer,
}


def simulate_contiguous(
    strategy: str, lengths: Lengths, num_slots: int, longest: int, ends: int
) -> Utilisation:
    """Run a stream through runs of slots, set aside when a request begins.

    Parameters
    ----------
    strategy : {"max", "power of two", "oracle"}
    lengths : (n, 2) integers
        The requests in order; the stream begins again when it is through.
    num_slots : int
        Tokens the pool holds.
    longest : int
        Tokens of the longest request there can be.
    ends : int
        How many requests must end, after the first ones, while it is counted.
    """
    reserve, stream = RESERVES[strategy], _stream(lengths)
    buddies = BuddyAllocator(num_slots)
    tally = _Tally(num_slots)
    running: list[tuple[int, int, int, int, int]] = []  # end, start of the run, its size, prompt, answer
    now, waiting = 0, next(stream)
    while True:
        while (start := buddies.take(size := reserve(*waiting, longest))) is not None:
            prompt, answer = waiting
            heappush(running, (now + answer, start, size, prompt, answer))
            tally.begin(prompt, prompt + answer, size)
            waiting = next(stream)
        if not running:
            raise PlanError(f"a pool of {num_slots:,} slots has no run of {size:,} for one request")
        end, start, size, prompt, answer = heappop(running)
        tally.advance(end - now)
        now = end
        buddies.free(start, size)
        tally.end(prompt + answer, size)
        if tally.is_through(ends):
            return tally.result(strategy)


class _Tally:
    """Integrals over time of what slots are used for; between two events every request grows steadily."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.count = self.tokens = self.final = self.size = 0
        self.time = self.token_time = self.final_time = self.size_time = self.count_time = 0
        self.ended = self.largest = 0

    def begin(self, tokens: int, final: int, size: int) -> None:
        self.count += 1
        self.tokens += tokens
        self.final += final
        self.size += size
        self.largest = max(self.largest, self.count)

    def advance(self, steps: int) -> None:
        self.token_time += steps * self.tokens + self.count * steps * (steps - 1) // 2
        self.tokens += steps * self.count
        self.final_time += steps * self.final
        self.size_time += steps * self.size
        self.count_time += steps * self.count
        self.time += steps

    def end(self, final: int, size: int) -> None:
        self.count -= 1
        self.tokens -= final
        self.final -= final
        self.size -= size
        self.ended += 1
        if self.ended == WARM_UP * self.largest:
            self.time = self.token_time = self.final_time = self.size_time = self.count_time = 0

    def is_through(self, ends: int) -> bool:
        return self.ended >= WARM_UP * self.largest + ends and self.time > 0

    def result(self, strategy: str) -> Utilisation:
        area = self.time * self.num_slots
        return Utilisation(
            strategy,
            token_states=self.token_time / area,
            reserved=(self.final_time - self.token_time) / area,
            internal=(self.size_time - self.final_time) / area,
            external=1 - self.size_time / area,
            batch=self.count_time / self.time,
        )


def simulate_paged(lengths: Lengths, pages: Pages, page_size: int, ends: int) -> Utilisation:
    """Run a stream through pages that are given when a token needs one.

    Parameters
    ----------
    lengths : (n, 2) integers
    pages : Pages
        Pages to count with, or those of our own pool.
    page_size : int
        P.
    ends : int
        How many requests must end, after the first ones, while it is counted.

    Examples
    --------
    Requests of 8 + 8 tokens in pages of 16, one page each, hold 8 to 15 tokens: 11.5 on average.

    >>> from qkv.planner.allocators import CountedPages
    >>> used = simulate_paged(np.array([[8, 8]]), CountedPages(100), page_size=16, ends=500)
    >>> round(used.of_allocated, 3)
    0.719
    """
    line = _Line(_stream(lengths), pages, page_size)
    counted = [0, 0, 0, 0]  # steps, tokens, slots, requests
    largest = target = 0
    while not target or line.ended < target:
        line.admit()
        largest = max(largest, line.num_running)
        if not target and line.ended >= WARM_UP * largest:
            target = line.ended + ends
        if target:
            counted = [n + m for n, m in zip(counted, (1, *line.usage()), strict=True)]
        line.step()
    steps, tokens, slots, requests = counted
    area = steps * pages.num_pages * page_size
    return Utilisation(
        f"pages of {page_size}",
        token_states=tokens / area,
        reserved=0.0,
        internal=(slots - tokens) / area,
        external=1 - slots / area,
        batch=requests / steps,
    )


class _Line:
    """Running and waiting requests of a paged pool; arrays in the order in which requests began."""

    def __init__(self, stream: Iterator[tuple[int, int]], pages: Pages, page_size: int) -> None:
        self._stream, self._pages, self._P = stream, pages, page_size
        self._waiting: deque[tuple[int, int]] = deque()  # tokens held, tokens in the end
        self._tokens = np.zeros(0, np.int64)
        self._final = np.zeros(0, np.int64)
        self._held: list[list[int]] = []
        self._kept_free = int(WATERMARK * pages.num_pages)
        self.ended = 0

    @property
    def num_running(self) -> int:
        return len(self._held)

    def usage(self) -> tuple[int, int, int]:
        """Return tokens, slots and requests at this moment."""
        taken = self._pages.num_pages - self._pages.num_free
        return int(self._tokens.sum()), taken * self._P, self.num_running

    def admit(self) -> None:
        """Let waiting requests begin while their tokens find pages and some stay free."""
        begun: list[tuple[int, int]] = []
        while True:
            if not self._waiting:
                prompt, answer = next(self._stream)
                self._waiting.append((prompt, prompt + answer))
            tokens = self._waiting[0][0]
            needed = -(-tokens // self._P)
            if needed > self._pages.num_free - self._kept_free:
                break
            self._held.append(self._pages.take(needed))
            begun.append(self._waiting.popleft())
        if begun:
            new = np.array(begun, np.int64)
            self._tokens = np.concatenate([self._tokens, new[:, 0]])
            self._final = np.concatenate([self._final, new[:, 1]])
        if not self._held:
            raise PlanError(f"a pool of {self._pages.num_pages:,} pages is too small for {tokens:,} tokens")

    def step(self) -> None:
        """Let every running request grow by one token, and those that are complete leave."""
        for index in np.nonzero(self._tokens % self._P == 0)[0].tolist():
            if index >= len(self._held):  # sent back to the line meanwhile
                break
            while not self._pages.num_free and len(self._held) > index + 1:
                self._send_back()
            if not self._pages.num_free:
                self._send_back()
                break
            self._held[index] += self._pages.take(1)
        self._tokens += 1
        done = self._tokens >= self._final
        if done.any():
            self._leave(done)

    def _send_back(self) -> None:
        """Let the request that came last give its pages up and wait; what it has written stays as text."""
        self._pages.free(self._held.pop())
        self._waiting.appendleft((int(self._tokens[-1]), int(self._final[-1])))
        self._tokens, self._final = self._tokens[:-1], self._final[:-1]

    def _leave(self, done: np.ndarray) -> None:
        for index in np.nonzero(done)[0].tolist():
            self._pages.free(self._held[index])
        self._held = [pages for pages, is_done in zip(self._held, done.tolist(), strict=True) if not is_done]
        self._tokens, self._final = self._tokens[~done], self._final[~done]
        self.ended += int(done.sum())


def closed_form(mean_in_flight: float, page_size: int) -> float:
    """Return the share of allocated slots that hold tokens: the last page of each is half empty.

    L / (L + (P - 1) / 2) with L tokens in flight per request.

    Examples
    --------
    >>> round(closed_form(458, 16), 3), round(closed_form(81, 16), 3)
    (0.984, 0.915)
    """
    return mean_in_flight / (mean_in_flight + (page_size - 1) / 2)


def mean_in_flight(lengths: Lengths) -> float:
    """Return the tokens of a running request, on average over its steps: a long answer runs for longer."""
    prompts, answers = lengths[:, 0].astype(float), lengths[:, 1].astype(float)
    return float((answers * (prompts + (answers - 1) / 2)).sum() / answers.sum())


def _stream(lengths: Lengths) -> Iterator[tuple[int, int]]:
    return cycle([(int(prompt), int(answer)) for prompt, answer in lengths])
