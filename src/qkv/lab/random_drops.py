"""Dropping tokens at random: the control of every rule that says which tokens matter.

No cache drops at random, so this is attention with the weights of what was dropped taken away. It saves no
memory, and no bytes are counted for it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.models import Model
from qkv.models.watching import watch

P = 32
"""Tokens of a page: a cache drops some when it holds so many more than its budget."""


def logits_at_random(
    model: Model, text: NDArray[np.integer], budget: int, steps: Sequence[int], draw: np.random.Generator
) -> NDArray[np.floating]:
    """Return what a model says if each key head drops random tokens: ``(T, V)``.

    Parameters
    ----------
    model : Model
    text : (T,)
    budget : int
        Tokens that stay per key head.
    steps : sequence of int
        How many tokens are read at once, T in all; tokens go at the end of a step.
    draw : numpy.random.Generator

    Returns
    -------
    (T, V)
    """
    L, G = model.cache_shape.num_layers, model.cache_shape.num_kv_heads
    sights = np.array([[random_sight(budget, steps, draw) for _ in range(G)] for _ in range(L)])  # L G T T

    def forget(layer: int, weights: NDArray[np.floating]) -> NDArray[np.floating]:
        kept = weights * np.repeat(sights[layer], weights.shape[1] // G, axis=0)
        return kept / kept.sum(axis=-1, keepdims=True)

    return watch(model, text, forget).logits


def random_sight(budget: int, steps: Sequence[int], draw: np.random.Generator) -> NDArray[np.bool_]:
    """Return what each query of one head sees, ``(T, T)``: its own step, and what was kept of those before.

    Examples
    --------
    Of 34 tokens, a page more than the budget, two are kept; the next one sees these and itself:

    >>> sight = random_sight(budget=2, steps=[34, 1], draw=np.random.default_rng(0))
    >>> int(sight[33].sum()), int(sight[34].sum())
    (34, 3)
    """
    T = sum(steps)
    sight, kept = np.zeros((T, T), bool), np.arange(0)
    for end, count in zip(np.cumsum(steps), steps, strict=True):
        own = np.arange(end - count, end)
        sight[np.ix_(own, kept)] = True
        sight[np.ix_(own, own)] = np.tri(count, dtype=bool)
        kept = np.concatenate([kept, own])
        if len(kept) >= budget + P:
            kept = np.sort(draw.choice(kept, budget, replace=False))
    return sight
