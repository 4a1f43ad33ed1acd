"""Which strategy to take: the one that loses least among those that fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qkv.planner.outcomes import Outcome
from qkv.planner.strategies import Strategy
from qkv.planner.units import show_bytes


@dataclass(frozen=True)
class Recommendation:
    """A strategy and why; ``outcome`` is ``None`` where nothing fits.

    Parameters
    ----------
    outcome : Outcome or None
    reason : str
    """

    outcome: Outcome | None
    reason: str


def recommend(
    outcomes: Sequence[Outcome],
    budget: int | None,
    users: int,
    evaluate: Callable[[Strategy], Outcome],
) -> Recommendation:
    """Choose: what loses nothing first, then fewer bits, then fewer tokens; stop when the users fit.

    Parameters
    ----------
    outcomes : sequence of Outcome
        In the order in which to try them. Those without a text are there to compare with.
    budget : int, optional
        Bytes for the cache on each device.
    users : int
    evaluate : callable
        Works out a further strategy, for an eviction with just the tokens that fit.
    """
    choices = [outcome for outcome in outcomes if outcome.strategy.text]
    lossless = [outcome for outcome in choices if outcome.strategy.is_lossless]
    smallest = min(lossless, key=lambda outcome: outcome.room_per_device)
    if budget is None:
        return Recommendation(smallest, "it loses nothing, and no memory was named that it has to fit in")
    there = show_bytes(budget)
    if smallest.room_per_device <= budget and smallest.users_that_fit >= users:
        needs = show_bytes(smallest.room_per_device)
        return Recommendation(smallest, f"it loses nothing, and its {needs} fit in {there}")
    for outcome in choices:
        if outcome.users_that_fit < users:
            continue
        if outcome.strategy.budget is not None:
            outcome = _with_most_tokens(outcome, users, evaluate)
        return Recommendation(outcome, _least_loss(outcome, smallest, budget))
    return _evicting(choices, smallest, budget, users, evaluate)


def _evicting(
    choices: Sequence[Outcome],
    lossless: Outcome,
    budget: int,
    users: int,
    evaluate: Callable[[Strategy], Outcome],
) -> Recommendation:
    """Try the eviction with fewer tokens; else say how many users there is room for."""
    for outcome in choices:
        if outcome.strategy.budget is None:
            continue
        smaller = _with_most_tokens(outcome, users, evaluate)
        if smaller.users_that_fit >= users:
            return Recommendation(smaller, _least_loss(smaller, lossless, budget))
    most = max(choices, key=lambda outcome: outcome.users_that_fit)
    return Recommendation(
        None,
        f"nothing fits {users:,} user{'s' if users > 1 else ''} in {show_bytes(budget)}: "
        f"{most.strategy.title} holds {most.users_that_fit:,}; "
        "take fewer users, a shorter context, or more memory",
    )


def _with_most_tokens(outcome: Outcome, users: int, evaluate: Callable[[Strategy], Outcome]) -> Outcome:
    """Return the eviction that keeps as many tokens as there is room for."""
    strategy = outcome.strategy
    step = strategy.page_size or 1
    low, high = 0, 2**31 // step
    while high - low > 1:
        middle = (low + high) // 2
        fits = evaluate(_keeping(strategy, middle * step)).users_that_fit >= users
        low, high = (middle, high) if fits else (low, middle)
    return evaluate(_keeping(strategy, max(1, low) * step))


def _keeping(strategy: Strategy, tokens: int) -> Strategy:
    assert strategy.budget is not None
    old, new = strategy.budget, tokens
    title = strategy.title.replace(f"{old:,} tokens", f"{new:,} tokens").replace(f"={old}", f"={new}")
    return replace(strategy, budget=new, title=title, text=strategy.text.replace(f"={old}", f"={new}"))


def _least_loss(outcome: Outcome, lossless: Outcome, budget: int) -> str:
    what = "forgets least" if outcome.strategy.budget is not None else "loses least"
    return (
        f"of those that fit in {show_bytes(budget)} it {what}: it takes "
        f"{show_bytes(outcome.room_per_device)}, without loss it would be "
        f"{show_bytes(lossless.room_per_device)}"
    )
