"""A question as code: the claim as people state it, how to measure it, and what decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from qkv.lab.instruments import Instruments
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words

Pace = Literal["quick", "full"]
Role = Literal["heart", "part", "aside"]

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Threshold:
    """Where a number must lie.

    Examples
    --------
    >>> at_most("future_mass", 0.0).is_met(Number(0.0)), at_least("speedup", 7).is_met(Number(6.9))
    (True, False)
    """

    metric: str
    bound: float
    is_least: bool

    def is_met(self, number: Number) -> bool:
        """Whether a number lies on the right side; the bound itself does."""
        return number.value >= self.bound if self.is_least else number.value <= self.bound

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.is_least else '≤'} {self.bound:g}"


def at_least(metric: str, bound: float) -> Threshold:
    """Ask for a number of ``bound`` or more."""
    return Threshold(metric, bound, is_least=True)


def at_most(metric: str, bound: float) -> Threshold:
    """Ask for a number of ``bound`` or less."""
    return Threshold(metric, bound, is_least=False)


@dataclass(frozen=True)
class Part:
    """One thing that a claim says, and the number that decides it.

    Parameters
    ----------
    says : Words
        As a statement that is true or false.
    decides : Threshold
    shows : str or Words
        The numbers to read, as a template; a control beside what was measured.
    needs : Words, optional
        Where this part fails, what the claim as a whole needs to hold: "HOLDS ONLY IF" goes before it. Of an
        aside: what to mind then.
    article : str
        What the article prints or says here; empty where it says nothing.
    role : "heart", "part" or "aside"
        With its heart the whole claim fails; an aside says something of what stands beside the claim, as of
        how others wrote it down, and is marked without being counted.
    """

    says: Words
    decides: Threshold
    shows: str | Words
    needs: Words | None = None
    article: str = ""
    role: Role = "part"


@dataclass(frozen=True)
class Control:
    """What must come out for the measurement to mean anything, whatever becomes of the claim.

    Parameters
    ----------
    decides : Threshold
    otherwise : Words
        What it means if it does not.
    """

    decides: Threshold
    otherwise: Words


@dataclass(frozen=True)
class Experiment(Generic[Settings]):
    """A claim, and how it is tried.

    Parameters
    ----------
    id : str
        One letter.
    name : str
        One word, to call it by.
    title : Words
        A few words, for a heading.
    claim : Words
        One sentence, as people state it.
    source : str
        Who states it or tried it before.
    quick, full : Settings
        A frozen dataclass: seconds, and as long as it takes.
    measure : callable
        Takes settings and instruments, returns `Measured`; raises `NotTestable` where this machine
        lacks what it needs.
    parts : sequence of Part
        They hold together or the claim holds only in part.
    shows : str or Words
        The numbers for the one line of the board.
    article : str
        The article's number; empty where it gives none.
    controls : sequence of Control
    elsewhere : Words, optional
        What others found, and why it may come out otherwise here: true of any run.
    """

    id: str
    name: str
    title: Words
    claim: Words
    source: str
    quick: Settings
    full: Settings
    measure: Callable[[Settings, Instruments], Measured]
    parts: Sequence[Part]
    shows: str | Words
    article: str = ""
    controls: Sequence[Control] = ()
    elsewhere: Words | None = None

    def settings(self, pace: Pace) -> Any:
        """Return the settings of a pace."""
        return self.full if pace == "full" else self.quick
