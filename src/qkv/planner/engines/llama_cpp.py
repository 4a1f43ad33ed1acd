"""How llama.cpp sizes its cache: a run of cells per sequence, in steps of 256.

All cells are set aside when the context is made. Layers with a window get a run of their own, for the
window and the tokens of a step, and keep it in 16 bits whatever the rest is stored as.
(`src/llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp`; block formats as in `ggml`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

CELLS = 256
"""Runs are a multiple of this."""
STEP_TOKENS = 512
"""``n_ubatch``, tokens of a step."""

FORMS = ("fp16", "bf16", "float32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class LlamaCpp:
    """One run of cells per sequence and kind of layer, all of it from the start."""

    name: str = "llama.cpp"
    usable_share: float = 1.0

    def loaded(self, model: ModelMemory, form: str | None) -> ModelMemory:
        """Return the model itself: its weights are kept as they are stored."""
        return as_stored(model, form)

    def check(self, model: ModelMemory, request: Request) -> None:
        """Raise `PlanError` if pages are asked for."""
        check_unpaged(self.name, request)

    def read(self, cache: str, request: Request) -> Strategy:
        """Return the strategy of ``--cache-type-k`` and ``--cache-type-v``, both alike."""
        return _cells(read_storage(cache, FORMS, self.name))

    def candidates(self, model: ModelMemory, request: Request) -> tuple[Strategy, ...]:
        """Return what to compare."""
        rows = [_cells(STORAGES[name]) for name in ("fp16", "q8_0", "q5_1", "q4_0")]
        if model.has_windows:
            rows.insert(0, Strategy("float16, --swa-full", "", STORAGES["fp16"], ignores_windows=True))
        return tuple(rows)

    def demand(self, model: ModelMemory, strategy: Strategy, request: Request) -> Demand:
        """Return what one device needs; nothing is shared between sequences."""
        per_user = sum(
            group.count * _layer_cells(group, strategy, request) * _cell_bytes(group, strategy)
            for group in model.layers
        )
        states = sum(state.count * _state_bytes(state.recurrent_numbers, state.channels, state.kernel)
                     for state in model.states)  # fmt: skip
        return Demand(0, per_user + states)

    def terms(self, model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
        """Return the products behind the bytes of a token."""
        return products(model, strategy)

    def remarks(self, strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
        """Return that nothing is shared, where users have a beginning in common."""
        return nothing_shared(self.name, request)


def _cells(storage: Storage) -> Strategy:
    return Strategy(storage.title, storage.name, storage)


def _layer_cells(group: LayerGroup, strategy: Strategy, request: Request) -> int:
    base = _padded(request.context)
    if group.reach == "cross":
        return _padded(group.kept(request.context))
    if group.window is None or strategy.ignores_windows:
        return base
    return _padded(min(base, group.window + (request.step_tokens or STEP_TOKENS)))


def _cell_bytes(group: LayerGroup, strategy: Strategy) -> int:
    """Blocks of 32 run over all heads of a row; a latent keeps its first part a second time, as value."""
    storage = STORAGES["fp16"] if group.window is not None else strategy.storage
    if group.is_latent:
        return 2 * storage.vector_bytes(group.key_dim) + _index_bytes(group, storage)
    G = group.num_kv_heads
    rows = storage.vector_bytes(G * group.key_dim) + storage.vector_bytes(G * group.value_dim)
    return rows + _index_bytes(group, storage)


def _index_bytes(group: LayerGroup, storage: Storage) -> int:
    return storage.vector_bytes(group.index_dim) if group.index_dim else 0


def _state_bytes(recurrent_numbers: int, channels: int, kernel: int) -> int:
    return 4 * (recurrent_numbers + channels * (kernel - 1))


def _padded(num_tokens: int) -> int:
    return -(-num_tokens // CELLS) * CELLS
