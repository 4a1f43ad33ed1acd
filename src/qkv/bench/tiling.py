"""The same attention dense, tiled, and as `attend` chooses: time, and memory at its peak."""

import tracemalloc
from dataclasses import dataclass, replace
from functools import partial

from qkv.bench.attention_work import AttentionCall
from qkv.bench.comparison import Instruments, Way, compare
from qkv.bench.limits import Limits
from qkv.bench.measurement import Result, Workload
from qkv.bench.stopwatch import Run
from qkv.bench.textbook import textbook
from qkv.ops import attend
from qkv.ops.attention import attend_by, dense_path, tiled_path

HEADS, HEAD_SIZE = 8, 64


@dataclass(frozen=True)
class Tiling:
    """A text of ``n`` tokens that sees itself, by every path of our own."""

    n: int

    @property
    def call(self) -> AttentionCall:
        """The call that is measured."""
        return AttentionCall(1, HEADS, HEADS, self.n, self.n, HEAD_SIZE)

    @property
    def work(self) -> Workload:
        """The piece of work."""
        return self.call.workload("tiling", {"H": HEADS, "D": HEAD_SIZE, "n": self.n})

    def measure(self, instruments: Instruments) -> list[Result]:
        """Compare what `attend` takes with the formula and with the paths in NumPy."""
        q, k, v = self.call.draw()
        paths = {
            "textbook": partial(textbook, q, k, v),
            "dense": lambda: attend_by(dense_path, q, k, v).output,
            "tiled": lambda: attend_by(tiled_path, q, k, v).output,
        }
        run = partial(attend, q, k, v)
        ways = [Way(name, path) for name, path in paths.items()]
        timed = compare(self.work, run, ways, replace(instruments, limits=Limits()))
        peaks = {name: peak_bytes(path) for name, path in {"qkv": run, **paths}.items()}
        return [replace(timed, peak_bytes=peaks)]


def peak_bytes(run: Run) -> int:
    """Return the most memory that Python and NumPy held at once during a run, above the start.

    Examples
    --------
    >>> peak_bytes(lambda: bytes(1_000_000)) >= 1_000_000
    True
    """
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
