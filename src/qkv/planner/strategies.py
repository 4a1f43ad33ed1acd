"""A strategy for the cache, a request for memory, and what the one asks for the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from qkv.errors import PlanError
from qkv.planner.layers import LayerGroup, ModelMemory
from qkv.planner.storage import Storage, storage_named
from qkv.planner.term import Term


@dataclass(frozen=True)
class Request:
    """Who asks for how much: ``users`` sequences of up to ``context`` tokens each.

    Parameters
    ----------
    users, context : int
    shared_prefix : int
        Tokens at the beginning that are the same for all users.
    new_tokens : int
        How many of the context are generated after the prompt.
    tensor_parallel : int
        Devices the heads are split over.
    page_size : int, optional
        P; what the engine prefers when left out.
    step_tokens : int, optional
        Tokens an engine runs at once; what it prefers when left out.
    """

    users: int
    context: int
    shared_prefix: int = 0
    new_tokens: int = 0
    tensor_parallel: int = 1
    page_size: int | None = None
    step_tokens: int | None = None


@dataclass(frozen=True)
class Strategy:
    """What is kept, in what form, and how memory is given out.

    Parameters
    ----------
    title : str
        What to call it in a table.
    text : str
        How to ask for it: ``qkv plan --cache TEXT``.
    storage : Storage
    page_size : int, optional
        Tokens of a page; ``None``: exactly as many slots as tokens.
    reserved : int, optional
        Slots set aside for each user, used or not.
    shares_prefix : bool
        Whether equal beginnings are stored once.
    budget : int, optional
        Tokens of a user that an eviction keeps.
    window, sinks : int
        A window put upon a model, and the first tokens that stay in sight.
    ignores_windows : bool
        Whether layers with a window keep every token all the same.
    keeps_generated : bool
        Whether the budget is that of the prompt, and what is generated after it stays.
    """

    title: str
    text: str
    storage: Storage
    page_size: int | None = None
    reserved: int | None = None
    shares_prefix: bool = False
    budget: int | None = None
    window: int | None = None
    sinks: int = 0
    ignores_windows: bool = False
    keeps_generated: bool = False

    @property
    def is_lossless(self) -> bool:
        """Whether the model's answers stay as they are."""
        return self.storage.is_lossless and self.budget is None and self.window is None

    def kept(self, layer: LayerGroup, num_tokens: int) -> int:
        """Return how many tokens of one sequence a layer holds under this strategy."""
        slots = num_tokens if self.reserved is None else max(num_tokens, self.reserved)
        if layer.reach == "cross":
            return layer.kept(slots)
        kept = slots if self.ignores_windows else layer.kept(slots)
        if self.window is not None:
            kept = min(kept, self.window + self.sinks)
        return kept if self.budget is None else min(kept, self.budget)


