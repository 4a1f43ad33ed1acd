"""Attention over whole texts: long ones, full and causal, and short ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from qkv.bench.attention_work import AttentionCall, Floats
from qkv.bench.comparison import Instruments, Way, compare
from qkv.bench.limits import MATRIX, NUMPY_MATRIX, READ
from qkv.bench.measurement import Result, Workload
from qkv.bench.onnxruntime_peer import onnxruntime_ways
from qkv.bench.textbook import numpy_ways
from qkv.bench.torch_peer import torch_ways
from qkv.ops import attend

HEADS = 8

FULL, CAUSAL, SHORT = "prefill, full", "prefill, causal", "short texts"

OWN_FULL = "own full"
"""Ourselves, over the same text without causal order."""

LONGEST_IN_NUMPY = 2048
"""Tokens up to which the formula in NumPy is measured; beyond, it takes minutes and gigabytes."""

SCORES_HELD = 5
"""So many times the forms of onnxruntime together hold the scores."""


@dataclass(frozen=True)
class Prefill:
    """A text that sees itself: ``n`` queries and keys of ``HEADS`` heads.

    Parameters
    ----------
    n, D : int
    causal : bool
    name : str
        The table that it belongs to.
    """

    n: int
    D: int
    causal: bool
    name: str

    @property
    def call(self) -> AttentionCall:
        """The call that is measured."""
        return AttentionCall(1, HEADS, HEADS, self.n, self.n, self.D, self.causal)

    @property
    def work(self) -> Workload:
        """The piece of work."""
        return self.call.workload(self.name, {"H": HEADS, "D": self.D, "n": self.n})

    def measure(self, instruments: Instruments) -> list[Result]:
        """Compare with the formula in NumPy, PyTorch, onnxruntime, and ourselves without the order."""
        q, k, v = self.call.draw()
        peers, notes = self._peers(q, k, v, instruments)
        run = partial(attend, q, k, v, causal=self.causal)
        baselines = {OWN_FULL: partial(attend, q, k, v)} if self.causal else {}
        limits = replace(instruments.limits, names=(MATRIX, NUMPY_MATRIX, READ))
        beside = replace(instruments, limits=limits)
        return [compare(self.work, run, peers, beside, baselines=baselines, notes=notes)]

    def _peers(
        self, q: Floats, k: Floats, v: Floats, instruments: Instruments
    ) -> tuple[list[Way], Sequence[str]]:
        """Return the peers for which time and memory suffice, and a line about those left out."""
        ways = torch_ways(self.call, q, k, v)
        if self.n <= LONGEST_IN_NUMPY:
            ways = numpy_ways(self.call, q, k, v) + ways
        free = instruments.free_bytes()
        needed = SCORES_HELD * self.call.scores_bytes
        if free is None or needed <= free:
            return ways + onnxruntime_ways(self.call, q, k, v), ()
        note = f"onnxruntime left out at n = {self.n}: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} are free"
        return ways, (note,)


def attention_cases(lengths: Sequence[int], head_sizes: Sequence[int], short: Sequence[int]) -> list[Prefill]:
    """Return long texts, full and causal, and short ones with the least head size."""
    long = [
        Prefill(n, D, causal, CAUSAL if causal else FULL)
        for causal in (False, True)
        for D in head_sizes
        for n in lengths
    ]
    return long + [Prefill(n, min(head_sizes), False, SHORT) for n in short]
