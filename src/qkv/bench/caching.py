"""What a KV cache saves: a text token by token, with the cache and anew each time."""

from dataclasses import dataclass, replace

import numpy as np

from qkv.bench.comparison import Instruments, Way, compare
from qkv.bench.limits import Limits
from qkv.bench.measurement import Result, Workload
from qkv.models import CachedMultiHeadAttention

WIDTH, HEADS = 128, 8


@dataclass(frozen=True)
class Caching:
    """One layer over a text of ``n`` tokens, one by one."""

    n: int

    @property
    def work(self) -> Workload:
        """The piece of work."""
        return Workload("KV cache, one layer", {"E": WIDTH, "H": HEADS, "n": self.n})

    def measure(self, instruments: Instruments) -> list[Result]:
        """Compare with the same layer without its cache."""
        layer = CachedMultiHeadAttention(WIDTH, HEADS, rng=np.random.default_rng(0))
        tokens = np.random.default_rng(1).standard_normal((1, self.n, WIDTH))

        def cached() -> np.ndarray:
            layer.clear_cache()
            return np.concatenate([layer(tokens[:, t : t + 1])[0] for t in range(self.n)], axis=1)

        def anew() -> np.ndarray:
            steps = [layer(tokens[:, : t + 1], use_cache=False)[0][:, -1:] for t in range(self.n)]
            return np.concatenate(steps, axis=1)

        alone = replace(instruments, limits=Limits())
        return [compare(self.work, cached, [Way("no cache", anew)], alone)]
