"""Multi-head attention: eight attentions side by side, each on its own eighth of the width."""

import numpy as np
from rich.columns import Columns
from rich.console import Console

from qkv import MultiHeadAttention
from qkv.viz import weight_grid

console = Console()

layer = MultiHeadAttention(d_model=64, num_heads=8, rng=np.random.default_rng(42))
x = np.random.RandomState(42).randn(2, 10, 64)  # two texts of ten tokens
output, weights = layer(x, x, x)

console.print(f"input {x.shape}, output {output.shape}, weights {weights.shape}\n")
shown = [weight_grid(weights[0, head], title=f"head {head}", numbers=False) for head in (0, 4)]
console.print(Columns(shown, padding=(0, 6)))

# These weights are random. That two heads differ shows nothing learned, only that they were drawn apart:
apart = np.abs(weights[0, 0] - weights[0, 4]).sum(axis=-1).mean() / 2
console.print(f"\nheads 0 and 4 disagree on {apart:.0%} of the weight, though neither has learned anything")

# Grouped-query attention: the same eight query heads share two key heads, so a KV cache needs a quarter.
grouped = MultiHeadAttention(d_model=64, num_heads=8, num_kv_heads=2, rng=np.random.default_rng(42))
_, k, _ = layer.project_heads(x)
_, grouped_k, _ = grouped.project_heads(x)
console.print(f"keys per text: {k[0].size} numbers with 8 key heads, {grouped_k[0].size} with 2 (GQA)")
