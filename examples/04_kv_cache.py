"""The KV cache: keep what was computed, compute only what is new. How much faster, against what?"""

import statistics
import time

import numpy as np
from rich.console import Console

from qkv import CachedMultiHeadAttention, attend
from qkv.viz import curve

console = Console()
d_model, num_heads = 128, 8
layer = CachedMultiHeadAttention(d_model, num_heads, rng=np.random.default_rng(0))
tokens = np.random.RandomState(0).randn(1, 200, d_model)  # one text


def with_cache(n):
    """Each step runs one token, and finds the earlier keys and values in the cache."""
    layer.clear_cache()
    return np.concatenate([layer(tokens[:, t : t + 1])[0] for t in range(n)], axis=1)


def recompute_all(n):
    """Each step runs the whole text again and uses its last row."""
    return np.concatenate([layer(tokens[:, : t + 1], use_cache=False)[0][:, -1:] for t in range(n)], axis=1)


def recompute_keys(n):
    """Each step computes all keys and values again, but only the last query needs them."""
    rows = []
    for t in range(n):
        _, k, v = layer.attention.project_heads(tokens[:, : t + 1])
        q, _, _ = layer.attention.project_heads(tokens[:, t : t + 1])
        rows.append(layer.attention.join_heads(attend(q, k, v)))
    return np.concatenate(rows, axis=1)


def speed_up(slow, fast, n, pairs=5):
    """Median ratio of the two times over interleaved runs, so that both meet the same machine."""
    ratios = []
    for _ in range(pairs):
        start = time.perf_counter()
        slow(n)
        middle = time.perf_counter()
        fast(n)
        ratios.append((middle - start) / (time.perf_counter() - middle))
    return statistics.median(ratios)


# First that all three compute the same thing, then how long they take.
cached, whole, keys_only = (run(100) for run in (with_cache, recompute_all, recompute_keys))
difference = max(np.abs(cached - whole).max(), np.abs(cached - keys_only).max())
console.print(f"100 tokens, three ways: largest difference {difference:.0e}")

bars = []
for n in (25, 50, 100, 200):
    bars.append((f"{n:3} tokens, against recomputing all", speed_up(recompute_all, with_cache, n)))
    bars.append((f"{n:3} tokens, against recomputing keys", speed_up(recompute_keys, with_cache, n)))
console.print(curve(bars, unit="x", width=24, title="how much faster the cache is, on this machine"))

# The article's loop hands its tokens over as the batch axis: 100 texts of one token each.
as_batch = tokens[0, :100, None]
_, weights = layer(as_batch, use_cache=False)
console.print(
    f"\nthe article's slow side has weights of shape {weights.shape}, all {weights.min():.1f}: that is"
)
console.print("100 texts of one token each, not one text of 100, so its 7.1x compares two different things")

cache = layer.cache
console.print(
    f"what it costs: {cache.shape.bytes_per_token:,} bytes a token, "
    f"{cache.nbytes:,} for {cache.length} tokens (predicted: {cache.predict_nbytes(cache.length):,})"
)
