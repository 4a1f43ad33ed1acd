"""Requests in pages, each given when a token needs it.

When none is left the request that came last waits at the head of the line, and begins anew with the
tokens it had (Kwon et al. 2023, section 4.5).
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from qkv.errors import PlanError
from qkv.planner.allocators import Pages
from qkv.planner.lengths import Lengths
from qkv.planner.simulation import WARM_UP, Utilisation, request_stream

WATERMARK = 0.01
"""Share of the pages that new requests leave free for the running ones to grow."""


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
    line = _Line(request_stream(lengths), pages, page_size)
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
