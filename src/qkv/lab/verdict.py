"""From numbers to a verdict, by rules that are the same for every claim.

=================  =========================================================================
verdict            when
=================  =========================================================================
HOLDS              every part that can be tried here holds
HOLDS ONLY IF ...  some parts hold and some fail; what those that fail need is the condition
FAILS              every part that can be tried here fails, or the claim's heart does
NOT TESTABLE HERE  no part can be, a control is off, or it hangs on times that are too unsteady
=================  =========================================================================

Asides are not counted. A part that was left undecided is named beside the verdict; so is an aside that
fails, as what to mind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from qkv.lab.experiment import Experiment, Part
from qkv.lab.result import Number, Result
from qkv.lab.words import Language, Words, fill

WIDEST_SPREAD = 0.25
"""Between the quartiles of what a clock measured, as a share of it: beyond this it decides nothing."""


class Verdict(Enum):
    """What became of a claim."""

    HOLDS = "HOLDS"
    HOLDS_ONLY_IF = "HOLDS ONLY IF"
    FAILS = "FAILS"
    NOT_TESTABLE = "NOT TESTABLE HERE"

    def say(self, language: Language) -> str:
        """Return the verdict in a language."""
        return CHINESE[self] if language == "zh" else self.value


CHINESE = {
    Verdict.HOLDS: "成立",
    Verdict.HOLDS_ONLY_IF: "仅在以下条件下成立",
    Verdict.FAILS: "不成立",
    Verdict.NOT_TESTABLE: "此处无法检验",
}

NOT_MEASURED = Words("not measured", "未测量")


@dataclass(frozen=True)
class PartRuling:
    """A part of a claim, judged.

    Parameters
    ----------
    part : Part
    verdict : Verdict
        Any but HOLDS ONLY IF.
    reason : Words or None
        Why it could not be decided, if so.
    is_unsteady : bool
        Whether that is because times spread too far.
    """

    part: Part
    verdict: Verdict
    reason: Words | None = None
    is_unsteady: bool = False


@dataclass(frozen=True)
class Ruling:
    """A claim, judged.

    Parameters
    ----------
    verdict : Verdict
    conditions : tuple of Words
        What it holds only if, why it could not be tried, or what is true of it even so; numbers are still to
        be filled in.
    parts : tuple of PartRuling
    """

    verdict: Verdict
    conditions: tuple[Words, ...]
    parts: tuple[PartRuling, ...]

    @property
    def minded(self) -> tuple[Words, ...]:
        """What asides that fail say; numbers are still to be filled in."""
        failing = (one.part for one in self.parts if one.verdict is Verdict.FAILS)
        return tuple(part.needs or part.says for part in failing if part.role == "aside")

    def condition(self, language: Language, numbers: Mapping[str, Any]) -> str:
        """Return the conditions as one line."""
        return joined(self.conditions, language, numbers)

    def mind(self, language: Language, numbers: Mapping[str, Any]) -> str:
        """Return what to mind as one line; empty where all asides hold."""
        return joined(self.minded, language, numbers)


def judge(experiment: Experiment[Any], result: Result) -> Ruling:
    """Judge a claim by the numbers of a result: nothing else counts.

    Parameters
    ----------
    experiment : Experiment
    result : Result

    Returns
    -------
    Ruling
    """
    if result.reason is not None:
        return Ruling(Verdict.NOT_TESTABLE, (result.reason,), ())
    parts = tuple(judge_part(part, result.numbers) for part in experiment.parts)
    broken = _broken_controls(experiment, result.numbers)
    if broken:
        return Ruling(Verdict.NOT_TESTABLE, broken, parts)
    counted = tuple(one for one in parts if one.part.role != "aside")
    decided = {one.verdict for one in counted} - {Verdict.NOT_TESTABLE}
    spreads = [result.numbers[one.part.decides.metric] for one in counted if one.is_unsteady]
    if spreads and len(decided) < 2:
        return Ruling(Verdict.NOT_TESTABLE, (unsteady(max(spreads, key=lambda one: one.spread)),), parts)
    if not decided:
        return Ruling(Verdict.NOT_TESTABLE, tuple(dict.fromkeys(_reasons(counted))), parts)
    failing = tuple(one.part for one in counted if one.verdict is Verdict.FAILS)
    if any(part.role == "heart" for part in failing):
        holding = tuple(even_so(one.part) for one in counted if one.verdict is Verdict.HOLDS)
        return Ruling(Verdict.FAILS, holding, parts)
    conditions = (*_needs(failing, decided), *(undecided(one.part) for one in counted if one.reason))
    verdict = decided.pop() if len(decided) == 1 else Verdict.HOLDS_ONLY_IF
    return Ruling(verdict, conditions, parts)


def judge_part(part: Part, numbers: Mapping[str, Number]) -> PartRuling:
    """Judge one part by the number that decides it."""
    number = numbers.get(part.decides.metric)
    if number is None:
        return PartRuling(part, Verdict.NOT_TESTABLE, NOT_MEASURED)
    if is_unsteady(number):
        return PartRuling(part, Verdict.NOT_TESTABLE, unsteady(number), is_unsteady=True)
    return PartRuling(part, Verdict.HOLDS if part.decides.is_met(number) else Verdict.FAILS)


def is_unsteady(number: Number) -> bool:
    """Whether a clock measured it, and too differently from round to round.

    Examples
    --------
    >>> is_unsteady(Number(4.0, 3.5, 4.5, is_timed=True)), is_unsteady(Number(4.0, 3.4, 4.5, is_timed=True))
    (False, True)
    """
    return number.is_timed and number.spread > WIDEST_SPREAD


def unsteady(number: Number) -> Words:
    """Say how unsteady the machine was."""
    share = f"{number.spread:.0%}"
    return Words(f"times spread by {share} on this machine, run it again", f"本机计时波动达 {share}，请重试")


def undecided(part: Part) -> Words:
    """Name a part that was left open."""
    return Words(f"undecided here: {part.says.en}", f"此处未定：{part.says.zh}")


def even_so(part: Part) -> Words:
    """Name a part that holds of a claim that fails."""
    return Words(f"true even so: {part.says.en}", f"仍然成立：{part.says.zh}")


def joined(said: Iterable[Words], language: Language, numbers: Mapping[str, Any]) -> str:
    """Return what is said as one line, with its numbers."""
    return ("；" if language == "zh" else "; ").join(one.say(language, numbers) for one in said)


def shown(template: str | Words, language: Language, numbers: Mapping[str, Number]) -> str:
    """Return a template with its numbers, whether it is the same in every language or not."""
    return fill(template, numbers) if isinstance(template, str) else template.say(language, numbers)


def _broken_controls(experiment: Experiment[Any], numbers: Mapping[str, Number]) -> tuple[Words, ...]:
    """Return what controls that did not come out mean; one that was not measured did not."""
    return tuple(
        control.otherwise
        for control in experiment.controls
        if (number := numbers.get(control.decides.metric)) is None or not control.decides.is_met(number)
    )


def _reasons(parts: tuple[PartRuling, ...]) -> tuple[Words, ...]:
    return tuple(one.reason for one in parts if one.reason is not None)


def _needs(failing: tuple[Part, ...], decided: set[Verdict]) -> tuple[Words, ...]:
    """Return what failing parts need; where none says so and others hold, that they must hold too."""
    needs = tuple(part.needs for part in failing if part.needs is not None)
    return needs or (tuple(part.says for part in failing) if len(decided) > 1 else ())
