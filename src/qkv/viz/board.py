"""The verdict board: in the terminal, and onto a matplotlib axis."""

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qkv.lab import Board, Language, Row, Verdict, Words
from qkv.lab.verdict import PartRuling, shown
from qkv.lab.words import NOT_KNOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {
    Verdict.HOLDS: "✓",
    Verdict.HOLDS_ONLY_IF: "◐",
    Verdict.FAILS: "✗",
    Verdict.NOT_TESTABLE: "–",
}
"""Say the verdict where there are no colours."""

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.HOLDS_ONLY_IF: "yellow",
    Verdict.FAILS: "red",
    Verdict.NOT_TESTABLE: "dim",
}
COLOURS = {
    Verdict.HOLDS: "#1a7f4b",
    Verdict.HOLDS_ONLY_IF: "#b7791f",
    Verdict.FAILS: "#c0392b",
    Verdict.NOT_TESTABLE: "#7f8c8d",
}
"""Of pictures and pages."""

ONLY_IF = Words("only if: ", "条件：")
MIND = Words("mind: ", "注意：")

HEADINGS = {
    "claim": Words("claim", "说法"),
    "measured": Words("measured here", "此处测得"),
    "article": Words("article", "文章"),
    "verdict": Words("verdict", "结论"),
}


def board_table(board: Board, language: Language = "en") -> Table:
    """Return the board: claim and verdict, what was measured, the parts' marks, and what it holds only if."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    table.add_column(HEADINGS["claim"].say(language), ratio=1, overflow="fold")
    table.add_column(HEADINGS["verdict"].say(language), no_wrap=True)
    for row in board.rows:
        claim, number = row.experiment.claim.say(language), row.number(language)
        article = f"{HEADINGS['article'].say(language)}: {row.experiment.article or NOT_KNOWN}"
        table.add_row(Text(row.experiment.id, "bold"), claim, verdict_text(row.ruling.verdict, language))
        table.add_row("", Text(number, "bold"), marks_text(row))
        beside = "\n".join(line for line in (condition_line(row, language), mind_line(row, language)) if line)
        table.add_row("", Text(beside, "dim"), Text(article, "dim"), end_section=True)
    return table


def parts_table(row: Row, language: Language = "en") -> Group:
    """Return what each part of one claim came to."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    for name, ratio in (("claim", 4), ("measured", 5), ("article", 1)):
        table.add_column(HEADINGS[name].say(language), ratio=ratio, overflow="fold")
    for one in row.ruling.parts:
        numbers = row.result.numbers
        table.add_row(
            Text(MARKS[one.verdict], STYLES[one.verdict]),
            one.part.says.say(language, numbers),
            Group(*_measured(one, row, language)),
            one.part.article or Text(NOT_KNOWN, "dim"),
        )
    heading = Text(f"{row.experiment.id}  {row.experiment.title.say(language)}", "bold")
    return Group(heading, table)


def verdict_text(verdict: Verdict, language: Language = "en") -> Text:
    """Return a verdict with its mark and colour."""
    return Text(f"{MARKS[verdict]} {verdict.say(language)}", STYLES[verdict])


def marks_text(row: Row) -> Text:
    """Return a mark for each part in order, asides apart: what a verdict of several parts is made of."""
    counted, asides = Text(), Text()
    for one in row.ruling.parts:
        to = asides if one.part.role == "aside" else counted
        to.append(MARKS[one.verdict], STYLES[one.verdict])
    return counted + Text(" ") + asides if asides else counted


def condition_line(row: Row, language: Language = "en") -> str:
    """Return the condition as a line of its own, away from the verdict; empty where there is none."""
    condition = row.condition(language)
    is_condition = condition and row.ruling.verdict is Verdict.HOLDS_ONLY_IF
    return f"{ONLY_IF.say(language)}{condition}" if is_condition else condition


def mind_line(row: Row, language: Language = "en") -> str:
    """Return what to mind as a line of its own; empty where there is nothing."""
    mind = row.mind(language)
    return f"{MIND.say(language)}{mind}" if mind else ""


def counts_line(board: Board, language: Language = "en") -> Text:
    """Return how many claims had each verdict, in one line."""
    counted = [(verdict, board.count(verdict)) for verdict in Verdict]
    pieces = [
        Text(f"{MARKS[one]} {one.say(language)} {count}", STYLES[one]) for one, count in counted if count
    ]
    return Text("   ").join(pieces)


def draw_board(board: Board, axes: "Axes", language: Language = "en") -> None:
    """Draw the board onto an axis: a line for each claim, its number, and its verdict as a coloured label.

    Parameters
    ----------
    board : Board
    axes : matplotlib.axes.Axes
        Made for it alone; its scales are hidden.
    language : "en" or "zh"
    """
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(board.rows), 0)
    for line, row in enumerate(board.rows):
        verdict = row.ruling.verdict
        middle = line + 0.5
        axes.text(0.0, middle, row.experiment.id, weight="bold", va="center")
        axes.text(0.03, middle, row.experiment.title.say(language), va="center")
        axes.text(0.33, middle, row.number(language), va="center", fontsize="small")
        label = {"boxstyle": "round,pad=0.3", "facecolor": COLOURS[verdict], "edgecolor": "none"}
        axes.text(1.0, middle, verdict.say(language), color="white", va="center", ha="right", bbox=label)
        axes.axhline(line + 1, color="#dddddd", linewidth=0.6)


def _measured(one: PartRuling, row: Row, language: Language) -> list[Text]:
    lines = [Text(shown(one.part.shows, language, row.result.numbers))]
    if one.reason is not None:
        lines.append(Text(one.reason.say(language), "dim"))
    return lines
