"""How numbers become verdicts: the same rules for every claim, on both sides of every threshold."""

import dataclasses
import json
from dataclasses import replace

import pytest

from qkv.bench.machine import this_machine
from qkv.lab import (
    EXPERIMENTS,
    Control,
    Experiment,
    Measured,
    Number,
    Part,
    Result,
    Verdict,
    Words,
    at_least,
    at_most,
    judge,
)
from qkv.lab.board import Board, Row
from qkv.lab.verdict import CHINESE, WIDEST_SPREAD

MACHINE = this_machine()


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No settings."""


def words(text):
    return Words(text, f"中{text}")


def claim_of(*parts, controls=()):
    """An experiment of which only the rules matter."""
    return Experiment(
        id="z",
        name="made-up",
        title=words("made up"),
        claim=words("something is fast and small"),
        source="nobody",
        quick=Nothing(),
        full=Nothing(),
        measure=lambda settings, instruments: Measured({}),
        parts=parts,
        shows="{speed:.1f}x",
        controls=controls,
    )


FAST = Part(words("it is fast"), at_least("speed", 7.0), "{speed:.1f}x", needs=words("n >= {n:.0f}"))
SMALL = Part(words("it is small"), at_most("size", 3.0), "{size:.0f} bytes")


def result_of(experiment="z", reason=None, **numbers):
    named = {name: one if isinstance(one, Number) else Number(one) for name, one in numbers.items()}
    return Result(
        experiment, "quick", {"T": 7}, 0, named, {"n": [1, 2]}, reason, 1.5, "2026-01-01", MACHINE, ("busy",)
    )


def verdict_of(*parts, controls=(), **numbers):
    return judge(claim_of(*parts, controls=controls), result_of(**numbers)).verdict


@pytest.mark.parametrize(
    ("speed", "size", "expected"),
    [
        (7.0, 3.0, Verdict.HOLDS),
        (6.999, 3.0, Verdict.HOLDS_ONLY_IF),
        (7.0, 3.001, Verdict.HOLDS_ONLY_IF),
        (6.999, 3.001, Verdict.FAILS),
    ],
)
def test_a_claim_holds_as_far_as_its_parts_do(speed, size, expected):
    assert verdict_of(FAST, SMALL, speed=speed, size=size, n=100) is expected


def test_the_condition_is_what_the_failing_part_needs_with_its_number():
    ruling = judge(claim_of(FAST, SMALL), result := result_of(speed=2.0, size=1.0, n=128.4))
    assert ruling.condition("en", result.numbers) == "n >= 128"
    assert ruling.condition("zh", result.numbers) == "中n >= 128"


def test_a_failing_part_that_needs_nothing_is_the_condition_itself():
    ruling = judge(claim_of(FAST, SMALL), result := result_of(speed=8.0, size=9.0))
    assert ruling.condition("en", result.numbers) == "it is small"


def test_with_its_heart_a_claim_fails_and_what_holds_even_so_is_named():
    heart = replace(FAST, role="heart")
    ruling = judge(claim_of(heart, SMALL), result := result_of(speed=6.9, size=3.0, n=1))
    assert ruling.verdict is Verdict.FAILS
    assert ruling.condition("en", result.numbers) == "true even so: it is small"
    assert verdict_of(heart, SMALL, speed=7.0, size=3.1) is Verdict.HOLDS_ONLY_IF
    assert verdict_of(heart, SMALL, speed=7.0, size=3.0) is Verdict.HOLDS


def test_an_aside_is_marked_and_minded_but_not_counted():
    aside = replace(FAST, role="aside", needs=words("not all is fast"))
    ruling = judge(claim_of(aside, SMALL), result := result_of(speed=2.0, size=3.0))
    assert [one.verdict for one in ruling.parts] == [Verdict.FAILS, Verdict.HOLDS]
    assert (ruling.verdict, ruling.conditions) == (Verdict.HOLDS, ())
    assert ruling.mind("en", result.numbers) == "not all is fast"
    assert judge(claim_of(aside, SMALL), result_of(speed=7.0, size=3.0)).minded == ()
    assert verdict_of(aside, SMALL, speed=7.0, size=3.1) is Verdict.FAILS
    # One whose times are unsteady leaves nothing open either.
    assert judge(claim_of(aside, SMALL), result_of(speed=timed(8.0, 0.5), size=3.0)).conditions == ()


def timed(value, spread):
    return Number(value, value - spread * value / 2, value + spread * value / 2, is_timed=True)


def test_a_time_that_spreads_too_far_decides_nothing():
    assert verdict_of(FAST, speed=timed(8.0, WIDEST_SPREAD)) is Verdict.HOLDS
    assert verdict_of(FAST, speed=timed(8.0, WIDEST_SPREAD + 0.01)) is Verdict.NOT_TESTABLE
    # What no clock had a part in may spread: seeds differ.
    assert verdict_of(FAST, speed=replace(timed(8.0, 0.9), is_timed=False)) is Verdict.HOLDS


def test_an_unsteady_part_leaves_a_claim_open_unless_the_others_disagree_already():
    ruling = judge(claim_of(FAST, SMALL), result := result_of(speed=timed(8.0, 0.5), size=1.0))
    assert [one.verdict for one in ruling.parts] == [Verdict.NOT_TESTABLE, Verdict.HOLDS]
    assert ruling.verdict is Verdict.NOT_TESTABLE
    assert ruling.condition("en", result.numbers) == "times spread by 50% on this machine, run it again"
    tiny = Part(words("it is tiny"), at_most("size", 0.5), "{size:.0f} bytes")
    ruling = judge(claim_of(FAST, SMALL, tiny), result)
    assert ruling.verdict is Verdict.HOLDS_ONLY_IF
    assert ruling.condition("en", result.numbers) == "it is tiny; undecided here: it is fast"


def test_a_number_that_was_not_measured_decides_nothing():
    ruling = judge(claim_of(FAST, SMALL), result := result_of(size=4.0))
    assert ruling.verdict is Verdict.FAILS
    assert ruling.condition("en", result.numbers) == "undecided here: it is fast"
    ruling = judge(claim_of(FAST), result := result_of())
    assert ruling.verdict is Verdict.NOT_TESTABLE
    assert ruling.condition("en", result.numbers) == "not measured"


def test_a_control_that_is_off_leaves_nothing_decided():
    control = Control(at_least("unmasked", 0.3), words("the meter does not move"))
    assert verdict_of(SMALL, controls=[control], size=1.0, unmasked=0.3) is Verdict.HOLDS
    assert verdict_of(SMALL, controls=[control], size=1.0) is Verdict.NOT_TESTABLE
    ruling = judge(claim_of(SMALL, controls=[control]), result := result_of(size=1.0, unmasked=0.29))
    assert ruling.verdict is Verdict.NOT_TESTABLE
    assert ruling.condition("zh", result.numbers) == "中the meter does not move"


def test_what_cannot_be_tried_here_says_why():
    ruling = judge(claim_of(FAST), result := result_of(reason=words("no GPU")))
    assert ruling.verdict is Verdict.NOT_TESTABLE
    assert ruling.condition("en", result.numbers) == "no GPU"


def test_the_spread_is_between_the_quartiles():
    number = Number.of([4.0, 1.0, 2.0, 8.0, 3.0])
    assert (number.value, number.low, number.high) == (3.0, 2.0, 4.0)
    assert number.spread == pytest.approx(2 / 3)
    assert Number(5.0).spread == 0.0
    assert Number(0.0, 0.0, 0.0).spread == 0.0


def test_a_result_survives_json_to_the_last_digit():
    result = result_of(speed=timed(1 / 3, 0.1), size=2.0, reason=words("no GPU"))
    assert Result.from_record(json.loads(json.dumps(result.record()))) == result


def test_a_board_counts_finds_and_records_its_rows():
    row = Row.of(claim_of(FAST, SMALL), result_of(speed=8.0, size=9.0))
    board = Board((row,))
    assert board["z"] is board["made-up"] is row
    assert board.count(Verdict.HOLDS_ONLY_IF) == 1 and board.count(Verdict.HOLDS) == 0
    record = board.record("zh")
    assert record["rows"][0]["verdict"] == CHINESE[Verdict.HOLDS_ONLY_IF]
    assert record["rows"][0]["number"] == "8.0x"
    assert [part["number"] for part in record["rows"][0]["parts"]] == ["8.0x", "9 bytes"]


def test_a_board_shows_itself_in_a_notebook():
    less = replace(SMALL, says=words("size < 3"))
    html = Board((Row.of(claim_of(FAST, less), result_of(speed=8.0, size=9.0)),))._repr_html_()
    assert html.startswith("<table><tr><td>z</td><td>something is fast and small</td><td>8.0x</td>")
    assert "<td>HOLDS ONLY IF: size &lt; 3</td>" in html


def beyond(threshold, by):
    """A number just on the wrong side of a threshold, or on the right one."""
    step = max(abs(threshold.bound), 1.0) * by
    return threshold.bound - step if threshold.is_least else threshold.bound + step


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_every_part_of_every_claim_fails_beyond_its_threshold_and_holds_on_it(experiment):
    thresholds = [one.decides for one in (*experiment.parts, *experiment.controls)]
    fine = {one.metric: one.bound for one in thresholds}
    ruling = judge(experiment, result_of(experiment.id, **fine))
    assert ruling.verdict is Verdict.HOLDS and not ruling.conditions
    for index, part in enumerate(experiment.parts):
        off = fine | {part.decides.metric: beyond(part.decides, 1e-6)}
        ruling = judge(experiment, result_of(experiment.id, **off))
        assert ruling.parts[index].verdict is Verdict.FAILS
        expected = {"heart": Verdict.FAILS, "part": Verdict.HOLDS_ONLY_IF, "aside": Verdict.HOLDS}[part.role]
        counted = [one for one in experiment.parts if one.role != "aside"]
        assert ruling.verdict is (Verdict.FAILS if counted == [part] else expected)
        assert bool(ruling.minded) is (part.role == "aside")
    for control in experiment.controls:
        off = fine | {control.decides.metric: beyond(control.decides, 1e-6)}
        assert judge(experiment, result_of(experiment.id, **off)).verdict is Verdict.NOT_TESTABLE


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_every_experiment_speaks_both_languages_and_has_a_letter_of_its_own(experiment):
    said = [experiment.title, experiment.claim, *(one.otherwise for one in experiment.controls)]
    said += [one.says for one in experiment.parts] + [one.needs for one in experiment.parts if one.needs]
    said += [
        one for one in (experiment.shows, *(p.shows for p in experiment.parts)) if isinstance(one, Words)
    ]
    for one in said:
        assert one.en and any("\u4e00" <= character <= "\u9fff" for character in one.zh), one
    others = [one for one in EXPERIMENTS if one is not experiment]
    assert len(experiment.id) == 1 and experiment.id not in [one.id for one in others]
    assert experiment.name not in [one.name for one in others]
