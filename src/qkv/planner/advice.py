"""One configuration to take, for qkv and in the words of two other engines, with the reasons."""

from dataclasses import dataclass, replace

from qkv.errors import PlanError
from qkv.models.weights import FORMS
from qkv.planner.budget import too_large
from qkv.planner.catalogue import catalogue
from qkv.planner.estimate import plan
from qkv.planner.layers import ModelMemory
from qkv.planner.machine import machine_memory
from qkv.planner.result import Plan
from qkv.planner.sources import Source, find_model
from qkv.planner.units import parse_memory, show_bytes

ENGINES = ("qkv", "vllm", "llama.cpp")

SMALLER_WEIGHTS = ("bf16", "int8")
"""Forms in which qkv can keep weights that do not fit as they are stored, the better one first."""

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
        Bytes of all weights; or, of qkv alone, the form they are kept in, such as ``"int8"``. What fits
        best when left out.
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
    device = machine_memory() if memory is None else parse_memory(memory)
    wish = _Wish(find_model(model), users, context, device, shared_prefix)
    size = None if isinstance(weights, str) and weights in FORMS else weights
    others = (_advice(wish.plan(engine, size)) for engine in ENGINES[1:])
    return _own_advice(wish, weights), *others


@dataclass(frozen=True)
class _Wish:
    """What is asked of every engine alike."""

    model: ModelMemory
    users: int
    context: int | None
    device: int
    shared_prefix: int

    def plan(self, engine: str, weights: int | str | None) -> Plan:
        """Return the plan of an engine; without a length, for the longest that fits without loss."""

        def of_length(tokens: int) -> Plan:
            return plan(
                *(self.model, self.users, tokens),
                engine=engine,
                memory=self.device,
                weights=weights,
                shared_prefix=self.shared_prefix,
            )

        made = of_length(_longest(self.model) if self.context is None else self.context)
        if self.context is None and not made.fits and (made.longest_context or 0) > self.shared_prefix:
            return of_length(made.longest_context or 1)
        return made


def _own_advice(wish: _Wish, weights: int | str | None) -> Advice:
    """Keep weights as they are stored if that leaves room for the cache, else smaller."""
    advice = _advice(wish.plan("qkv", weights), weights)
    if advice.setting or weights is not None:
        return advice
    for form in SMALLER_WEIGHTS:
        smaller = _advice(wish.plan("qkv", form), form)
        if smaller.setting:
            rounded = f"weights are rounded to {form}, for beside those stored nothing fits"
            return replace(smaller, reason=f"{rounded}; the cache: {smaller.reason}")
    return advice


def _advice(made: Plan, weights: int | str | None = None) -> Advice:
    engine, outcome = made.engine, made.recommended.outcome
    assert made.memory is not None, "advice is for a device"
    if not made.memory.holds_weights:
        return Advice(engine, "", too_large(made.memory), made)
    if outcome is None:
        return Advice(engine, "", made.recommended.reason, made)
    cache = outcome.strategy.text
    if engine == "qkv":
        setting = _qkv(cache, weights if isinstance(weights, str) and weights in FORMS else None)
    else:
        setting = {"vllm": _vllm, "llama.cpp": _llama_cpp}[engine](made, cache)
    return Advice(engine, setting, made.recommended.reason, made)


def _qkv(cache: str, weights: str | None) -> str:
    text = "" if cache == "float32" else cache
    loading = "" if weights is None else f'model = qkv.load(folder, weights="{weights}"); '
    return f'{loading}cache = qkv.new_cache(model, "{text}")'


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
