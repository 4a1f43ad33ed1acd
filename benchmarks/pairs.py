"""Compare two ways of doing the same, fairly, on a machine that is not quiet."""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """How many times as long the first way takes as the second: median and quartiles over pairs."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.1f}-{self.high:.1f})"


def compare(first: Work, second: Work, pairs: int = 15, *, rest_seconds: float = 0) -> Ratio:
    """Run both in turn, A B A B ..., so that a slow moment of the machine meets both.

    Threads of one library may wait in a loop for more work and hold the cores that the other needs:
    a rest before each run lets them fall asleep.
    """
    first()
    second()
    ratios = [_seconds(first, rest_seconds) / _seconds(second, rest_seconds) for _ in range(pairs)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Ratio(median, low, high)


def peak_bytes(work: Work) -> int:
    """Return the most memory that Python and NumPy held at once during the work, above the start."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _seconds(work: Work, rest_seconds: float) -> float:
    time.sleep(rest_seconds)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
