"""What a device's memory is used for: weights, workspace, and what is left for the cache."""

from dataclasses import dataclass

from qkv.errors import PlanError
from qkv.planner.layers import ModelMemory
from qkv.planner.strategies import Engine, Request
from qkv.planner.units import show_bytes

STEP_TOKENS = 2048
"""Tokens run at once, where the engine does not say otherwise."""
ACTIVATION_ITEMSIZE = 2
LOGIT_ITEMSIZE = 4


@dataclass(frozen=True)
class MemoryBudget:
    """One device's memory by use, in bytes.

    Parameters
    ----------
    device : int
        All of it.
    reserve : int
        What the engine does not touch.
    weights : int
    workspace : int
        Activations of one step and the logits of all users; an estimate.
    """

    device: int
    reserve: int
    weights: int
    workspace: int

    @property
    def cache(self) -> int:
        """What is left for keys and values; 0 where the rest alone is too much."""
        return max(0, self.device - self.reserve - self.weights - self.workspace)

    @property
    def holds_weights(self) -> bool:
        """Whether anything is left at all."""
        return self.device > self.reserve + self.weights + self.workspace


def memory_budget(
    model: ModelMemory, engine: Engine, request: Request, device: int, weights: int
) -> MemoryBudget:
    """Divide a device's memory.

    Parameters
    ----------
    model : ModelMemory
    engine : Engine
    request : Request
    device : int
        Bytes of one device.
    weights : int
        Bytes of all weights.

    Examples
    --------
    >>> from qkv.planner.engines.ideal import Ideal
    >>> model = ModelMemory("", "llama", (), activation_numbers=10)
    >>> memory_budget(model, Ideal(), Request(users=1, context=7), device=20_000, weights=16_000).cache
    3860
    """
    tokens = min(request.step_tokens or STEP_TOKENS, request.users * request.context)
    workspace = (
        ACTIVATION_ITEMSIZE * model.activation_numbers * tokens
        + LOGIT_ITEMSIZE * model.vocab_size * request.users
    )
    return MemoryBudget(
        device=device,
        reserve=device - int(device * engine.usable_share),
        weights=-(-weights // request.tensor_parallel),
        workspace=workspace,
    )


def loaded_weights(model: ModelMemory) -> int:
    """Return what an engine's weights take, of a model as `Engine.loaded` gives it.

    Raises
    ------
    PlanError
        If that is not known.
    """
    if model.weight_bytes is None:
        raise PlanError(
            f"what the weights of {model.name} take is not known from its config; "
            "say it with weights=, or give the memory of the cache alone with kv_memory="
        )
    return model.weight_bytes


def too_large(budget: MemoryBudget) -> str:
    """Return in words that weights and workspace leave nothing for the cache."""
    return (
        f"the weights take {show_bytes(budget.weights)} and the workspace {show_bytes(budget.workspace)}, "
        f"which leaves nothing of {show_bytes(budget.device - budget.reserve)} for the cache"
    )
