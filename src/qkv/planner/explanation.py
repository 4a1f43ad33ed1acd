"""Where the bytes of a token come from: one product per kind of layer, each factor named."""

from qkv.planner.layers import LayerGroup, ModelMemory
from qkv.planner.strategies import Strategy
from qkv.planner.term import Term

WHOLE_BYTES = 8
"""Bits in a byte."""


def products(model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
    """Return the products whose sum is what a model keeps of one token.

    Examples
    --------
    >>> from qkv.planner.storage import STORAGES
    >>> layers = (LayerGroup(32, num_kv_heads=8, key_dim=128, value_dim=128),)
    >>> (term,) = products(ModelMemory("", "llama", layers), Strategy("", "", STORAGES["bf16"]))
    >>> term.factors
    ((2, 'keys and values'), (32, 'layers'), (8, 'key heads'), (128, 'numbers'), (2, 'bytes'))
    """
    return tuple(Term(_reach(group, strategy), _factors(group, strategy)) for group in model.layers)


def _factors(group: LayerGroup, strategy: Strategy) -> tuple[tuple[int, str], ...]:
    storage, layers = strategy.storage, (group.count, "layers")
    if group.index_dim:
        return layers, (storage.token_bytes(group), "bytes of keys, values and index")
    numbers = _numbers(group, strategy)
    if group.is_latent:
        return layers, *((n, name.replace("numbers", "numbers of the latent")) for n, name in numbers)
    heads = (group.num_kv_heads, "key heads")
    if group.key_dim == group.value_dim:
        return (2, "keys and values"), layers, heads, *numbers
    return layers, heads, *numbers


def _numbers(group: LayerGroup, strategy: Strategy) -> tuple[tuple[int, str], ...]:
    """Return numbers and bytes as two factors, or as one where scales or half bytes come in."""
    storage, dims = strategy.storage, (group.key_dim, group.value_dim)
    alike = group.key_dim == group.value_dim or group.is_latent
    count, name = (dims[0], "numbers") if alike else (sum(dims), f"numbers, {dims[0]} + {dims[1]}")
    if storage.scale_bytes == 0 and storage.bits % WHOLE_BYTES == 0 and not storage.plain_tail:
        width = storage.bits // WHOLE_BYTES
        return (count, name), (width, "byte" if width == 1 else "bytes")
    stored = sum(storage.vector_bytes(dim) for dim in (dims[:1] if alike else dims))
    return ((stored, f"bytes for {name.replace('numbers', f'{count} numbers', 1)} and their scales"),)


def _reach(group: LayerGroup, strategy: Strategy) -> str:
    if group.reach == "cross":
        return (
            "tokens of the other input" if group.source_tokens is None else f"{group.source_tokens:,} tokens"
        )
    limits = [group.window] if group.window is not None and not strategy.ignores_windows else []
    if strategy.window is not None:
        limits.append(strategy.window + strategy.sinks)
    if strategy.budget is not None:
        limits.append(strategy.budget)
    return f"at most {min(limits):,} tokens" if limits else "every token"
