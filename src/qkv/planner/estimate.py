"""The plan: what a model's cache takes for so many users, under every strategy, before anything runs."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import PlanError
from qkv.models.weights import FORMS
from qkv.planner.budget import MemoryBudget, loaded_weights, memory_budget, too_large
from qkv.planner.choice import recommend
from qkv.planner.engines import engine_named
from qkv.planner.layers import ModelMemory
from qkv.planner.outcomes import Outcome, on_one_device, outcome_of
from qkv.planner.result import Plan
from qkv.planner.sources import Source, find_model
from qkv.planner.speed import SpeedBounds, speed_bounds
from qkv.planner.strategies import Engine, Request, Strategy
from qkv.planner.term import Term
from qkv.planner.units import parse_memory, parse_rate

if TYPE_CHECKING:  # simulations are loaded where they are asked for
    from qkv.planner.lengths import Lengths
    from qkv.planner.utilisation import Comparison

MOST = 2**40
"""Users, tokens or devices; more is a slip of the keyboard."""


def plan(
    model: Source,
    users: int = 1,
    context: int | None = None,
    *,
    cache: str = "",
    engine: str = "ideal",
    memory: int | str | None = None,
    kv_memory: int | str | None = None,
    weights: int | str | None = None,
    page_size: int | None = None,
    shared_prefix: int = 0,
    new_tokens: int = 0,
    tensor_parallel: int = 1,
    step_tokens: int | None = None,
    lengths: "str | Path | Lengths | None" = None,
    bandwidth: float | str | None = None,
    compute: float | str | None = None,
) -> Plan:
    """Say exactly what a model's KV cache takes, how many users fit, and what to choose.

    Parameters
    ----------
    model : str, Path or mapping
        A well-known name, a model folder, a config.json or what it holds, a .gguf file, or a hub id.
    users : int
        Sequences held at once.
    context : int, optional
        Tokens of each; the model's own longest when left out.
    cache : str
        A strategy as the engine spells it, such as ``int8``, ``fp8,keep=512``, ``int8,window=1024,sinks=4``.
    engine : {"ideal", "qkv", "vllm", "llama.cpp", "transformers"}
        Whose way of laying out memory to count.
    memory : int or str, optional
        Of one device, such as ``"80GiB"``; weights and workspace come off it.
    kv_memory : int or str, optional
        For the cache alone, on each device.
    weights : int or str, optional
        What all weights take, where the config does not tell; or for engine qkv in which form they are
        kept: ``"float32"``, ``"bf16"`` or ``"int8"``.
    page_size : int, optional
        P, tokens of a page; where it is left out, the ideal engine counts single tokens of what keeps them
        all, and pages of 16 of what is limited.
    shared_prefix : int
        Tokens at the beginning that all users have in common, stored once per page that is full of them.
    new_tokens : int
        How many of the context are generated, for evictions that act when a prompt has been read.
    tensor_parallel : int
        Devices the key heads are split over.
    step_tokens : int, optional
        Tokens an engine runs at once; vLLM and llama.cpp keep room for them behind a window.
    lengths : str, Path or (n, 2) integers, optional
        Prompt and answer lengths to simulate allocators with: ``sharegpt``, ``alpaca``, a CSV file, or the
        numbers themselves. Takes seconds.
    bandwidth, compute : float or str, optional
        Of one device, such as ``"3.35TB/s"`` and ``"990TFLOP/s"``: how fast it can be at best.

    Returns
    -------
    Plan

    Raises
    ------
    PlanError
        If the model cannot be sized, or the request has no meaning.

    Examples
    --------
    100 users of 4,096 tokens on Llama 3 8B are 50 GiB, which is 53.7 GB:

    >>> made = plan("llama-3-8b", users=100, context=4096)
    >>> made.bytes_per_token, made.bytes, made.bytes / 2**30
    (131072, 53687091200, 50.0)
    >>> print(made.terms[0])
    2 (keys and values) × 32 (layers) × 8 (key heads) × 128 (numbers) × 2 (bytes) = 131,072 bytes per token
    >>> plan("llama-3-8b", 100, 4096, cache="int8", kv_memory="40GiB").users_that_fit
    155
    """
    if compute is not None and bandwidth is None:
        raise PlanError(
            "compute bounds the speed together with bandwidth; give bandwidth too, such as '3.35TB/s'"
        )
    layout = engine_named(engine)
    if not isinstance(cache, str):
        raise PlanError(f"cache is text such as 'int8', or '' for 16 bits, not this {type(cache).__name__}")
    sized = _weighed(find_model(model), layout, weights)
    request = Request(
        users=_count("users", users),
        context=_context(sized, context),
        shared_prefix=_count("shared_prefix", shared_prefix, least=0),
        new_tokens=_count("new_tokens", new_tokens, least=0),
        tensor_parallel=_count("tensor_parallel", tensor_parallel),
        page_size=None if page_size is None else _count("page_size", page_size),
        step_tokens=None if step_tokens is None else _count("step_tokens", step_tokens),
    )
    for name in ("shared_prefix", "new_tokens"):
        if getattr(request, name) > request.context:
            raise PlanError(f"{name} is part of the context: {getattr(request, name)} > {request.context}")
    layout.check(sized, request)
    divided, budget = _budgets(sized, layout, request, memory, kv_memory)
    chosen = layout.read(cache, request)
    made = _planned(sized, layout, request, chosen, divided, budget)
    if lengths is not None:
        made = replace(made, utilisation=_utilisation(made, lengths))
    if bandwidth is not None:
        made = replace(made, speed=_speed(made, bandwidth, compute))
    return made


def _weighed(model: ModelMemory, engine: Engine, weights: int | str | None) -> ModelMemory:
    """Return a model with what its weights take: the caller's own word, or as the engine keeps them."""
    if weights is None or (isinstance(weights, str) and weights in FORMS):
        return engine.loaded(model, weights)
    return replace(model, weight_bytes=parse_memory(weights))


