"""One function from caches of several sizes: a model's single key head, written down once or several times.

What such models say is the same to the bit, so what differs in time is what it takes to read their caches,
and to make the keys and values that go there.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qkv.cache import PagedCache
from qkv.errors import NumericError
from qkv.lab.own_texts import Ids
from qkv.models import Llama, new_cache
from qkv.ops.projection import is_packed, prepare
from qkv.shapes import Array

NextToken = Callable[[Llama, PagedCache], Array]
"""A model and a cache that has read a text, to the logits after one more token."""

SAME_FUNCTION = 1e-3
"""Logits of deviation 1 may differ by as much, summed in another order."""


def with_key_heads(model: Llama, G: int) -> Llama:
    """Return a model of a single key head with that head written down G times: the same function."""
    H, D = model.config.H, model.config.D

    def repeated(w_qkv: Array) -> Array:
        rows = w_qkv.rows(np.arange(w_qkv.shape[0])) if is_packed(w_qkv) else w_qkv
        q, k, v = rows[: H * D], rows[H * D : -D], rows[-D:]
        return prepare(np.concatenate([q, *[k] * G, *[v] * G]))

    layers = tuple(replace(layer, w_qkv=repeated(layer.w_qkv)) for layer in model.layers)
    return replace(model, config=replace(model.config, G=G), layers=layers)


def next_token(model: Llama, cache: PagedCache) -> Array:
    """Return the logits after one more token."""
    return model.next_logits([0], cache)


def decoding(model: Llama, ids: Ids, new_tokens: int, step: NextToken) -> Callable[[], Array]:
    """Read a text; return a run that makes some tokens behind it, and forgets them again."""
    cache = new_cache(model)
    model.next_logits(ids, cache)

    def run() -> Array:
        logits = [step(model, cache) for _ in range(new_tokens)]
        cache.trim(len(ids))
        return logits[-1]

    return run


def require_equal(logits: list[Array]) -> None:
    """Raise `NumericError` unless models that should be one function say the same."""
    apart = float(np.ptp(np.stack(logits), axis=0).max())
    if apart > SAME_FUNCTION:
        raise NumericError(f"models that are the same function give logits that lie {apart:.2g} apart")
