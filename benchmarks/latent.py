"""`python -m benchmarks.latent`: what absorbing the map of latents buys at decode, and costs before it.

One layer of DeepSeek-V2-Lite's sizes, without its projections to latents and from heads, by both forms
on the same cached latents. Every figure is a ratio of two ways measured in turn in this one process.
"""

from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from qkv import attend
from qkv.bench.stopwatch import Stopwatch, times_as_fast
from qkv.bench.tables import format_ratio
from qkv.kernels.host import num_threads
from qkv.ops.latent import AbsorbedWeights, attend_absorbed, attend_up_projected
from qkv.ops.projection import prepare

H, NOPE, ROPE, VALUE, LATENT = 16, 128, 64, 128, 512
PAIRS = 7
DECODE = ((1, 128), (1, 1024), (1, 8192))
CHUNKS = ((16, 8192), (170, 8192), (512, 8192))
WHOLE_TEXTS = ((128, 128), (512, 512), (2048, 2048))


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def products(T, S):
    """Multiplications of one head in both forms, T new tokens among S."""
    pairs = T * S - T * (T - 1) // 2
    up_projected = S * LATENT * (NOPE + VALUE) + pairs * (NOPE + ROPE + VALUE)
    absorbed = T * LATENT * (NOPE + VALUE) + pairs * (LATENT + ROPE + LATENT)
    return up_projected, absorbed


def table() -> Table:
    table = Table(
        title=f"latent attention, float32, {H} heads, {num_threads()} threads: up-projected / absorbed",
        caption=f"median of {PAIRS} pairs, in brackets the quartiles",
        box=None,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("new tokens", "of all", "times as long", "times the products"):
        table.add_column(name, justify="right", no_wrap=True)
    w_kv = normal(H * (NOPE + VALUE), LATENT) / np.float32(LATENT**0.5)
    absorbed, up = AbsorbedWeights.of(w_kv, H, NOPE).prepared(), prepare(w_kv)
    causal = partial(attend, causal=True, scale=(NOPE + ROPE) ** -0.5)
    for T, S in (*DECODE, *CHUNKS, *WHOLE_TEXTS):
        operands = normal(1, H, T, NOPE), normal(1, H, T, ROPE), normal(1, 1, S, LATENT + ROPE)
        ways = {
            "absorbed": partial(attend_absorbed, *operands, absorbed, causal),
            "up-projected": partial(attend_up_projected, *operands, up, causal),
        }
        assert np.allclose(ways["absorbed"](), ways["up-projected"](), atol=1e-4)
        ratio = times_as_fast(Stopwatch(PAIRS).time_in_turn(ways), "absorbed", "up-projected")
        counted = products(T, S)
        table.add_row(str(T), str(S), format_ratio(ratio), f"{counted[0] / counted[1]:.2f}")
    return table


if __name__ == "__main__":
    Console(width=110).print(table())
