"""What simulations of a pool have in common: what they report, their stream, and the formula beside them.

Requests wait in a line that never ends, first come first served. Each step every running request grows
by one token. `qkv.planner.contiguous_runs` sets slots aside when a request begins, `paged_runs` gives a
page when a token needs one (Kwon et al. 2023, "Efficient Memory Management for Large Language Model
Serving with PagedAttention").
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from qkv.planner.lengths import Lengths

WARM_UP = 4
"""How many times the pool's requests must have ended before counting begins."""


@dataclass(frozen=True)
class Utilisation:
    """What the slots of a pool were used for, as shares of all slots, on average over time.

    Parameters
    ----------
    strategy : str
    token_states : float
        Keys and values of tokens.
    reserved : float
        Set aside for tokens that do come later.
    internal : float
        Set aside for tokens that never come.
    external : float
        Free, or lost to rounding, and of no use to the next request.
    batch : float
        Requests that run at once.
    """

    strategy: str
    token_states: float
    reserved: float
    internal: float
    external: float
    batch: float

    @property
    def of_allocated(self) -> float:
        """Tokens' share of what is set aside: the paper's "utilisation" of paging, free pages not counted."""
        return self.token_states / (self.token_states + self.reserved + self.internal)


def closed_form(mean_in_flight: float, page_size: int) -> float:
    """Return the share of allocated slots that hold tokens: the last page of each is half empty.

    L / (L + (P - 1) / 2) with L tokens in flight per request.

    Examples
    --------
    >>> round(closed_form(458, 16), 3), round(closed_form(81, 16), 3)
    (0.984, 0.915)
    """
    return mean_in_flight / (mean_in_flight + (page_size - 1) / 2)


def mean_in_flight(lengths: Lengths) -> float:
    """Return the tokens of a running request, on average over its steps: a long answer runs for longer."""
    prompts, answers = lengths[:, 0].astype(float), lengths[:, 1].astype(float)
    return float((answers * (prompts + (answers - 1) / 2)).sum() / answers.sum())


def request_stream(lengths: Lengths) -> Iterator[tuple[int, int]]:
    """Return prompt and answer of request after request, beginning again when they are through."""
    return cycle([(int(prompt), int(answer)) for prompt, answer in lengths])
