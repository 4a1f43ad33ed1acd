"""One stream of requests through every way of giving out memory, side by side."""

from dataclasses import dataclass
from pathlib import Path

from qkv.errors import PlanError
from qkv.planner.allocators import CountedPages
from qkv.planner.contiguous_runs import RESERVES, simulate_contiguous
from qkv.planner.lengths import KNOWN, Lengths, find_lengths
from qkv.planner.paged_runs import simulate_paged
from qkv.planner.simulation import Utilisation, closed_form, mean_in_flight

DRAWN = 20_000
"""Requests drawn from a distribution."""
COUNTED = 2_000
"""Requests that end while it is counted: the shares are then within a point or two of the long run's."""
MOST_SLOTS = 1_000_000
"""Pools beyond this are simulated as this large; by then the shares do not depend on it."""


@dataclass(frozen=True)
class Comparison:
    """What became of a pool's slots under each strategy.

    Parameters
    ----------
    requests : str
        Whose lengths they were.
    num_slots : int
        Tokens the simulated pool holds.
    rows : tuple of Utilisation
        Contiguous first, pages last.
    page_size : int
    closed_form : float
        Of the paged slots that are taken, the share that holds tokens by the formula.
    """

    requests: str
    num_slots: int
    rows: tuple[Utilisation, ...]
    page_size: int
    closed_form: float


def compare_utilisation(
    source: str | Path | Lengths, num_slots: int, longest: int, page_size: int = 16, seed: int = 0
) -> Comparison:
    """Simulate contiguous and paged allocation on one stream of requests.

    Parameters
    ----------
    source : str, Path or (n, 2) integers
        ``sharegpt``, ``alpaca``, a CSV file of prompt and answer lengths, or the lengths themselves.
    num_slots : int
        Tokens the pool holds.
    longest : int
        Tokens a request may have; longer ones are cut.
    page_size : int
        P.
    seed : int

    Raises
    ------
    PlanError
        If the pool does not hold even one longest request.
    """
    if num_slots < max(longest, page_size):
        raise PlanError(
            f"a pool of {num_slots:,} tokens does not hold one request of {longest:,}; "
            "shorten the context or enlarge the memory"
        )
    num_slots = min(num_slots, MOST_SLOTS)
    lengths = find_lengths(source, DRAWN, limit=longest, seed=seed)
    contiguous = [simulate_contiguous(name, lengths, num_slots, longest, COUNTED) for name in RESERVES]
    paged = simulate_paged(lengths, CountedPages(num_slots // page_size), page_size, COUNTED)
    return Comparison(
        requests=KNOWN[str(source)].name if isinstance(source, str) and source in KNOWN else "own",
        num_slots=num_slots,
        rows=(*contiguous, paged),
        page_size=page_size,
        closed_form=closed_form(mean_in_flight(lengths), page_size),
    )
