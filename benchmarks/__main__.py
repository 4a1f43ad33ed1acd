"""`make bench`: what tiling, the KV cache and the compiled kernels buy, in some minutes.

Every figure is a ratio of two ways measured in turn in this one process.
"""

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import attention, matmul
from benchmarks.pairs import compare, peak_bytes
from qkv import CachedMultiHeadAttention, attend
from qkv.ops.attention import attend_by, dense_path, tiled_path

H, D = 8, 64


def textbook(q, k, v):
    """softmax(q k^T / sqrt(D)) v as most people write it."""
    scores = q @ k.swapaxes(-1, -2) / np.float32(D**0.5)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ v


def attention_table() -> Table:
    table = Table(
        title=f"attention, float32, {H} heads of {D}: times as long as qkv.attend takes, and peak memory",
        caption="median of 15 pairs, in brackets the quartiles",
        box=None,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("n", "textbook", "dense", "tiled", "MB textbook", "tiled"):
        table.add_column(name, justify="right", no_wrap=True)
    random = np.random.default_rng(0)
    for n in (32, 128, 256, 512, 1024, 2048):
        q, k, v = (random.normal(size=(1, H, n, D)).astype(np.float32) for _ in range(3))
        work = {
            "textbook": lambda q=q, k=k, v=v: textbook(q, k, v),
            "dense": lambda q=q, k=k, v=v: attend_by(dense_path, q, k, v),
            "tiled": lambda q=q, k=k, v=v: attend_by(tiled_path, q, k, v),
        }
        assert np.allclose(work["textbook"](), attend(q, k, v), atol=1e-5)
        ratios = [compare(way, lambda q=q, k=k, v=v: attend(q, k, v)) for way in work.values()]
        peaks = [peak_bytes(work[name]) / 1e6 for name in ("textbook", "tiled")]
        table.add_row(str(n), *map(str, ratios), *(f"{peak:.1f}" for peak in peaks))
    return table


def cache_table() -> Table:
    table = Table(
        title="\none layer, width 128, 8 heads: a text computed anew at each token, against a KV cache",
        title_justify="left",
        box=None,
    )
    for name in ("tokens", "times as long as with the cache"):
        table.add_column(name, justify="right", no_wrap=True)
    layer = CachedMultiHeadAttention(128, 8, rng=np.random.default_rng(0))
    tokens = np.random.default_rng(1).normal(size=(1, 400, 128))
    for n in (25, 50, 100, 200, 400):

        def cached(n=n):
            layer.clear_cache()
            for t in range(n):
                layer(tokens[:, t : t + 1])

        def anew(n=n):
            for t in range(n):
                layer(tokens[:, : t + 1], use_cache=False)

        table.add_row(str(n), str(compare(anew, cached, pairs=5)))
    return table


if __name__ == "__main__":
    console = Console()
    console.print(attention_table())
    console.print(cache_table())
    console.print(matmul.table())
    console.print(attention.decode_table())
    console.print(attention.prefill_table())
