"""Masks: who may see whom, and what that does to the weights."""

import numpy as np
from rich.console import Console

from qkv import attend, causal_mask, scaled_dot_product_attention, window_mask
from qkv.viz import mask_grid, weight_grid

console = Console()
T, D = 4, 8
names = [f"token {t}" for t in range(T)]

mask = causal_mask(T)
console.print(mask_grid(mask, rows=names, title="causal mask: no token sees a later one"))

# The article's seed and sizes.
random = np.random.RandomState(42)
Q, K = random.randn(T, D), random.randn(T, D)
V = random.randn(T, D)
output, weights = scaled_dot_product_attention(Q, K, V, mask)

console.print()
console.print(weight_grid(weights, rows=names, columns=names, title="weights under it"))
console.print(f"each row sums to 1: {weights.sum(axis=-1).round(6).tolist()}")
console.print("article's last row: [0.274, 0.238, 0.249, 0.239]  [dim]its code does not give these[/]")

# Hidden means never read: replace the last token by garbage, and no bit of the others moves.
K[3], V[3] = np.nan, np.inf
garbled = attend(Q, K, V, mask=mask)
unchanged = garbled[:3].tobytes() == output[:3].tobytes()
console.print(f"last key NaN, last value inf: the other outputs keep every bit: {unchanged}")

# A window lets each token see only its neighbours, which is what bounds a Mistral-style cache.
console.print()
console.print(mask_grid(window_mask(8, window=3), title="window of 3: itself and the two before it"))
