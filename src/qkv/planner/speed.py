"""How fast a machine can be at best: what must be read for a token, what must be computed for a prompt."""

from dataclasses import dataclass

from qkv.planner.layers import ModelMemory


@dataclass(frozen=True)
class SpeedBounds:
    """Bounds that no implementation passes; real ones reach half to nine tenths of them.

    Parameters
    ----------
    step_bytes : int
        Read for one token of every user: the weights once, and each user's keys and values.
    decode_tokens_per_second : float
        For each user, at most; all users' together are ``users`` times that.
    prefill_operations : int
        Of one user's prompt.
    prefill_seconds : float, optional
        For one user's prompt, at least; ``None`` where no compute rate was given.
    """

    step_bytes: int
    decode_tokens_per_second: float
    prefill_operations: int
    prefill_seconds: float | None


def speed_bounds(
    model: ModelMemory,
    cache_bytes: int,
    context: int,
    *,
    weight_bytes: int,
    bandwidth: float,
    compute: float | None = None,
) -> SpeedBounds:
    """Return what memory bandwidth and compute allow at best.

    Parameters
    ----------
    model : ModelMemory
    cache_bytes : int
        Of all users that step together.
    context : int
        Tokens of one prompt.
    weight_bytes : int
    bandwidth : float
        Bytes a second that the memory gives.
    compute : float, optional
        Operations a second.

    Examples
    --------
    Llama 3 8B on a card of 3.35 TB/s, one user with 4,096 tokens: 16.6 GB are read for each token.

    >>> model = ModelMemory("", "llama", (), num_parameters=8_030_261_248)
    >>> bounds = speed_bounds(model, 2**29, 4096, weight_bytes=16_060_522_496, bandwidth=3.35e12)
    >>> round(bounds.decode_tokens_per_second)
    202
    """
    read = _weights_read(model, weight_bytes) + cache_bytes
    operations = prefill_operations(model, context)
    seconds = None if compute is None else operations / compute
    return SpeedBounds(read, bandwidth / read, operations, seconds)


def prefill_operations(model: ModelMemory, num_tokens: int) -> int:
    """Return the operations of a prompt: two per weight and token, and attention's two products.

    A query sees half of the context on average, or its window.
    """
    weights = 2 * (model.active_parameters or model.num_parameters or 0) * num_tokens
    attention = sum(
        2 * group.count * model.num_query_heads * (group.key_dim + (group.value_dim or group.key_dim))
        * _pairs(num_tokens, group.kept(num_tokens))
        for group in model.layers
    )  # fmt: skip
    return weights + attention


def _weights_read(model: ModelMemory, weight_bytes: int) -> int:
    """Return the weights one token needs; a step of many users reads more experts, up to all."""
    if not model.num_parameters or not model.active_parameters:
        return weight_bytes
    return weight_bytes * model.active_parameters // model.num_parameters


def _pairs(num_queries: int, window: int) -> int:
    """Return how many keys all queries of a prompt see together: 1 + 2 + ... up to the window."""
    if window >= num_queries:
        return num_queries * (num_queries + 1) // 2
    return window * (window + 1) // 2 + (num_queries - window) * window
