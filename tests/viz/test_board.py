"""The board in the terminal and on an axis: every claim with its number, verdict and condition."""

import pytest
from rich.console import Console

from lab_boards import board_of, failing_board, minding_board
from qkv.lab import EXPERIMENTS, Verdict
from qkv.lab.changes import changes
from qkv.lab.verdict import CHINESE
from qkv.viz.board import MARKS, board_table, counts_line, draw_board, parts_table
from qkv.viz.history import changes_table


def printed(*parts, width=80):
    console = Console(width=width, no_color=True, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(*parts)
    return capture.get()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_claim_stands_on_the_board_within_80_columns(language):
    board = board_of(*EXPERIMENTS)
    text = printed(board_table(board, language))
    holds = CHINESE[Verdict.HOLDS] if language == "zh" else "HOLDS"
    assert text.count(f"{MARKS[Verdict.HOLDS]} {holds}") == len(EXPERIMENTS)
    squeezed = "".join(text.split())
    for one in EXPERIMENTS:
        assert "".join(one.claim.say(language).split())[:12] in squeezed
        assert "".join(board[one.id].number(language).split())[:12] in squeezed
    assert "…" not in text


def test_the_condition_stands_below_the_number():
    experiment, board = failing_board()
    text = " ".join(printed(board_table(board), width=200).split())
    condition = board[experiment.id].condition("en")
    assert f"only if: {condition}" in text


def test_marks_of_asides_stand_apart_and_are_minded():
    board = minding_board()
    text = printed(board_table(board), width=200)
    assert "✓ HOLDS" in text and "✓✓✓✓ ✗✓✓" in text
    assert "mind: the article's class with a cache does not mask prompts" in " ".join(text.split())


def test_parts_are_marked_and_undecided_ones_say_why():
    experiment, board = failing_board()
    text = printed(parts_table(board[experiment.id]), width=160)
    assert text.count(MARKS[Verdict.FAILS]) == 1
    assert text.count(MARKS[Verdict.HOLDS]) >= 1
    for part in experiment.parts:
        assert part.says.say("en", board[experiment.id].result.numbers)[:30] in text


def test_the_counts_are_those_of_the_board():
    _, board = failing_board()
    assert printed(counts_line(board)).strip() == "◐ HOLDS ONLY IF 1"


def test_changes_show_both_verdicts_and_the_number():
    experiment, after = failing_board()
    text = printed(changes_table(changes(board_of(experiment), after)), width=120)
    assert "✓ HOLDS" in text and "◐ HOLDS ONLY IF" in text
    assert experiment.parts[0].decides.metric in text


def test_the_board_on_an_axis_has_a_line_for_each_claim():
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")
    axes = figures.Figure().add_subplot()
    board = board_of(*EXPERIMENTS)
    draw_board(board, axes)
    texts = [text.get_text() for text in axes.texts]
    for row in board.rows:
        assert row.experiment.title.en in texts and row.number("en") in texts
    assert texts.count("HOLDS") == len(EXPERIMENTS)
