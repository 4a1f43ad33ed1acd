"""What a plan says: bytes, what fits, what to take, and why."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.errors import PlanError
from qkv.planner.budget import MemoryBudget
from qkv.planner.choice import Recommendation
from qkv.planner.layers import ModelMemory
from qkv.planner.outcomes import Outcome
from qkv.planner.speed import SpeedBounds
from qkv.planner.strategies import Request
from qkv.planner.term import Term
from qkv.planner.units import show_bytes

if TYPE_CHECKING:  # simulations are loaded where they are asked for
    from qkv.planner.utilisation import Comparison


@dataclass(frozen=True)
class Plan:
    """What a cache takes, what fits, and what to choose.

    Parameters
    ----------
    model : ModelMemory
    engine : str
    request : Request
    chosen : Outcome
        Of the strategy that was asked for.
    outcomes : tuple of Outcome
        Of the strategies worth comparing.
    recommended : Recommendation
    terms : tuple of Term
        The products behind ``bytes_per_token``.
    budget : int, optional
        Bytes for the cache on each device, where a memory was named.
    memory : MemoryBudget, optional
        How the device's memory is divided, where the device was named.
    speed : SpeedBounds, optional
        Where a bandwidth was named.
    utilisation : Comparison, optional
        What slots would be used for, where lengths of requests were named.
    warnings : tuple of str
        What the reader should know: a context beyond the model's own, sizes that were filled in, bounds.
    """

    model: ModelMemory
    engine: str
    request: Request
    chosen: Outcome
    outcomes: tuple[Outcome, ...]
    recommended: Recommendation
    terms: tuple[Term, ...]
    budget: int | None
    memory: MemoryBudget | None
    speed: SpeedBounds | None
    utilisation: "Comparison | None"
    warnings: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all users' caches together, on all devices."""
        return self.chosen.total_bytes

    @property
    def bytes_per_user(self) -> int:
        """Bytes that each further user adds."""
        return self.chosen.bytes_per_user

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers, as long as no window is full."""
        return sum(term.bytes_per_token for term in self.terms)

    @property
    def users_that_fit(self) -> int:
        """Users in the budget; without one, in what this plan needs."""
        return self.chosen.users_that_fit

    @property
    def longest_context(self) -> int | None:
        """Tokens each user may have in the budget; ``None`` where length does not matter."""
        return self.chosen.longest_context

    @property
    def fits(self) -> bool:
        """Whether the users fit; true where no memory was named."""
        return self.budget is None or self.users_that_fit >= self.request.users

    @property
    def is_bound(self) -> bool:
        """Whether the true figures may be smaller than these."""
        return bool(self.model.bounds)

    def check_fits(self) -> None:
        """Refuse what does not fit, before anything is allocated.

        Raises
        ------
        PlanError
            If the users do not fit; it names the longest context that does.
        """
        if self.fits:
            return
        assert self.budget is not None
        users = f"{self.request.users:,} user{'s' if self.request.users > 1 else ''}"
        longest = self.longest_context or 0
        room = f"the longest that fits is {longest:,}" if longest else "not even one token fits"
        raise PlanError(
            f"{users} of {self.request.context:,} tokens need {show_bytes(self.chosen.room_per_device)}, "
            f"and {show_bytes(self.budget)} are there; {room}"
        )
