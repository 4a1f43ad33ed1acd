"""What an experiment found out: numbers with their spread, and everything they depend on."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Self

from qkv.bench.machine import Machine
from qkv.lab.words import Words

Series = Mapping[str, Sequence[Any]]
"""What a picture is drawn from: rows of numbers or names, by what they are."""


@dataclass(frozen=True)
class Number:
    """One number that was measured.

    Parameters
    ----------
    value : float
        The median where it was measured several times.
    low, high : float, optional
        Quartiles; the value itself where it was measured once, or cannot vary.
    is_timed : bool
        Whether a clock had a part in it: then a wide spread says that the machine was not quiet.

    Examples
    --------
    >>> Number.of([4.0, 1.0, 2.0, 8.0, 3.0])
    Number(value=3.0, low=2.0, high=4.0, is_timed=False)
    >>> f"{Number(0.125):.1%}"
    '12.5%'
    """

    value: float
    low: float | None = None
    high: float | None = None
    is_timed: bool = False

    def __post_init__(self) -> None:
        assert all(isfinite(one) for one in (self.value, self.low or 0, self.high or 0)), (
            "leave out what is not"
        )

    @classmethod
    def of(cls, values: Sequence[float], *, is_timed: bool = False) -> Self:
        """Summarise what several seeds, texts or rounds gave, at least two."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, is_timed)

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a share of the value."""
        width = (self.value if self.high is None else self.high) - (
            self.value if self.low is None else self.low
        )
        return width / abs(self.value) if width else 0.0

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


@dataclass(frozen=True)
class Measured:
    """What measuring gives back.

    Parameters
    ----------
    numbers : mapping of str to Number or float
        Whatever decides, whatever is shown, and the controls beside them.
    series : mapping of str to sequences
        For pictures.
    """

    numbers: Mapping[str, Number | float]
    series: Series = field(default_factory=dict)

    def value(self, name: str) -> float:
        """Return a number without its spread."""
        number = self.numbers[name]
        return number.value if isinstance(number, Number) else float(number)


def settings_record(settings: Any) -> dict[str, Any]:
    """Return a dataclass of settings as plain values that JSON brings back as they are."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()
    }


@dataclass(frozen=True)
class Result:
    """What one run of one experiment found, and under which conditions.

    Parameters
    ----------
    experiment : str
        Its letter.
    pace : str
        "quick" or "full".
    settings : mapping of str to value
        What those were.
    seed : int
        Of every random number.
    numbers : mapping of str to Number
    series : mapping of str to sequences
    reason : Words or None
        Why nothing could be measured here, if so.
    seconds : float
        That it took.
    began : str
        When, in ISO 8601.
    machine : Machine
        With the versions of what computes.
    conditions : tuple of str
        What keeps the numbers from being what they seem: load, settings of libraries.
    """

    experiment: str
    pace: str
    settings: Mapping[str, Any]
    seed: int
    numbers: Mapping[str, Number]
    series: Series
    reason: Words | None
    seconds: float
    began: str
    machine: Machine
    conditions: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Result":
        """Return the result whose record this is, also after it has been JSON."""
        numbers = {name: Number(**number) for name, number in record["numbers"].items()}
        reason = None if record["reason"] is None else Words(**record["reason"])
        machine, conditions = Machine(**record["machine"]), tuple(record["conditions"])
        parts = {"numbers": numbers, "reason": reason, "machine": machine, "conditions": conditions}
        return cls(**{**record, **parts})
