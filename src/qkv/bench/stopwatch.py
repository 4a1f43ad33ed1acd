"""Time several ways of doing the same, fairly, on a machine that is not quiet."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Run = Callable[[], object]
"""A piece of work, ready to be done."""

Times = Mapping[str, tuple[float, ...]]
"""Seconds of each way, one for each round; those of one round stand at the same place."""

SHORT_SECONDS = 0.01
"""A shorter call is repeated to fill this time."""

MOST_REPEATS = 1000

WARM_SECONDS = 0.1
"""A shorter call is done once untimed before: the way before it may have emptied the caches."""

TRIAL_RUNS = 3

IDLE_STEP_SECONDS = 0.01
MOST_IDLE_STEPS = 100


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of what was measured several times."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least two values.

        Examples
        --------
        >>> Spread.of([4.0, 1.0, 2.0, 8.0, 3.0])
        Spread(median=3.0, low=2.0, high=4.0)
        """
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def times_as_fast(times: Times, ours: str, peer: str) -> Spread:
    """Return how many times as long the peer took as we did, round by round.

    Both met the same moment of the machine in a round, so the ratios spread less than the times.

    Examples
    --------
    >>> times_as_fast({"qkv": (1.0, 2.0, 1.0), "NumPy": (2.0, 8.0, 3.0)}, "qkv", "NumPy").median
    3.0
    """
    return Spread.of([theirs / own for own, theirs in zip(times[ours], times[peer], strict=True)])


def wait_until_idle(
    cpu_seconds: Callable[[], float] = time.process_time, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the threads of this process rest, one second at most.

    After a call a library's threads look out for more work, OpenBLAS's for 0.1 s, and hold the cores
    that the next library needs.
    """
    for _ in range(MOST_IDLE_STEPS):
        before = cpu_seconds()
        sleep(IDLE_STEP_SECONDS)
        if cpu_seconds() - before < IDLE_STEP_SECONDS / 10:
            return


@dataclass(frozen=True)
class Stopwatch:
    """Runs what is to be compared in turn, A B C A B C ..., so that a slow moment meets all.

    Parameters
    ----------
    pairs : int
        Rounds, at least 2.
    clock : callable
        Tells the time in seconds.
    rest : callable
        Is called before each timed run.

    Examples
    --------
    >>> ticks = iter(range(1000))
    >>> stopwatch = Stopwatch(pairs=2, clock=lambda: next(ticks), rest=lambda: None)
    >>> stopwatch.time_in_turn({"one": int, "other": str})
    {'one': (1.0, 1.0), 'other': (1.0, 1.0)}
    """

    pairs: int = 15
    clock: Callable[[], float] = time.perf_counter
    rest: Callable[[], None] = wait_until_idle

    def time_in_turn(self, runs: Mapping[str, Run]) -> dict[str, tuple[float, ...]]:
        """Return the seconds of one call of each, for each round."""
        estimates = {name: self._estimate(run) for name, run in runs.items()}
        rounds = [
            {name: self._time(run, estimates[name]) for name, run in runs.items()} for _ in range(self.pairs)
        ]
        return {name: tuple(seconds[name] for seconds in rounds) for name in runs}

    def best_seconds(self, run: Run) -> float:
        """Return the least of a few calls: enough to tell a faster way from a slower one."""
        estimate = self._estimate(run)
        if estimate >= WARM_SECONDS:
            return estimate
        return min(self._time(run, estimate) for _ in range(TRIAL_RUNS))

    def _estimate(self, run: Run) -> float:
        """Return about what one call takes; the first of all may compile, and a short one be disturbed."""
        seconds = min(self._seconds(run, 1), self._seconds(run, 1))
        return seconds if seconds >= WARM_SECONDS else min(seconds, self._seconds(run, 1))

    def _time(self, run: Run, estimate: float) -> float:
        """Return the seconds of one call, from as many calls as its estimate asks for."""
        self.rest()
        if estimate < WARM_SECONDS:
            run()
        return self._seconds(run, repeats_for(estimate))

    def _seconds(self, run: Run, repeats: int) -> float:
        start = self.clock()
        for _ in range(repeats):
            run()
        return (self.clock() - start) / repeats


def repeats_for(seconds: float) -> int:
    """Return how many calls of so many seconds are timed together.

    Examples
    --------
    >>> [repeats_for(seconds) for seconds in (1.0, 0.01, 0.003, 0.0)]
    [1, 1, 4, 1000]
    """
    return max(1, math.ceil(SHORT_SECONDS / max(seconds, SHORT_SECONDS / MOST_REPEATS)))
