"""Which eviction a policy asks for: its name, its budget and, for H2O, how attention adds up.

Each is described, with its source, in the table of `qkv.cache.policy`.
"""

from dataclasses import dataclass
from typing import Literal

from qkv.cache.policy_text import nearest, whole_number
from qkv.cache.retention import Eviction as EvictionName
from qkv.errors import OptionError

EVERY_STEP: tuple[EvictionName, ...] = ("streaming", "h2o", "tova", "knorm")
"""Evictions that hold their budget at every step."""

AFTER_PROMPT: tuple[EvictionName, ...] = ("snapkv", "pyramidkv", "expected")
"""Evictions that act at the end of a step of more than one token."""

EVICTIONS = EVERY_STEP + AFTER_PROMPT


@dataclass(frozen=True)
class Scoring:
    """How H2O adds up the attention that a key receives from query after query.

    Parameters
    ----------
    decay : float
        What the sum so far is multiplied by before a query is added, above 0 and at most 1.
    by_age : bool
        Whether the sum is divided by the number of queries that could see the key.

    Examples
    --------
    ``sum`` is the published rule, which favours old keys: they were seen by more queries.

    >>> Scoring.parse("sum"), Scoring.parse("age"), Scoring.parse("decay=0.5")
    (Scoring(decay=1.0, by_age=False), Scoring(decay=1.0, by_age=True), Scoring(decay=0.5, by_age=False))
    """

    decay: float = 0.9
    by_age: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise OptionError(f"a score decays by a factor above 0 and at most 1, not {self.decay}")
        if self.by_age and self.decay != 1:
            raise OptionError(f"a score is divided by age or decays (by {self.decay}), not both")

    @classmethod
    def parse(cls, text: str) -> "Scoring":
        """Return the rule that a text after ``h2o=BUDGET:`` means: sum, age or decay=FACTOR."""
        if text in ("sum", "age"):
            return cls(1.0, by_age=text == "age")
        name, _, factor = text.partition("=")
        try:
            decay = float(factor) if name == "decay" else None
        except ValueError:
            decay = None
        if decay is None:
            raise OptionError(
                f"h2o adds up by sum, age or decay=FACTOR, as in h2o=512:decay=0.9, not by {text!r}"
            )
        return cls(decay)

    def __str__(self) -> str:
        return f"decay={self.decay!r}" if self.rule == "decay" else self.rule

    @property
    def rule(self) -> Literal["sum", "age", "decay"]:
        """The rule by its name in a text."""
        if self.by_age:
            return "age"
        return "sum" if self.decay == 1 else "decay"


@dataclass(frozen=True)
class Eviction:
    """Which tokens leave when a key head holds more than its budget.

    Parameters
    ----------
    name : str
        One of `EVICTIONS`.
    budget : int
        Tokens that stay, sinks included.
    scoring : Scoring
        Of h2o; the others have their own.

    Raises
    ------
    OptionError
        For a name that is none of them, a budget that keeps nothing, or a scoring without h2o.
    """

    name: EvictionName
    budget: int
    scoring: Scoring = Scoring()

    def __post_init__(self) -> None:
        if self.name not in EVICTIONS:
            raise OptionError(f"no eviction is named {self.name!r}; {nearest(self.name, EVICTIONS)}")
        if self.budget < 1:
            raise OptionError(f"{self.name} needs a budget of at least 1 token, not {self.budget}")
        if self.scoring != Scoring() and self.name != "h2o":
            raise OptionError(f"only h2o takes a scoring such as {str(self.scoring)!r}, not {self.name}")

    @classmethod
    def parse(cls, name: EvictionName, text: str) -> "Eviction":
        """Return what ``name=text`` in a policy means: a budget and, after a colon, a scoring."""
        budget, colon, scoring = text.partition(":")
        return cls(name, whole_number(name, budget), Scoring.parse(scoring) if colon else Scoring())

    def __str__(self) -> str:
        scoring = "" if self.scoring == Scoring() else f":{self.scoring}"
        return f"{self.name}={self.budget}{scoring}"

    @property
    def acts_every_step(self) -> bool:
        """Whether the budget holds after every step, and not only after those of more than one token."""
        return self.name in EVERY_STEP
