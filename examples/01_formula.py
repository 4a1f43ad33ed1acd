"""The formula, on four random tokens: softmax(Q K^T / sqrt(D)) V.

Each row of the weights says how one token's output is mixed from all four values.
"""

import numpy as np
from rich.console import Console

from qkv import scaled_dot_product_attention, softmax
from qkv.viz import weight_grid

console = Console()
T, E = 4, 8

# The article's seed and sizes: token vectors X, and three random maps to queries, keys and values.
random = np.random.RandomState(42)
X = random.randn(T, E)
W_q, W_k, W_v = (random.randn(E, E) * 0.1 for _ in range(3))
Q, K, V = X @ W_q, X @ W_k, X @ W_v

output, weights = scaled_dot_product_attention(Q, K, V)

names = [f"token {t}" for t in range(T)]
console.print(weight_grid(weights, rows=names, columns=names, title="weights: who takes how much from whom"))
console.print(f"shapes: X {X.shape}, output {output.shape}, weights {weights.shape}")
console.print(f"each row sums to 1: {weights.sum(axis=-1).round(6).tolist()}")

# The article prints other numbers for this very code, with every row peaking on its own token.
article_row = [0.274, 0.238, 0.249, 0.239]
console.print(f"row 0 here     {weights[0].round(3).tolist()}")
console.print(f"row 0 article  {article_row}  [dim]its code does not give these[/]")
on_diagonal = int((weights.argmax(axis=-1) == np.arange(T)).sum())
console.print(f"rows that peak on their own token: {on_diagonal} of {T}  [dim]by chance: one in four[/]")

# Why divide by sqrt(D): a dot product of D independent numbers of variance 1 has variance D, and a
# softmax over scores that far apart puts nearly all weight on one key.
console.print("\n[bold]why / sqrt(D)[/]  (D = 64, 128 keys)")
q, k = random.randn(2000, 64), random.randn(2000, 128, 64)
raw = np.einsum("td,tsd->ts", q, k)
for name, scores in (("q k", raw), ("q k / sqrt(D)", raw / 8)):
    top = softmax(scores).max(axis=-1).mean()
    console.print(
        f"{name:>14}: variance of the scores {scores.var():5.1f}, mean weight of the top key {top:.2f}"
    )
