"""No engine in particular: what a strategy needs where nothing is rounded but to its own pages."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import PlanError
from qkv.planner.explanation import products
from qkv.planner.layers import LayerGroup, ModelMemory
from qkv.planner.storage import STORAGES, Storage
from qkv.planner.strategies import Demand, Request, Strategy, as_stored, read_strategy, unshared
from qkv.planner.term import Term

PAGE_SIZE = 16
"""Tokens of a page in comparisons, as in the paper on PagedAttention (Kwon et al. 2023)."""


@dataclass(frozen=True)
class Ideal:
    """Pages or runs of exactly the bytes that their numbers and scales take."""

    name: str = "ideal"
    usable_share: float = 1.0

    def loaded(self, model: ModelMemory, form: str | None) -> ModelMemory:
        """Return the model itself: its weights are kept as they are stored."""
        return as_stored(model, form)

    def check(self, model: ModelMemory, request: Request) -> None:
        """Accept every request: no engine in particular has all modes."""

    def read(self, cache: str, request: Request) -> Strategy:
        """Return the strategy a text asks for: a storage, and limits on what is kept."""
        names = ("bf16", *(name for name in STORAGES if name != "bf16"))
        make = _limited if "=" in cache else _stored
        strategy = read_strategy(cache, names, lambda storage: make(storage, request))
        if strategy.sinks > request.context:
            raise PlanError(
                f"sinks={strategy.sinks:,} are more than the {request.context:,} tokens of the context"
            )
        return strategy

    def candidates(self, model: ModelMemory, request: Request) -> tuple[Strategy, ...]:
        """Return what to compare: lossless first, then fewer bits, then fewer tokens."""
        plain = STORAGES["bf16"]
        P = request.page_size or PAGE_SIZE
        longest = max(request.context, model.max_context or 0)
        rows = []
        if model.has_windows and model.numbers(request.context) < _unwindowed(model, request.context):
            rows.append(Strategy("16 bit, windows ignored", "", plain, P, ignores_windows=True))
        if longest > request.context:
            title = f"16 bit, {longest:,} slots reserved each"
            rows.append(Strategy(title, "", plain, reserved=longest))
        rows.append(Strategy(f"16 bit, pages of {P} tokens", "bf16", plain, P))
        shared = request.shared_prefix >= P
        if shared:
            rows.append(Strategy("16 bit, pages, prefix shared", "bf16", plain, P, shares_prefix=True))
        rows += [
            Strategy(STORAGES[name].title, name, STORAGES[name], P, shares_prefix=shared)
            for name in ("int8", "fp8", "q8_0", "int4")
        ]
        kept = max(P, request.context // 4)
        rows.append(Strategy(f"16 bit, {kept:,} tokens kept each", f"keep={kept}", plain, P, budget=kept))
        return tuple(rows)

    def demand(self, model: ModelMemory, strategy: Strategy, request: Request) -> Demand:
        """Return what one device needs, layer by layer."""
        layers = [(group, *_tokens(group, strategy, request)) for group in model.layers]
        sizes = {group: group.count * strategy.storage.token_bytes(group) for group in model.layers}
        shared = sum(sizes[group] * shared for group, shared, _ in layers)
        per_user = sum(sizes[group] * own for group, _, own in layers)
        return Demand(shared, per_user + model.state_bytes)

    def terms(self, model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
        """Return the products behind the bytes of a token."""
        return products(model, strategy)

    def remarks(self, strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
        """Return which strategies share nothing, where users have a beginning in common."""
        return unshared(strategies, request)


def _stored(storage: Storage, request: Request) -> Strategy:
    """Return the strategy that keeps every token, in single slots where no size of pages is named."""
    pages = "" if request.page_size is None else f", pages of {request.page_size} tokens"
    unpaged = "unpaged " if not pages and request.context % PAGE_SIZE else ""  # what pages would take is more
    shares = request.shared_prefix > 0
    title = f"{unpaged}{_title(storage)}{pages}{', prefix shared' if shares else ''}"
    return Strategy(title, storage.name, storage, request.page_size, shares_prefix=shares)


def _limited(storage: Storage, request: Request) -> Strategy:
    """Return the strategy that limits are put upon, in pages as its like in a comparison."""
    return Strategy(_title(storage), storage.name, storage, request.page_size or PAGE_SIZE)


def _title(storage: Storage) -> str:
    """Return what the comparisons call a form."""
    return "16 bit" if storage.name == "bf16" else storage.title


def _tokens(layer: LayerGroup, strategy: Strategy, request: Request) -> tuple[int, int]:
    """Return the slots of one layer that all users share, and those of each user."""
    kept, P = strategy.kept(layer, request.context), strategy.page_size or 1
    shared_pages = 0
    if strategy.shares_prefix and layer.reach != "cross":
        first = request.context - kept  # tokens before it have left a window
        shared_pages = max(0, request.shared_prefix // P - -(-first // P))
    own_pages = -(-(kept - shared_pages * P) // P)
    return shared_pages * P, own_pages * P


def _unwindowed(model: ModelMemory, num_tokens: int) -> int:
    return sum(group.count * group.numbers_per_token * num_tokens for group in model.layers)
