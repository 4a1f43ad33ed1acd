"""Dropping key heads: how much each one matters, and what goes with the least and the most important."""

from collections.abc import Collection, Sequence
from itertools import product

import numpy as np

from qkv.cache.policy_text import head_digits
from qkv.lab.own_texts import Ids, Loss, Reading, as_much, loss, loss_numbers, read
from qkv.lab.result import Measured, Number
from qkv.models import Model

Head = tuple[int, int]
"""A layer and a key head."""


def drop_heads(
    model: Model, texts: Ids, full: Sequence[Reading], share: float, draw: np.random.Generator
) -> dict[str, Number | float]:
    """Return what it costs to drop a share of the key heads: the least important, the most, and any.

    The first text says how important each is; the others are read without them.

    Parameters
    ----------
    model : Model
    texts : (count, T)
        At least 3.
    full : sequence of Reading
        Of each text, with the full cache.
    share : float
        Of key heads that go, at least one.
    draw : numpy.random.Generator
        Chooses any.

    Returns
    -------
    dict
        Losses ``least_heads_kl`` and so on; ``heads``, ``heads_gone``, ``heads_bytes``, ``least_to_most``.
    """
    heads = list(product(range(model.cache_shape.num_layers), range(model.cache_shape.num_kv_heads)))
    count = max(1, round(share * len(heads)))
    importance = {head: losses_without([head], model, texts[:1], full[:1])[0].kl for head in heads}
    ranked = sorted(heads, key=lambda head: importance[head])
    any_heads = [heads[index] for index in draw.permutation(len(heads))[:count]]
    chosen = {"least": ranked[:count], "any": any_heads, "most": ranked[-count:]}
    numbers: dict[str, Number | float] = {"heads": len(heads), "heads_gone": count}
    for name, gone in chosen.items():
        numbers |= loss_numbers(f"{name}_heads", losses_without(gone, model, texts[1:], full[1:]))
    numbers["heads_bytes"] = read(model, texts[1], policy_without(chosen["least"], model)).nbytes
    least, most = (Measured(numbers).value(f"{name}_heads_kl") for name in ("least", "most"))
    return numbers | {"least_to_most": as_much(least, most)}


def losses_without(gone: Collection[Head], model: Model, texts: Ids, full: Sequence[Reading]) -> list[Loss]:
    """Read texts with some key heads dropped."""
    policy = policy_without(gone, model)
    return [loss(whole, read(model, text, policy), text) for whole, text in zip(full, texts, strict=True)]


def policy_without(gone: Collection[Head], model: Model) -> str:
    """Return the policy under which some key heads see their own token alone, the others everything."""
    L, G = model.cache_shape.num_layers, model.cache_shape.num_kv_heads
    stay = tuple(tuple((layer, head) not in gone for head in range(G)) for layer in range(L))
    return f"window=1,heads={head_digits(stay)}"
