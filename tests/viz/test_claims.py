"""The Markdown page: a row for each claim, a table for each claim's parts."""

import pytest

from lab_boards import board_of, failing_board
from qkv.lab import EXPERIMENTS, Verdict
from qkv.viz.claims import claims_markdown, table


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_claim_and_every_part_has_its_row(language):
    text = claims_markdown(board_of(*EXPERIMENTS), language)
    lines = text.splitlines()
    for one in EXPERIMENTS:
        assert (
            sum(line.startswith(f"| [{one.id}](#{one.name}) | {one.claim.say(language)}") for line in lines)
            == 1
        )
        assert f'<a id="{one.name}"></a>' in lines
        for part in one.parts:
            assert sum(f"| `{part.decides}` |" in line for line in lines) >= 1
    assert text.count("| ✓ |") == sum(len(one.parts) for one in EXPERIMENTS)


def test_the_condition_stands_beside_the_verdict():
    experiment, board = failing_board()
    text = claims_markdown(board)
    marks = "".join("✗" if one.verdict is Verdict.FAILS else "✓" for one in board[experiment.id].ruling.parts)
    assert f"◐ **HOLDS ONLY IF**<br>{marks}<br>only if: {board[experiment.id].condition('en')}" in text


def test_a_table_has_as_many_cells_in_every_line():
    lines = table(("a", "b", "c"), [("1", "2", "3"), ("x|y", "", "z")])
    assert [line.replace("\\|", "").count("|") for line in lines] == [4] * 4