@dataclass(frozen=True)
class Demand:
    """Bytes a strategy needs: ``shared`` once, ``per_user`` for each.

    A text that grows to this length may take more on its way, as where pages are encoded when full: ``most``,
    for each user. Room is needed for that.

    Examples
    --------
    >>> demand = Demand(shared=1000, per_user=300)
    >>> demand.total(users=3), demand.users_in(2000), Demand(1000, 300, most=500).users_in(2000)
    (1900, 3, 2)
    """

    shared: int
    per_user: int
    most: int = 0

    @property
    def room_per_user(self) -> int:
        """Bytes that each user must have room for."""
        return max(self.per_user, self.most)

    def total(self, users: int) -> int:
        """Return the bytes for so many users."""
        return self.shared + users * self.per_user

    def room(self, users: int) -> int:
        """Return the bytes that so many users must have room for."""
        return self.shared + users * self.room_per_user

    def users_in(self, budget: int) -> int:
        """Return how many users fit."""
        return max(0, (budget - self.shared) // self.room_per_user) if self.room_per_user else 0


class Engine(Protocol):
    """What the planner must know of an engine; see `qkv.planner.engines`."""

    @property
    def name(self) -> str:
        """How a user names it."""
        ...

    @property
    def usable_share(self) -> float:
        """Of a device's memory, what the engine takes for itself at most."""
        ...

    def loaded(self, model: ModelMemory, form: str | None) -> ModelMemory:
        """Return a model with the weights as they are kept in memory, in the form that a text names."""
        ...

    def check(self, model: ModelMemory, request: Request) -> None:
        """Raise `PlanError` if the engine has no way to serve a model as it is requested."""
        ...

    def read(self, cache: str, request: Request) -> Strategy:
        """Return the strategy a text asks for."""
        ...

    def candidates(self, model: ModelMemory, request: Request) -> tuple[Strategy, ...]:
        """Return the strategies worth comparing, in the order in which to try them."""
        ...

    def demand(self, model: ModelMemory, strategy: Strategy, request: Request) -> Demand:
        """Return what one device needs."""
        ...

    def terms(self, model: ModelMemory, strategy: Strategy) -> tuple[Term, ...]:
        """Return the products behind the bytes of a token."""
        ...

    def remarks(self, strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
        """Return what the reader should know of strategies that are shown for a request."""
        ...


def as_stored(model: ModelMemory, form: str | None) -> ModelMemory:
    """Return the model itself, for engines that keep weights as the file has them.

    Raises
    ------
    PlanError
        If another form is asked for.
    """
    if form is not None:
        raise PlanError(
            f"the planner knows weights kept as {form} of engine qkv alone; "
            "say how many bytes they take, such as weights='8GB'"
        )
    return model


def check_unpaged(engine: str, request: Request) -> None:
    """Refuse a page size, for engines without pages.

    Raises
    ------
    PlanError
        If one is asked for.
    """
    if request.page_size is not None:
        raise PlanError(f"{engine} has no pages; leave page_size out, or plan for 'vllm', 'qkv' or 'ideal'")


def nothing_shared(engine: str, request: Request) -> tuple[str, ...]:
    """Return a remark that a common beginning saves nothing, for engines that store it for each user."""
    if not request.shared_prefix:
        return ()
    return (f"{engine} stores the {request.shared_prefix:,} tokens in common once for each user",)


def unshared(strategies: Sequence[Strategy], request: Request) -> tuple[str, ...]:
    """Return a remark on strategies that let go of tokens, and so share no common beginning."""
    limited = (each for each in strategies if each.budget is not None or each.window is not None)
    titles = dict.fromkeys(each.title for each in limited)
    if not request.shared_prefix or not titles:
        return ()
    return (f"{'; '.join(titles)}: the tokens in common are counted once for each user",)


def read_strategy(cache: str, names: tuple[str, ...], make: Callable[[Storage], Strategy]) -> Strategy:
    """Return the strategy of a text such as ``int8,window=1024,sinks=4`` or ``fp8,keep=512``.

    Parameters
    ----------
    cache : str
        A form of storage, and what is kept: ``window=W``, ``sinks=n``, ``keep=BUDGET``.
    names : tuple of str
        The forms there are; the first is taken where the text names none.
    make : callable
        Gives the strategy that keeps everything in a form.

    Raises
    ------
    PlanError
        If a part is unknown, has no meaning or comes twice.
    """
    parts = _parts(cache)
    strategy = make(_storage(parts, names))
    given = [_limit(part) for part in parts if "=" in part]
    limits = dict(given)
    if len(limits) < len(given):
        raise PlanError(f"each of window=W, sinks=n and keep=BUDGET is given once, not {cache[:80]!r}")
    if limits.get("sinks") and "window" not in limits:
        raise PlanError("sinks=n stay in sight beside a window; add window=W")
    if not limits:
        return strategy
    kept = {"window": "window {:,}", "sinks": "{:,} sinks", "keep": "{:,} tokens kept each"}
    title = f"{strategy.title}, {', '.join(kept[name].format(value) for name, value in limits.items())}"
    return replace(
        strategy,
        title=title,
        text=cache,
        shares_prefix=False,
        budget=limits.get("keep"),
        window=limits.get("window"),
        sinks=limits.get("sinks", 0),
    )


def read_storage(cache: str, names: tuple[str, ...], engine: str) -> Storage:
    """Return the form of storage that a text names, for engines that keep all that a model sees.

    Raises
    ------
    PlanError
        If the form is unknown, or the text limits what is kept.
    """
    parts = _parts(cache)
    if limits := [part for part in parts if "=" in part]:
        raise PlanError(
            f"{engine} keeps every token that the model's layers see, and has no {limits[0][:40]!r}; "
            "name a form of storage alone, or plan for engine 'qkv' or 'ideal'"
        )
    return _storage(parts, names)


def _parts(cache: str) -> list[str]:
    return [part.strip() for part in cache.split(",") if part.strip()]


def _storage(parts: list[str], names: tuple[str, ...]) -> Storage:
    forms = [part for part in parts if "=" not in part]
    if len(forms) > 1:
        raise PlanError(f"the cache has one form of storage, not {' and '.join(forms)[:80]}")
    return storage_named(forms[0] if forms else names[0], names)


def _limit(part: str) -> tuple[str, int]:
    name, _, value = (piece.strip() for piece in part.partition("="))
    if name not in ("window", "sinks", "keep"):
        raise PlanError(f"what is kept is limited by window=W, sinks=n or keep=BUDGET, not {part[:40]!r}")
    if not (value.isascii() and value.isdigit()) or len(value) > 12 or int(value) < 1:
        raise PlanError(f"{name} takes a number of tokens, not {value[:40]!r}")
    return name, int(value)
