"""Time that passes only where a test says so."""

from collections.abc import Callable
from typing import Any

from qkv.bench import Stopwatch


class Clock:
    """A clock that stands still until work is done."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, *seconds: float, result: Any = None) -> Callable[[], Any]:
        """Return a run that takes so many seconds, call by call, the last of them from then on."""
        left = list(seconds)

        def run() -> Any:
            self.done.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]
            return result

        return run

    def rest(self) -> None:
        """Note that there was a rest."""
        self.done.append("rest")

    def stopwatch(self, pairs: int) -> Stopwatch:
        """Return a stopwatch that reads this clock."""
        return Stopwatch(pairs, clock=self, rest=self.rest)
