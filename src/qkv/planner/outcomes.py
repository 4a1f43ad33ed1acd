"""What a strategy comes to: its bytes, and how many users and tokens fit in a budget."""

from dataclasses import dataclass, replace

from qkv.planner.layers import ModelMemory
from qkv.planner.strategies import Demand, Engine, Request, Strategy

NO_LIMIT = 2**34
"""Tokens: a context that long, and it does not grow any more."""


@dataclass(frozen=True)
class Outcome:
    """A strategy's bytes for a request, on all devices together.

    Parameters
    ----------
    strategy : Strategy
    shared_bytes : int
        Stored once for all users.
    bytes_per_user : int
        What each user adds.
    total_bytes : int
    bytes_per_device : int
        What one device holds of the total.
    room_per_device : int
        What it must have room for: more where a text takes more on its way than in the end.
    users_that_fit : int
        In the budget.
    longest_context : int, optional
        That fits in the budget for so many users; ``None`` where length does not matter.
    """

    strategy: Strategy
    shared_bytes: int
    bytes_per_user: int
    total_bytes: int
    bytes_per_device: int
    room_per_device: int
    users_that_fit: int
    longest_context: int | None


def outcome_of(
    model: ModelMemory, engine: Engine, strategy: Strategy, request: Request, budget: int | None
) -> Outcome:
    """Work out a strategy.

    Parameters
    ----------
    model : ModelMemory
    engine : Engine
    strategy : Strategy
    request : Request
    budget : int, optional
        Bytes for the cache on each device; what the strategy needs when left out.
    """
    devices = request.tensor_parallel
    share = on_one_device(model, devices)
    demand = engine.demand(share, strategy, request)
    budget = demand.room(request.users) if budget is None else budget
    return Outcome(
        strategy=strategy,
        shared_bytes=devices * demand.shared,
        bytes_per_user=devices * demand.per_user,
        total_bytes=devices * demand.total(request.users),
        bytes_per_device=demand.total(request.users),
        room_per_device=demand.room(request.users),
        users_that_fit=demand.users_in(budget),
        longest_context=_longest(share, engine, strategy, request, budget),
    )


def on_one_device(model: ModelMemory, devices: int) -> ModelMemory:
    """Return what one of several devices keeps: its share of the key heads, but never less than one.

    A latent cannot be split and is on each of them.

    Examples
    --------
    8 key heads on 16 devices are stored twice:

    >>> from qkv.planner.layers import LayerGroup
    >>> model = ModelMemory("", "llama", (LayerGroup(80, 8, 128, 128),))
    >>> 16 * on_one_device(model, 16).numbers(1), model.numbers(1)
    (327680, 163840)
    """
    if devices == 1:
        return model
    layers = [replace(group, num_kv_heads=-(-group.num_kv_heads // devices)) for group in model.layers]
    states = [
        replace(
            state,
            recurrent_numbers=-(-state.recurrent_numbers // devices),
            channels=-(-state.channels // devices),
        )
        for state in model.states
    ]
    return replace(model, layers=tuple(layers), states=tuple(states))


def _longest(
    model: ModelMemory, engine: Engine, strategy: Strategy, request: Request, budget: int
) -> int | None:
    """Return the longest context that fits, by halving the range it lies in."""

    def fits(context: int) -> bool:
        shorter = replace(
            request,
            context=context,
            shared_prefix=min(request.shared_prefix, context),
            new_tokens=min(request.new_tokens, context),
        )
        demand: Demand = engine.demand(model, strategy, shorter)
        return demand.users_in(budget) >= request.users

    if fits(NO_LIMIT):
        return None
    low, high = 0, NO_LIMIT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
