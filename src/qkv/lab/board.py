"""The verdict board: what became of each claim, with the number that says so."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from qkv.lab.experiment import Experiment
from qkv.lab.result import Result
from qkv.lab.verdict import Ruling, Verdict, judge, shown
from qkv.lab.words import Language


@dataclass(frozen=True)
class Row:
    """One claim on the board.

    Parameters
    ----------
    experiment : Experiment
    result : Result
    ruling : Ruling
    """

    experiment: Experiment[Any]
    result: Result
    ruling: Ruling

    @classmethod
    def of(cls, experiment: Experiment[Any], result: Result) -> "Row":
        """Judge a result."""
        return cls(experiment, result, judge(experiment, result))

    def number(self, language: Language) -> str:
        """Return the numbers of the board's one line."""
        return shown(self.experiment.shows, language, self.result.numbers)

    def condition(self, language: Language) -> str:
        """Return what it holds only if, why it could not be tried, or what was left open; perhaps nothing."""
        return self.ruling.condition(language, self.result.numbers)

    def mind(self, language: Language) -> str:
        """Return what stands beside the claim and does not hold; perhaps nothing."""
        return self.ruling.mind(language, self.result.numbers)

    def record(self, language: Language = "en") -> dict[str, Any]:
        """Return the row as plain values, for JSON."""
        numbers = self.result.numbers
        return {
            "id": self.experiment.id,
            "name": self.experiment.name,
            "claim": self.experiment.claim.say(language),
            "source": self.experiment.source,
            "verdict": self.ruling.verdict.say(language),
            "condition": self.condition(language),
            "mind": self.mind(language),
            "number": self.number(language),
            "article": self.experiment.article,
            "parts": [
                {
                    "says": one.part.says.say(language, numbers),
                    "verdict": one.verdict.say(language),
                    "role": one.part.role,
                    "reason": None if one.reason is None else one.reason.say(language),
                    "number": shown(one.part.shows, language, numbers),
                    "threshold": str(one.part.decides),
                    "article": one.part.article,
                }
                for one in self.ruling.parts
            ],
            "numbers": {name: asdict(number) for name, number in numbers.items()},
            "settings": dict(self.result.settings),
            "pace": self.result.pace,
            "seed": self.result.seed,
            "seconds": self.result.seconds,
            "began": self.result.began,
        }


@dataclass(frozen=True)
class Board:
    """What one run of the lab found out, a row for each claim.

    Parameters
    ----------
    rows : tuple of Row
    """

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        """Return the row of an experiment, by its letter or its name."""
        return next(row for row in self.rows if name in (row.experiment.id, row.experiment.name))

    def count(self, verdict: Verdict) -> int:
        """Return how many claims had this verdict."""
        return sum(row.ruling.verdict is verdict for row in self.rows)

    def _repr_html_(self) -> str:
        """Show the board in a notebook."""
        lines = (
            (row.experiment.id, row.experiment.claim.en, row.number("en"), verdict_line(row))
            for row in self.rows
        )
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines)
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"

    def record(self, language: Language = "en") -> dict[str, Any]:
        """Return the board as plain values, for JSON."""
        first = self.rows[0].result
        return {
            "machine": asdict(first.machine),
            "conditions": list(first.conditions),
            "rows": [row.record(language) for row in self.rows],
        }


def verdict_line(row: Row, language: Language = "en") -> str:
    """Return a verdict with its condition, if it has one."""
    verdict, condition = row.ruling.verdict.say(language), row.condition(language)
    return f"{verdict}: {condition}" if condition else verdict
