"""The lab's report: one file that needs nothing else, with the board and a page for each claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from qkv.lab import Board, Language, Number, Row, Verdict, Words
from qkv.lab.verdict import PartRuling, shown
from qkv.viz.board import COLOURS, MARKS, condition_line, mind_line
from qkv.viz.pictures import has_picture, svg

TEMPLATE = "report.html.j2"

LANGUAGE_TAGS: Mapping[Language, str] = {"en": "en", "zh": "zh-CN"}

PHRASES = {
    "heading": Words("What holds, measured on this machine", "哪些说法成立：在本机测量"),
    "introduction": Words(
        "People say these things about attention. Each was tried on the machine named below: a number "
        "decides, its threshold was set before, and a control stands beside it. After HOLDS ONLY IF comes "
        "the condition; what this machine cannot decide is said to be so. A mark stands for each part of a "
        "claim; those set apart are asides, which do not count.",
        "这些是人们关于注意力机制的说法。每一条都在下述机器上试过：由一个数字判定，阈值事先定好，旁边有对照。"
        "“仅在以下条件下成立”后面写着条件；本机无法判定的，也照实说明。"
        "每个记号代表说法的一个部分；隔开的是附注，不计入结论。",
    ),
    "board": Words("Verdict board", "结论一览"),
    "back": Words("back to the board", "回到一览"),
    "claim": Words("claim", "说法"),
    "measured": Words("measured here", "此处测得"),
    "article": Words("article", "文章"),
    "decided": Words("decided by", "判据"),
    "source": Words("source", "出处"),
    "all_numbers": Words("All numbers", "全部数字"),
    "name": Words("number", "名称"),
    "median": Words("value", "数值"),
    "quartiles": Words("quartiles", "四分位"),
    "spread": Words("spread", "波动"),
    "settings": Words("Settings", "设置"),
    "seed": Words("seed", "随机种子"),
    "seconds": Words("seconds", "秒"),
    "machine": Words("Machine", "机器"),
    "again": Words("Do it again", "自己再测一次"),
    "no_pictures": Words(
        "Without pictures: pip install 'qkv[viz]' and run it again.",
        "没有图：运行 pip install 'qkv[viz]' 后再测一次。",
    ),
}


@dataclass(frozen=True)
class Page:
    """A claim as its page shows it: all texts are in one language, all numbers are filled in."""

    row: Row
    language: Language
    picture: str | None

    @property
    def condition(self) -> str:
        """What it holds only if, or why it was not tried."""
        return condition_line(self.row, self.language)

    @property
    def mind(self) -> str:
        """What stands beside the claim and does not hold."""
        return mind_line(self.row, self.language)

    @property
    def number(self) -> str:
        """The numbers of the board's line."""
        return self.row.number(self.language)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Each part: mark, statement, numbers, threshold."""
        return [self._part(one) for one in self.row.ruling.parts]

    @property
    def numbers(self) -> list[dict[str, str]]:
        """Every number with its quartiles."""
        return [number_row(name, number) for name, number in self.row.result.numbers.items()]

    def _part(self, one: PartRuling) -> dict[str, Any]:
        numbers = self.row.result.numbers
        return {
            "mark": MARKS[one.verdict],
            "colour": COLOURS[one.verdict],
            "role": one.part.role,
            "verdict": one.verdict.say(self.language),
            "says": one.part.says.say(self.language, numbers),
            "shows": shown(one.part.shows, self.language, numbers),
            "reason": "" if one.reason is None else one.reason.say(self.language),
            "threshold": str(one.part.decides),
            "article": one.part.article,
        }


def report_html(board: Board, language: Language = "en", *, pictures: bool = True) -> str:
    """Return a board as one HTML file that loads nothing from anywhere.

    Parameters
    ----------
    board : Board
    language : "en" or "zh"
    pictures : bool
        Without them it needs no matplotlib; the page then says that it has none.

    Raises
    ------
    OptionError
        If matplotlib is not installed and pictures are wanted.
    """
    environment = Environment(
        loader=PackageLoader("qkv.viz", "templates"), autoescape=True, undefined=StrictUndefined
    )
    pages = [
        Page(row, language, svg(row.result, language) if pictures and has_picture(row.result) else None)
        for row in board.rows
    ]
    first = board.rows[0].result
    return environment.get_template(TEMPLATE).render(
        pages=pages,
        language=language,
        tag=LANGUAGE_TAGS[language],
        say={name: words.say(language) for name, words in PHRASES.items()},
        counts=[
            (MARKS[one], one.say(language), board.count(one), COLOURS[one])
            for one in Verdict
            if board.count(one)
        ],
        marks=MARKS,
        colours=COLOURS,
        first=first,
        command=f"qkv lab {first.pace}",
        pictures=pictures,
    )


def number_row(name: str, number: Number) -> dict[str, str]:
    """Return a number as the cells of a table.

    Examples
    --------
    >>> number_row("ratio", Number(7.0, 6.5, 7.5))
    {'name': 'ratio', 'value': '7', 'quartiles': '6.5 – 7.5', 'spread': '14%'}
    """
    if number.low is None or number.high is None:
        return {"name": name, "value": f"{number:.4g}", "quartiles": "", "spread": ""}
    quartiles = f"{number.low:.4g} – {number.high:.4g}"
    return {"name": name, "value": f"{number:.4g}", "quartiles": quartiles, "spread": f"{number.spread:.0%}"}
