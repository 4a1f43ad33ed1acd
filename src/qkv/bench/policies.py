"""Decode over what a cache holds, by its policy, against the same cache in float32."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qkv.bench import comparison
from qkv.bench.attention_work import AttentionCall
from qkv.bench.comparison import Instruments, Way, judge, require_equal
from qkv.bench.decode import HEADS, ROOM, Heads
from qkv.bench.measurement import Result, Skipped, Workload
from qkv.cache import CacheShape, PagedCache
from qkv.ops.backend import use_backend

NAME = "decode over a cache"

PLAIN = "float32"
"""The policy that the others are compared with."""

CODES = "fp16", "bf16", "fp8-e4m3", "fp8-e5m2", "int8", "int8-kivi", "int4"
"""Policies that keep every token, in fewer bytes."""

WHOLE_NUMBERS, OF_LARGEST = ("int8", "int8-kivi", "int4"), 1e-3
"""Codes that queries meet with 16 bits, and how far from NumPy that may lead, of the largest result."""

WINDOW, KEPT = 1024, 10
"""How many tokens a window shows, and which part of them an eviction leaves: one in ten."""


@dataclass(frozen=True)
class CachePolicies:
    """One new token that sees S keys and its own, in the pages of each policy."""

    S: int
    heads: Heads = HEADS
    window: int = WINDOW

    @property
    def policies(self) -> tuple[str, ...]:
        """What is compared with float32: all tokens as codes, and a part of them in float32."""
        return (*CODES, f"window={self.window}", f"knorm={self.S // KEPT}")

    @property
    def call(self) -> AttentionCall:
        """What each cache is asked."""
        heads = self.heads
        return AttentionCall(1, heads.H, heads.G, 1, self.S + 1, heads.D, causal=True)

    @property
    def needed_bytes(self) -> int:
        """Keys and values in float32, drawn and in three caches, and at most half for each of codes."""
        return self.call.kv_bytes * (8 + len(CODES)) // 2 + ROOM

    def measure(self, instruments: Instruments) -> list[Result]:
        """Time all in turn, and compare each with float32, unless the memory does not suffice."""
        free = instruments.free_bytes()
        if self.needed_bytes > 2 * ROOM and (free is None or self.needed_bytes > free):
            known = "how much is free is not known" if free is None else f"{free / 1e9:.1f} GB are free"
            reason = f"needs {self.needed_bytes / 1e9:.1f} GB of memory; {known}"
            return [Skipped(Workload(NAME, self._sizes(PLAIN)), reason)]
        q, k, v = self.call.draw()
        caches = {policy: self._filled(policy, q, k, v) for policy in (PLAIN, *self.policies)}
        runs = {policy: partial(cache.attend, 0, q) for policy, cache in caches.items()}
        for policy, run in runs.items():
            self._check(policy, run)
        times = instruments.stopwatch.time_in_turn(runs | dict(instruments.limits.runs))
        works = {policy: self._work(policy, cache) for policy, cache in caches.items()}
        return [judge(works[policy], times, policy, {PLAIN: ""}, instruments.limits) for policy in caches]

    def _filled(self, policy: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> PagedCache:
        """Return a cache of all tokens, of which the last is that of the query."""
        text = "page=16" if policy == PLAIN else policy
        cache = PagedCache(CacheShape(1, self.heads.G, self.heads.D), text)
        for tokens in (slice(self.S), slice(self.S, None)):
            cache.append(0, k[:, :, tokens], v[:, :, tokens])
            cache.attend(0, q)  # then what the policy does not keep is dropped
        return cache

    def _check(self, policy: str, run: partial[np.ndarray]) -> None:
        """Refuse a result that is not that of the formula on what the cache holds, decoded."""
        expected = run()
        with use_backend("numpy"):
            work, peer = Workload(NAME, self._sizes(policy)), Way("NumPy", run)
            of_largest = OF_LARGEST if policy in WHOLE_NUMBERS else comparison.OF_LARGEST
            require_equal(work, peer, expected, of_largest)

    def _work(self, policy: str, cache: PagedCache) -> Workload:
        seen = {self.policies[-2]: self.window, self.policies[-1]: self.S // KEPT}.get(policy, self.S + 1)
        return Workload(NAME, self._sizes(policy), replace(self.call, S=seen).flops, cache.nbytes)

    def _sizes(self, policy: str) -> dict[str, int | str]:
        heads = self.heads
        return {"H": heads.H, "G": heads.G, "D": heads.D, "S": self.S, "policy": policy}
