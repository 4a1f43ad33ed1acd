"""How vLLM sizes its cache: blocks of tokens, groups of layers that share one table of blocks.

Layers of the same kind form groups of equally many, so that one block id serves a layer of each
group; kinds whose counts do not divide are padded. A layer with a window needs the window and the
tokens of a step, and one block more, because a window seldom begins where a block does.
(`vllm/v1/kv_cache_interface.py` and `kv_cache_utils.py`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import PlanError
from qkv.planner.explanation import products
from qkv.planner.layers import LayerGroup, ModelMemory
from qkv.planner.storage import STORAGES, Storage
from qkv.planner.strategies import Demand, Request, Strategy, as_stored, read_storage
from qkv.planner.term import Term

BLOCK_SIZE = 16
STEP_TOKENS = 2048
"""``max_num_batched_tokens`` where it is not given; on large cards vLLM takes 8,192."""

FORMS = ("bf16", "fp16", "fp8", "int8", "nvfp4", "fp8_ds_mla")
"""Storages by name; ``int8`` has a float32 scale per token and head, ``fp8`` one per tensor."""


@dataclass(frozen=True)
class VLLM:
    """Blocks from one pool; a request is admitted when the blocks of its longest length are there."""

    name: str = "vllm"
    usable_share: float = 0.9
    """``gpu_memory_utilization``."""

    def loaded(self, model: ModelMemory, form: str | None) -> ModelMemory:
        """Return the model itself: its weights are kept as they are stored."""
        return as_stored(model, form)

    def check(self, model: ModelMemory, request: Request) -> None:
        """Raise `PlanError` if devices do not divide the query heads, or there are no such blocks."""
        devices, H = request.tensor_parallel, model.num_query_heads
        if H % devices:
            raise PlanError(f"expected tensor_parallel to be a divisor of the {H} query heads, got {devices}")
        B = request.page_size or BLOCK_SIZE
        if B % BLOCK_SIZE:
            raise PlanError(
                f"vllm's blocks hold a multiple of {BLOCK_SIZE} tokens on GPUs, not page_size {B}"
            )

    def read(self, cache: str, request: Request) -> Strategy:
        """Return the strategy of a ``kv_cache_dtype``."""
        return _blocks(read_storage(cache, FORMS, self.name), request)

    def candidates(self, model: ModelMemory, request: Request) -> tuple[Strategy, ...]:
        """Return what to compare."""
        is_latent = any(group.is_latent for group in model.layers)
        names = ("bf16", "fp8", "fp8_ds_mla") if is_latent else ("bf16", "int8", "fp8", "nvfp4")
        rows = [_blocks(STORAGES[name], request) for name in names]
        if model.has_windows:
            whole = Strategy(
                "bfloat16, hybrid allocator off",
                "",
                STORAGES["bf16"],
                rows[0].page_size,
                ignores_windows=True,
            )
            rows.insert(0, whole)
        return tuple(rows)

    def demand(self, model: ModelMemory, strategy: Strategy, request: Request) -> Demand:
        """Return what one device needs, in blocks of a layer of each group."""
        kinds = block_kinds(model, strategy, request)
        size = group_size([kind.count for kind in kinds])
        unit = size * kinds[0].block_bytes
        blocks = sum(-(-kind.count // size) * kind.blocks for kind in kinds)
        shared = sum(-(-kind.count // size) * kind.shared_blocks for kind in kinds)
        return Demand(shared * unit, (blocks - shared) * unit)

    def terms(self, model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
        """Return the products behind the bytes of a token."""
        return products(model, strategy)

    def remarks(self, strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
        """Return nothing: the figures hold for what is read and what is generated alike."""
        return ()


@dataclass(frozen=True)
class BlockKind:
    """Layers of one kind: a block's bytes in one of them, and how many blocks a request takes."""

    count: int
    block_bytes: int
    blocks: int
    shared_blocks: int


def block_kinds(model: ModelMemory, strategy: Strategy, request: Request) -> list[BlockKind]:
    """Return the kinds of layers, with blocks made equally large by giving small ones more tokens.

    Examples
    --------
    Gemma 3 4B at 32,768 tokens, 2,048 a step: 5 full layers, 29 that see 1,024 tokens.

    >>> full = LayerGroup(5, 4, 256, 256)
    >>> local = LayerGroup(29, 4, 256, 256, "sliding", 1024)
    >>> model = ModelMemory("", "", (full, local))
    >>> request = Request(users=1, context=32_768)
    >>> [kind.blocks for kind in block_kinds(model, VLLM().read("", request), request)]
    [2048, 193]
    """
    layers = [group.without_window for group in model.layers] if strategy.ignores_windows else model.layers
    merged: dict[tuple[object, ...], tuple[LayerGroup, int]] = {}
    for group in layers:
        key = (group.reach, group.window, strategy.storage.token_bytes(group))
        merged[key] = (group, merged.get(key, (group, 0))[1] + group.count)
    B = strategy.page_size or BLOCK_SIZE
    token_bytes = [strategy.storage.token_bytes(group) for group, _ in merged.values()]
    if model.states:  # a state is one block, so blocks of tokens grow to its size
        state = max(state.bytes_per_layer for state in model.states)
        B = max(B, -(-state // (16 * min(token_bytes, default=state))) * 16)
    largest = max([B * size for size in token_bytes] + [state.bytes_per_layer for state in model.states])
    kinds = [
        _block_kind(group, count, largest, B * (largest // (B * size)), request)
        for (group, count), size in zip(merged.values(), token_bytes, strict=True)
    ]
    return kinds + [BlockKind(state.count, largest, 1, 0) for state in model.states]


def group_size(counts: list[int]) -> int:
    """Return how many layers share a block id.

    The smallest count of a kind, or the largest if that is less than half as many again.

    Examples
    --------
    >>> group_size([10, 52]), group_size([12, 12]), group_size([10, 13])
    (10, 12, 13)
    """
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


def _block_kind(group: LayerGroup, count: int, block_bytes: int, B: int, request: Request) -> BlockKind:
    step = request.step_tokens or STEP_TOKENS
    N = request.context
    match group.reach:
        case "sliding":
            assert group.window is not None
            return BlockKind(count, block_bytes, -(-min(group.window - 1 + step, N) // B) + 1, 0)
        case "chunked":
            assert group.window is not None
            return BlockKind(count, block_bytes, -(-min(group.window + step, N) // B), 0)
        case "cross":
            return BlockKind(count, block_bytes, -(-group.kept(N) // B), 0)
    return BlockKind(count, block_bytes, -(-N // B), request.shared_prefix // B)


def _blocks(storage: Storage, request: Request) -> Strategy:
    B = request.page_size or BLOCK_SIZE
    shares = request.shared_prefix >= B
    title = f"{storage.title}{', prefix shared' if shares else ''}"
    return Strategy(title, storage.name, storage, B, shares_prefix=shares)
