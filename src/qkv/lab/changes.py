"""What became different between two runs: verdicts, and the numbers that decide them."""

from dataclasses import dataclass

from qkv.lab.board import Board, Row
from qkv.lab.experiment import Part
from qkv.lab.result import Number
from qkv.lab.verdict import Verdict


@dataclass(frozen=True)
class NumberChange:
    """A number that decides a part, before and after.

    Parameters
    ----------
    part : Part
    before, after : Number
    """

    part: Part
    before: Number
    after: Number

    @property
    def is_within_spread(self) -> bool:
        """Whether the quartiles of both meet: such a change may be chance."""
        one, other = _quartiles(self.before), _quartiles(self.after)
        return one[0] <= other[1] and other[0] <= one[1]


@dataclass(frozen=True)
class Change:
    """What became of one claim.

    Parameters
    ----------
    row : Row
        Of the later run.
    before, after : Verdict
    numbers : tuple of NumberChange
        Those that are not the same to the last digit.
    """

    row: Row
    before: Verdict
    after: Verdict
    numbers: tuple[NumberChange, ...]


def changes(before: Board, after: Board) -> tuple[Change, ...]:
    """Return what changed for each claim that both boards have.

    Parameters
    ----------
    before, after : Board

    Returns
    -------
    tuple of Change
        In the order of the later board, claims without any change among them.
    """
    earlier = {row.experiment.id: row for row in before.rows}
    return tuple(
        _change(earlier[row.experiment.id], row) for row in after.rows if row.experiment.id in earlier
    )


def _change(before: Row, after: Row) -> Change:
    numbers = []
    for part in after.experiment.parts:
        one, other = (row.result.numbers.get(part.decides.metric) for row in (before, after))
        if one is not None and other is not None and one != other:
            numbers.append(NumberChange(part, one, other))
    return Change(after, before.ruling.verdict, after.ruling.verdict, tuple(numbers))


def _quartiles(number: Number) -> tuple[float, float]:
    low = number.value if number.low is None else number.low
    return low, number.value if number.high is None else number.high
