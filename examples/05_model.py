"""A trained model: what it writes, what its heads look at, and what its KV cache costs and saves."""

import time

import numpy as np
from rich.console import Console

import qkv
from qkv.engine import Generation
from qkv.models.watching import watch
from qkv.viz import weight_grid

console = Console()
model = qkv.load()  # 2.8 million parameters that come with qkv, trained by its own code on Shakespeare
tokenizer = model.tokenizer
assert tokenizer is not None
PROMPT, NUM_TOKENS = "HAMLET.\n", 100


def write(cache):
    """Let it write on, the same text each time."""
    return qkv.generate(model, PROMPT, cache=cache, max_tokens=NUM_TOKENS, temperature=0.7, seed=5)


# What it writes, token by token, each added to a cache.
cache = qkv.new_cache(model)
console.print(f"[dim]{PROMPT}[/]", end="")
for piece in write(cache):
    console.print(piece, end="", highlight=False, markup=False)
console.print("\n")
predicted = cache.predict_nbytes(cache.length)
relation = "=" if predicted == cache.nbytes else "is not"
console.print(f"KV cache: {predicted:,} bytes predicted {relation} {cache.nbytes:,} allocated")

# What its heads look at. A previous-token head has its weight one place left of the diagonal.
ids = tokenizer.encode("To be, or not to be, that is")
weights = watch(model, ids).weights  # L H T T
behind = np.diagonal(weights, -1, axis1=-2, axis2=-1).mean(axis=-1)  # L H
layer, head = np.unravel_index(behind.argmax(), behind.shape)
pieces = [tokenizer.decode([token]).strip() or "·" for token in ids]
title = f"layer {layer}, head {head}: {behind.max():.0%} of its attention on the token before"
console.print(weight_grid(weights[layer, head], rows=pieces, columns=pieces, title=title, numbers=False))


def seconds(cache):
    """Time the whole text; ``None`` is no cache at all."""
    sampling = qkv.Sampling(temperature=0.7, seed=5)
    start = time.perf_counter()
    text = "".join(Generation(model, PROMPT, sampling, max_tokens=NUM_TOKENS, cache=cache))
    return time.perf_counter() - start, text


# What the cache saves: the same text, with it and with every token computed anew at each step.
seconds(None)  # what is needed for that is compiled here, and not timed
(cached, text), (anew, same) = seconds(qkv.new_cache(model)), seconds(None)
which = "the same" if text == same else "ANOTHER"
console.print(
    f"{NUM_TOKENS / cached:,.0f} tokens a second with the cache, {NUM_TOKENS / anew:,.0f} without: "
    f"{anew / cached:.1f} times as fast, {which} text"
)
