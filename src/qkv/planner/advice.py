"""One configuration to take, for qkv and in the words of two other engines, with the reasons."""

from dataclasses import dataclass

from qkv.errors import PlanError
from qkv.planner.budget import too_large
from qkv.planner.catalogue import catalogue
from qkv.planner.estimate import plan
from qkv.planner.layers import ModelMemory
from qkv.planner.machine import machine_memory
from qkv.planner.result import Plan
from qkv.planner.sources import Source, find_model
from qkv.planner.units import parse_bytes, show_bytes

ENGINES = ("qkv", "vllm", "llama.cpp")

VLLM_DTYPES = {"bf16": "auto", "int8": "int8_per_token_head"}
"""``--kv-cache-dtype`` where it is spelled otherwise than here."""

LLAMA_CPP_TYPES = {"fp16": "f16", "float32": "f32"}
"""``--cache-type-k`` likewise."""


@dataclass(frozen=True)
class Advice:
    """What to tell an engine, and why.

    Parameters
    ----------
    engine : str
    setting : str
        A command or a line of Python; empty where nothing fits.
    reason : str
    plan : Plan
        The figures behind it.
    """

    engine: str
    setting: str
    reason: str
    plan: Plan


def advise(
    model: Source,
    users: int = 1,
    context: int | None = None,
    *,
    memory: int | str | None = None,
    weights: int | str | None = None,
    shared_prefix: int = 0,
) -> tuple[Advice, ...]:
    """Recommend a configuration for this machine, or for another of so much memory.

    Parameters
    ----------
    model : str, Path or mapping
        As for `qkv.plan`.
    users : int
    context : int, optional
        Tokens of each user; the model's longest, or what fits of it without loss, when left out.
    memory : int or str, optional
        Of the machine or card; this machine's own when left out.
    weights : int or str, optional
    shared_prefix : int
        Tokens at the beginning that all users have in common.

    Returns
    -------
    tuple of Advice
        For qkv, vLLM and llama.cpp.

    Examples
    --------
    >>> for advice in advise("llama-3-8b", users=64, context=8192, memory="72GiB")[1:]:
    ...     print(advice.setting)
    vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 8192 --max-num-seqs 64 --kv-cache-dtype int8_per_token_head --gpu-memory-utilization 0.9
    llama-server -m MODEL.gguf --ctx-size 524288 --parallel 64 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on
    """  # noqa: E501 - a command is one line
    sized = find_model(model)
    device = machine_memory() if memory is None else parse_bytes(memory)
    return tuple(_advice(engine, sized, users, context, device, weights, shared_prefix) for engine in ENGINES)


def _advice(
    engine: str,
    model: ModelMemory,
    users: int,
    context: int | None,
    device: int,
    weights: int | str | None,
    shared_prefix: int,
) -> Advice:
    def planned(tokens: int) -> Plan:
        return plan(
            model, users, tokens, engine=engine, memory=device, weights=weights, shared_prefix=shared_prefix
        )

    made = planned(_longest(model) if context is None else context)
    if context is None and not made.fits and (made.longest_context or 0) > shared_prefix:
        made = planned(made.longest_context or 1)
    outcome, reason = made.recommended.outcome, made.recommended.reason
    if made.memory is not None and not made.memory.holds_weights:
        return Advice(engine, "", too_large(made.memory), made)
    if outcome is None:
        return Advice(engine, "", reason, made)
    setting = {"qkv": _qkv, "vllm": _vllm, "llama.cpp": _llama_cpp}[engine](made, outcome.strategy.text)
    return Advice(engine, setting, reason, made)


def _qkv(made: Plan, cache: str) -> str:
    text = "" if cache == "float32" else cache
    return f'cache = qkv.new_cache(model, "{text}")'


def _vllm(made: Plan, cache: str) -> str:
    parts = [
        f"vllm serve {_hub_id(made.model)}",
        f"--max-model-len {made.request.context}",
        f"--max-num-seqs {made.request.users}",
        f"--kv-cache-dtype {VLLM_DTYPES.get(cache, cache)}",
        "--gpu-memory-utilization 0.9",
    ]
    if made.request.shared_prefix:
        parts.append("--enable-prefix-caching")
    return " ".join(parts)


def _llama_cpp(made: Plan, cache: str) -> str:
    form = LLAMA_CPP_TYPES.get(cache, cache)
    request = made.request
    quantised = "" if form in ("f16", "f32", "bf16") else " --flash-attn on"
    return (
        f"llama-server -m MODEL.gguf --ctx-size {request.context * request.users} --parallel {request.users} "
        f"--cache-type-k {form} --cache-type-v {form}{quantised}"
    )


def _hub_id(model: ModelMemory) -> str:
    entry = catalogue().get(model.name)
    return model.name if entry is None else entry["hub"]


def _longest(model: ModelMemory) -> int:
    if model.max_context is None:
        raise PlanError(f"{model.name} does not say how many tokens it takes; give context=")
    return model.max_context


def room(made: Plan) -> str:
    """Return in words what the cache of an advice takes of what is there."""
    outcome = made.recommended.outcome
    assert outcome is not None and made.memory is not None
    return (
        f"cache {show_bytes(outcome.bytes_per_device)}, weights {show_bytes(made.memory.weights)}, "
        f"of {show_bytes(made.memory.device)}"
    )
