"""The board as Markdown, for a page of a repository: a table of claims, then each claim part by part."""

from collections.abc import Iterable, Sequence

from qkv.lab import Board, Language, Row, Words
from qkv.lab.verdict import shown
from qkv.lab.words import NOT_KNOWN
from qkv.viz.board import HEADINGS, MARKS, condition_line, marks_text, mind_line

HEADING = Words("Claims about attention, measured", "关于注意力的说法：实测")
MADE_BY = Words(
    "Written by `qkv lab {pace} --report`, seed {seed}.", "由 `qkv lab {pace} --report` 生成，种子 {seed}。"
)
SOURCE = Words("Source: {source}.", "出处：{source}。")
DECIDED_BY = Words("decided by", "判据")


def claims_markdown(board: Board, language: Language = "en") -> str:
    """Return a board as a Markdown page.

    Parameters
    ----------
    board : Board
    language : "en" or "zh"
    """
    first = board.rows[0].result
    made_by = MADE_BY.say(language, {"pace": first.pace, "seed": first.seed})
    machine = [first.machine.line(), first.machine.software(), *first.conditions]
    lines = [f"# {HEADING.say(language)}", "", made_by, ""]
    lines += [f"{line}  " for line in machine] + [""]
    lines += table(
        ("", *(HEADINGS[name].say(language) for name in ("claim", "measured", "article", "verdict"))),
        (_board_cells(row, language) for row in board.rows),
    )
    for row in board.rows:
        lines += ["", *_claim(row, language)]
    return "\n".join(lines) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    r"""Return the lines of a Markdown table.

    Examples
    --------
    >>> table(("a", "b"), [("1", "x | y")])
    ['| a | b |', '| --- | --- |', '| 1 | x \\| y |']
    """
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in (headings, *rows))
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return [lines[0], f"|{' --- |' * len(headings)}", *lines[1:]]


def _board_cells(row: Row, language: Language) -> tuple[str, ...]:
    one, verdict = row.experiment, row.ruling.verdict
    judged = f"{MARKS[verdict]} **{verdict.say(language)}**"
    lines = (judged, marks_text(row).plain, condition_line(row, language), mind_line(row, language))
    link = f"[{one.id}](#{one.name})"
    return (
        link,
        one.claim.say(language),
        row.number(language),
        one.article or NOT_KNOWN,
        "<br>".join(filter(None, lines)),
    )


def _claim(row: Row, language: Language) -> list[str]:
    one, numbers = row.experiment, row.result.numbers
    headings = [HEADINGS[name].say(language) for name in ("claim", "measured", "article")]
    return [
        f'<a id="{one.name}"></a>',
        "",
        f"## {one.id} · {one.title.say(language)}",
        "",
        f"> {one.claim.say(language)}",
        "",
        SOURCE.say(language, {"source": one.source}),
        "",
        *table(
            ("", *headings, DECIDED_BY.say(language)),
            (
                (
                    MARKS[ruling.verdict],
                    ruling.part.says.say(language, numbers),
                    shown(ruling.part.shows, language, numbers),
                    ruling.part.article or NOT_KNOWN,
                    f"`{ruling.part.decides}`",
                )
                for ruling in row.ruling.parts
            ),
        ),
        *(["", one.elsewhere.say(language)] if one.elsewhere else []),
    ]