def _planned(
    model: ModelMemory,
    engine: Engine,
    request: Request,
    chosen: Strategy,
    memory: MemoryBudget | None,
    budget: int | None,
) -> Plan:
    candidates = engine.candidates(model, request)
    baseline = next(strategy for strategy in candidates if strategy.text)
    assumed = outcome_of(model, engine, baseline, request, None).room_per_device

    def evaluate(strategy: Strategy) -> Outcome:
        return outcome_of(model, engine, strategy, request, assumed if budget is None else budget)

    outcomes = tuple(evaluate(strategy) for strategy in candidates)
    recommended = recommend(outcomes, budget, request.users, evaluate)
    taken = () if recommended.outcome is None else (recommended.outcome.strategy,)
    remarks = engine.remarks((chosen, *candidates, *taken), request)
    return Plan(
        model=model,
        engine=engine.name,
        request=request,
        chosen=evaluate(chosen),
        outcomes=outcomes,
        recommended=recommended,
        terms=_terms(model, engine, chosen, request.tensor_parallel),
        budget=budget,
        memory=memory,
        speed=None,
        utilisation=None,
        warnings=(*_warnings(model, request, memory), *remarks),
    )


def _terms(model: ModelMemory, engine: Engine, strategy: Strategy, devices: int) -> tuple[Term, ...]:
    """Return the products of one device times the devices, so that heads stored again are counted."""
    terms = engine.terms(on_one_device(model, devices), strategy)
    if devices == 1:
        return terms
    return tuple(replace(term, factors=(*term.factors, (devices, "devices"))) for term in terms)


def _budgets(
    model: ModelMemory,
    engine: Engine,
    request: Request,
    memory: int | str | None,
    kv_memory: int | str | None,
) -> tuple[MemoryBudget | None, int | None]:
    if memory is not None and kv_memory is not None:
        raise PlanError("memory is the whole device and kv_memory what is left for the cache: give one")
    if memory is None:
        return None, None if kv_memory is None else parse_memory(kv_memory)
    divided = memory_budget(model, engine, request, parse_memory(memory), loaded_weights(model))
    return divided, divided.cache


def _utilisation(made: Plan, lengths: "str | Path | Lengths") -> "Comparison":
    from qkv.planner.utilisation import compare_utilisation

    if not made.bytes_per_token:
        raise PlanError(f"{made.model.name} keeps nothing per token: there are no slots to simulate")
    budget = made.chosen.bytes_per_device if made.budget is None else made.budget
    slots = budget * made.request.tensor_parallel // made.bytes_per_token
    return compare_utilisation(lengths, slots, made.request.context, made.request.page_size or 16)


def _speed(made: Plan, bandwidth: float | str, compute: float | str | None) -> SpeedBounds:
    devices = made.request.tensor_parallel
    return speed_bounds(
        made.model,
        made.bytes,
        made.request.context,
        weight_bytes=loaded_weights(made.model),
        bandwidth=devices * parse_rate(bandwidth, "B/s"),
        compute=None if compute is None else devices * parse_rate(compute, "FLOP/s"),
    )


def _warnings(model: ModelMemory, request: Request, memory: MemoryBudget | None) -> tuple[str, ...]:
    warnings = [f"upper bound: {reason}" for reason in model.bounds]
    if model.max_context is not None and request.context > model.max_context:
        warnings.append(
            f"{request.context:,} tokens are beyond the {model.max_context:,} that {model.name} was made for"
        )
    if memory is not None and not memory.holds_weights:
        warnings.append(too_large(memory))
    return (*warnings, *model.notes)


def _context(model: ModelMemory, context: int | None) -> int:
    if context is not None:
        return _count("context", context)
    if model.max_context is None:
        raise PlanError(f"{model.name} does not say how many tokens it takes; give context=")
    return model.max_context


def _count(name: str, value: int, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= MOST:
        shown = f"{value:,}" if type(value) is int and abs(value) < 2**70 else f"this {type(value).__name__}"
        raise PlanError(f"{name} must be an integer from {least} to 2**40, not {shown}")
    return value
