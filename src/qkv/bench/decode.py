"""Attention of one new token to a cache: the whole of it, and a window that slides over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from qkv.bench.attention_work import AttentionCall
from qkv.bench.comparison import Instruments, compare, judge, require_equal
from qkv.bench.measurement import Result, Skipped, Workload
from qkv.bench.onnxruntime_peer import onnxruntime_ways
from qkv.bench.stopwatch import Run
from qkv.bench.textbook import numpy_ways
from qkv.bench.torch_peer import torch_ways
from qkv.ops import attend

DECODE, SLIDING = "decode", "sliding window"

ROOM = 2**30
"""Bytes to leave for everything else."""


@dataclass(frozen=True)
class Heads:
    """H query heads on G key heads of D numbers."""

    H: int = 32
    G: int = 8
    D: int = 128


HEADS = Heads()


@dataclass(frozen=True)
class Decode:
    """One new token of each of B texts, S keys each."""

    S: int
    B: int
    heads: Heads = HEADS

    @property
    def call(self) -> AttentionCall:
        """The call that is measured."""
        heads = self.heads
        return AttentionCall(self.B, heads.H, heads.G, 1, self.S, heads.D, causal=True)

    @property
    def work(self) -> Workload:
        """The piece of work."""
        heads = self.heads
        sizes = {"H": heads.H, "G": heads.G, "D": heads.D, "B": self.B, "S": self.S}
        return self.call.workload(DECODE, sizes)

    @property
    def needed_bytes(self) -> int:
        """Keys and values, and a copy of them for each query head, which some forms of peers make."""
        return self.call.kv_bytes * (1 + self.heads.H // self.heads.G) + ROOM

    def measure(self, instruments: Instruments) -> list[Result]:
        """Compare with every peer, unless the memory does not suffice."""
        free = instruments.free_bytes()
        if self.needed_bytes > ROOM * 2 and (free is None or self.needed_bytes > free):
            known = "how much is free is not known" if free is None else f"{free / 1e9:.1f} GB are free"
            return [Skipped(self.work, f"needs {self.needed_bytes / 1e9:.1f} GB of memory; {known}")]
        q, k, v = self.call.draw()
        peers = [
            way for ways in (numpy_ways, torch_ways, onnxruntime_ways) for way in ways(self.call, q, k, v)
        ]
        return [compare(self.work, partial(attend, q, k, v, causal=True), peers, instruments)]


@dataclass(frozen=True)
class SlidingDecode:
    """One new token that sees the last ``window`` of ever more keys, against the least number of keys."""

    lengths: Sequence[int]
    window: int
    heads: Heads = HEADS

    def call(self, S: int) -> AttentionCall:
        """Return the call over S keys."""
        heads = self.heads
        return AttentionCall(1, heads.H, heads.G, 1, S, heads.D, causal=True, window=self.window)

    def measure(self, instruments: Instruments) -> list[Result]:
        """Time all lengths in turn, and compare each with the first."""
        runs = {_at(S): self._checked_run(S) for S in self.lengths}
        times = instruments.stopwatch.time_in_turn(runs | dict(instruments.limits.runs))
        first = {_at(self.lengths[0]): ""}
        return [judge(self._work(S), times, _at(S), first, instruments.limits) for S in self.lengths]

    def _work(self, S: int) -> Workload:
        heads = self.heads
        sizes = {"H": heads.H, "G": heads.G, "D": heads.D, "window": self.window, "S": S}
        return self.call(S).workload(SLIDING, sizes)

    def _checked_run(self, S: int) -> Run:
        """Return a run whose result is that of the formula over the last keys alone."""
        q, k, v = self.call(S).draw()
        run = partial(attend, q, k, v, causal=True, window=self.window)
        seen = AttentionCall(1, self.heads.H, self.heads.G, 1, self.window, self.heads.D)
        (formula,) = numpy_ways(seen, q, k[:, :, -self.window :], v[:, :, -self.window :])
        require_equal(self._work(S), formula, run())
        return run


def decode_cases(
    calls: Sequence[tuple[int, int]], lengths: Sequence[int], window: int, heads: Heads
) -> list[Decode | SlidingDecode]:
    """Return a case for each (S, B), and one for the window."""
    return [*(Decode(S, B, heads) for S, B in calls), SlidingDecode(lengths, window, heads)]


def _at(S: int) -> str:
    return f"at {S:,} keys"
