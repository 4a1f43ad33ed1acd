"""Requests in runs of slots that are set aside when they begin.

A run is made for the longest request there can be, for the prompt and the next power of two of its
answer, or, were that known, for exactly its tokens (Kwon et al. 2023, section 6.1).
"""

from collections.abc import Callable
from heapq import heappop, heappush

from qkv.errors import PlanError
from qkv.planner.allocators import BuddyAllocator
from qkv.planner.lengths import Lengths
from qkv.planner.simulation import WARM_UP, Utilisation, request_stream

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
    reserve, stream = RESERVES[strategy], request_stream(lengths)
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
