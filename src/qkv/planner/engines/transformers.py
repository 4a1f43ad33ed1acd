"""How transformers sizes its cache: one tensor per layer that grows by a copy at each token.

A layer with a window keeps W - 1 tokens between steps. The quantised cache keeps up to 128 tokens in
full and the rest as 4 bits in groups of 64, and does not know windows. (`cache_utils.py`, 5.24.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qkv.planner.explanation import products
from qkv.planner.layers import LayerGroup, ModelMemory
from qkv.planner.storage import STORAGES, Storage
from qkv.planner.strategies import (
    Demand,
    Request,
    Strategy,
    as_stored,
    check_unpaged,
    nothing_shared,
    read_storage,
)
from qkv.planner.term import Term

RESIDUAL = 128
"""Latest tokens that the quantised cache keeps in 16 bits."""

FORMS = ("bf16", "fp16", "float32", "int4")


@dataclass(frozen=True)
class Transformers:
    """A tensor of keys and one of values per layer, for all sequences of a batch."""

    name: str = "transformers"
    usable_share: float = 1.0

    def loaded(self, model: ModelMemory, form: str | None) -> ModelMemory:
        """Return the model itself: its weights are kept as they are stored."""
        return as_stored(model, form)

    def check(self, model: ModelMemory, request: Request) -> None:
        """Raise `PlanError` if pages are asked for."""
        check_unpaged(self.name, request)

    def read(self, cache: str, request: Request) -> Strategy:
        """Return the strategy of a ``DynamicCache`` in a dtype, or of a ``QuantizedCache`` (``int4``)."""
        return _dynamic(read_storage(cache, FORMS, self.name))

    def candidates(self, model: ModelMemory, request: Request) -> tuple[Strategy, ...]:
        """Return what to compare."""
        plain = STORAGES["bf16"]
        rows = [_dynamic(plain), _dynamic(STORAGES["int4"])]
        longest = max(request.context, model.max_context or 0)
        if longest > request.context:
            title = f"bfloat16, StaticCache of {longest:,} tokens"
            rows.insert(0, Strategy(title, "", plain, reserved=longest))
        return tuple(rows)

    def demand(self, model: ModelMemory, strategy: Strategy, request: Request) -> Demand:
        """Return what one device needs between steps."""
        per_user = sum(
            group.count * _layer_bytes(_as_cached(group, model), strategy, request) for group in model.layers
        )
        states = sum(
            state.count * (4 * state.recurrent_numbers + 2 * state.channels * state.kernel)
            for state in model.states
        )
        return Demand(0, per_user + states)

    def terms(self, model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
        """Return the products behind the bytes of a token."""
        return products(model, strategy)

    def remarks(self, strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
        """Return that nothing is shared, where users have a beginning in common."""
        return nothing_shared(self.name, request)


def _dynamic(storage: Storage) -> Strategy:
    if storage.name == "int4":
        return Strategy("INT4, the latest 128 in 16 bits", "int4", storage, ignores_windows=True)
    return Strategy(f"{storage.title}, DynamicCache", storage.name, storage)


def _layer_bytes(group: LayerGroup, strategy: Strategy, request: Request) -> int:
    kept = strategy.kept(group, request.context)
    if strategy.storage.name == "int4":
        recent = min(kept, RESIDUAL)
        coded = kept - recent
        return coded * strategy.storage.token_bytes(group) + recent * STORAGES["bf16"].token_bytes(group)
    if group.window is not None and strategy.reserved is None:
        kept = min(kept, max(1, group.window - 1))
    return kept * strategy.storage.token_bytes(group)


def _as_cached(group: LayerGroup, model: ModelMemory) -> LayerGroup:
    """Falcon 40B repeats its key heads before it stores them, once for every query head."""
    if model.model_type == "falcon" and group.num_kv_heads > 1:
        return replace(group, num_kv_heads=max(group.num_kv_heads, model.num_query_heads))
    return group
