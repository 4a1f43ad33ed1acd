"""Dropping key heads: how much each one matters, and what goes with the least and the most important.

A head that is gone adds nothing to what its layer says. That is tried without a cache; its share of the bytes
would be saved. A head that is cut short keeps the latest few tokens alone, in a real cache.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from qkv.cache.policy_text import head_digits
from qkv.lab.own_texts import Ids, Loss, Reading, as_much, log_softmax, loss, loss_numbers, read
from qkv.lab.result import Measured, Number
from qkv.models import Model
from qkv.models.watching import watch

Head = tuple[int, int]
"""A layer and a key head."""

ReadDropping = Callable[[Model, Ids, Collection[Head]], Reading]
"""A model, a text and the heads that are dropped."""

LATEST = 32
"""Tokens that a head which is cut short keeps."""


def drop_heads(
    model: Model, texts: Ids, full: Sequence[Reading], share: float, draw: np.random.Generator
) -> dict[str, Number | float]:
    """Return what it costs to drop a share of the key heads, and to cut twice as many short.

    Parameters
    ----------
    model : Model
    texts : (count, T)
        At least 3: the first says how important each head is, the others are read without them.
    full : sequence of Reading
        Of each text, with the full cache.
    share : float
        Of key heads that go, at least one.
    draw : numpy.random.Generator
        Chooses any.

    Returns
    -------
    dict
        For ``gone`` and ``short`` heads: how many, the losses without the ``least`` important, the
        ``most`` and ``any``, and the first of these by the second.
    """
    num_heads = model.cache_shape.num_layers * model.cache_shape.num_kv_heads
    count = max(1, round(share * num_heads))
    ways = {"gone": (count, read_without), "short": (min(2 * count, num_heads), read_short)}
    numbers: dict[str, Number | float] = {"heads": num_heads}
    for way, (how_many, read_dropping) in ways.items():
        found = by_importance(model, texts, full, how_many, draw, read_dropping)
        numbers |= {f"{way}_{name}": number for name, number in found.items()}
    return numbers


def by_importance(
    model: Model,
    texts: Ids,
    full: Sequence[Reading],
    count: int,
    draw: np.random.Generator,
    read_dropping: ReadDropping,
) -> dict[str, Number | float]:
    """Rank the heads by what each costs alone in the first text, then drop several in the others."""
    heads = list(product(range(model.cache_shape.num_layers), range(model.cache_shape.num_kv_heads)))

    def losses(dropped: Collection[Head], which: slice) -> list[Loss]:
        pairs = zip(full[which], texts[which], strict=True)
        return [loss(whole, read_dropping(model, text, dropped), text) for whole, text in pairs]

    importance = {head: losses([head], slice(1))[0].kl for head in heads}
    ranked = sorted(heads, key=lambda head: importance[head])
    any_heads = [heads[index] for index in draw.permutation(len(heads))[:count]]
    numbers: dict[str, Number | float] = {"count": count}
    for name, dropped in {"least": ranked[:count], "any": any_heads, "most": ranked[-count:]}.items():
        numbers |= loss_numbers(name, losses(dropped, slice(1, None)))
    least, most = (Measured(numbers).value(f"{name}_kl") for name in ("least", "most"))
    numbers["least_to_most"] = as_much(least, most)
    nbytes = read_dropping(model, texts[1], ranked[:count]).nbytes
    return numbers | ({"bytes": nbytes} if nbytes else {})  # without a cache there are none


def read_without(model: Model, text: Ids, gone: Collection[Head]) -> Reading:
    """Read a text with some key heads gone, and the query heads that they serve; there is no cache."""
    G = model.cache_shape.num_kv_heads

    def leave_out(layer: int, weights: NDArray[np.floating]) -> NDArray[np.floating]:
        stays = np.array([(layer, head) not in gone for head in range(G)])
        return weights * np.repeat(stays, weights.shape[1] // G)[:, None, None]

    return Reading(log_softmax(watch(model, text, leave_out).logits), 0)


def read_short(model: Model, text: Ids, short: Collection[Head]) -> Reading:
    """Read a text through a cache in which some key heads keep the latest tokens alone."""
    L, G = model.cache_shape.num_layers, model.cache_shape.num_kv_heads
    whole = tuple(tuple((layer, head) not in short for head in range(G)) for layer in range(L))
    return read(model, text, f"window={LATEST},heads={head_digits(whole)}")
