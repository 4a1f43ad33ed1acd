"""Decode over what a cache holds, by how it holds it, against the same cache in float32."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from qkv.bench.attention_work import AttentionCall
from qkv.bench.comparison import Instruments, Way, judge, require_equal
from qkv.bench.decode import HEADS, ROOM, Heads
from qkv.bench.measurement import Result, Skipped, Workload
from qkv.cache import CacheShape, PagedCache
from qkv.ops.backend import use_backend

NAME = "decode over a cache"

PLAIN = "float32"
"""The policy that the others are compared with."""

POLICIES = "fp16", "bf16", "fp8-e4m3", "fp8-e5m2", "int8", "int8-kivi", "int4"


@dataclass(frozen=True)
class CachePolicies:
    """One new token that sees S keys and its own, in the pages of each policy."""

    S: int
    policies: Sequence[str] = POLICIES
    heads: Heads = HEADS

    @property
    def call(self) -> AttentionCall:
        """What each cache is asked."""
        heads = self.heads
        return AttentionCall(1, heads.H, heads.G, 1, self.S + 1, heads.D, causal=True)

    @property
    def needed_bytes(self) -> int:
        """Keys and values in float32 twice, and at most half of that for each policy."""
        return self.call.kv_bytes * (4 + len(self.policies)) // 2 + ROOM

    def measure(self, instruments: Instruments) -> list[Result]:
        """Time all in turn, and compare each with float32, unless the memory does not suffice."""
        free = instruments.free_bytes()
        if self.needed_bytes > 2 * ROOM and (free is None or self.needed_bytes > free):
            known = "how much is free is not known" if free is None else f"{free / 1e9:.1f} GB are free"
            reason = f"needs {self.needed_bytes / 1e9:.1f} GB of memory; {known}"
            return [Skipped(Workload(NAME, self._sizes(PLAIN)), reason)]
        q, k, v = self.call.draw()
        caches = {policy: self._filled(policy, k, v) for policy in (PLAIN, *self.policies)}
        runs = {policy: partial(cache.attend, 0, q) for policy, cache in caches.items()}
        for policy, run in runs.items():
            self._check(policy, run)
        times = instruments.stopwatch.time_in_turn(runs | dict(instruments.limits.runs))
        works = {policy: self._work(policy, cache.nbytes) for policy, cache in caches.items()}
        return [judge(works[policy], times, policy, {PLAIN: ""}, instruments.limits) for policy in caches]

    def _filled(self, policy: str, k: np.ndarray, v: np.ndarray) -> PagedCache:
        """Return a cache of all tokens, of which the last is that of the query."""
        text = "page=16" if policy == PLAIN else policy
        cache = PagedCache(CacheShape(1, self.heads.G, self.heads.D), text)
        cache.append(0, k[:, :, :-1], v[:, :, :-1])
        cache.append(0, k[:, :, -1:], v[:, :, -1:])
        return cache

    def _check(self, policy: str, run: partial[np.ndarray]) -> None:
        """Refuse a result that is not that of the formula on what the cache holds, decoded."""
        expected = run()
        with use_backend("numpy"):
            require_equal(Workload(NAME, self._sizes(policy)), Way("NumPy", run), expected)

    def _work(self, policy: str, num_bytes: int) -> Workload:
        return Workload(NAME, self._sizes(policy), self.call.flops, num_bytes)

    def _sizes(self, policy: str) -> dict[str, int | str]:
        heads = self.heads
        return {"H": heads.H, "G": heads.G, "D": heads.D, "S": self.S, "policy": policy}
