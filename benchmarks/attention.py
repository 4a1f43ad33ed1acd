"""`python -m benchmarks.attention`: the compiled attention against NumPy's textbook formula and PyTorch.

Every figure is a ratio of two ways measured in turn in this one process, with the rate achieved beside
it. PyTorch is compared where it is installed (`make test-peers` installs it).
"""

import statistics
import time
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import Work, compare
from qkv import attend
from qkv.kernels.host import num_threads

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention
except ImportError:
    torch = None

REST_SECONDS = 0.05  # a library's threads hold their cores for a while after a call


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def textbook(q, k, v, causal):
    scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ v


def seconds(work: Work, runs: int = 9) -> float:
    def once():
        time.sleep(REST_SECONDS)
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(runs))


def ratio(peer: Work | None, ours: Work) -> str:
    return "-" if peer is None else str(compare(peer, ours, rest_seconds=REST_SECONDS))


def prefill_table() -> Table:
    table = new_table(
        f"prefill, float32, 8 heads, {num_threads()} threads: times as fast as",
        "n", "D", "causal", "NumPy", "PyTorch", "GFLOP/s",
    )  # fmt: skip
    for D in (64, 128):
        for n in (8, 32, 100, 1024, 4096):
            for causal in (False, True):
                q, k, v = (normal(1, 8, n, D) for _ in range(3))
                ours = partial(attend, q, k, v, causal=causal)
                ours()
                by_numpy = None if n > 1024 else lambda q=q, k=k, v=v, c=causal: textbook(q, k, v, c)
                products = 4 * 8 * n * n * D / (2 if causal else 1)
                rate = products / seconds(ours) / 1e9
                row = ratio(by_numpy, ours), ratio(by_torch(q, k, v, causal), ours), f"{rate:.0f}"
                table.add_row(str(n), str(D), "yes" if causal else "no", *row)
    return table


def decode_table() -> Table:
    table = new_table(
        f"decode, float32, 32 query heads, 8 key heads of 128, {num_threads()} threads: times as fast as",
        "keys", "B", "PyTorch", "GB/s", "of the read rate",
    )  # fmt: skip
    limit = read_rate()
    for num_keys, B in ((1024, 1), (8192, 1), (32768, 1), (1024, 8), (8192, 8)):
        q, k, v = normal(B, 32, 1, 128), normal(B, 8, num_keys, 128), normal(B, 8, num_keys, 128)
        ours = partial(attend, q, k, v, causal=True)
        ours()
        # PyTorch's best form for one query: the queries of a group as positions of one head.
        peer = by_torch(q.reshape(B, 8, 4, 128), k, v, False)
        rate = (k.nbytes + v.nbytes) / seconds(ours) / 1e9
        table.add_row(str(num_keys), str(B), ratio(peer, ours), f"{rate:.1f}", f"{rate / limit:.0%}")
    return table


def read_rate() -> float:
    """GB/s at which all threads together sum an array that no cache holds, by the product kernel."""
    from qkv.kernels.matmul import matmul, pack

    weight = pack(normal(8192, 8192))
    x = normal(1, 8192)
    matmul(x, weight)
    return weight.nbytes / seconds(lambda: matmul(x, weight)) / 1e9


def by_torch(q, k, v, causal) -> Work | None:
    if torch is None:
        return None
    torch.set_num_threads(num_threads())
    arrays = [torch.from_numpy(x) for x in (q, k, v)]
    return lambda: scaled_dot_product_attention(*arrays, is_causal=causal)


def new_table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        caption="median of 15 pairs, in brackets the quartiles",
        box=None,
        title_justify="left",
        caption_justify="left",
    )
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


if __name__ == "__main__":
    console = Console()
    console.print(decode_table())
    console.print(prefill_table())
