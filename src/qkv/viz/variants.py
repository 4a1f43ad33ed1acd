"""(o) The variants as a table: a row for each, a column for each measure, a bar in each cell."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "textbook": Words("MHA, textbook", "MHA（教科书）"),
    "mha": Words("MHA, tiled", "MHA（分块）"),
    "gqa": Words("GQA, 4 to 1", "GQA（4 比 1）"),
    "gqa8": Words("GQA, 8 to 1", "GQA（8 比 1）"),
    "mqa": Words("MQA", "MQA"),
    "mla": Words("MLA", "MLA"),
    "window": Words("window of {W}", "窗口 {W}"),
    "linear": Words("linear", "线性"),
}
Column = tuple[Words, Callable[[float], str]]
COLUMNS: dict[str, Column] = {
    "bytes_per_token": (Words("cache bytes\na token", "每个 token 的\n缓存字节"), lambda one: f"{one:,.0f}"),
    "decode": (Words("decode time\nS = {S}", "解码时间\nS = {S}"), lambda one: f"{one:.2g}×"),
    "prefill": (Words("prefill time\nT = {T}", "预填充时间\nT = {T}"), lambda one: f"{one:.2g}×"),
    "workspace": (Words("its work-\nspace, MB", "工作内存\n（MB）"), lambda one: f"{one / 1e6:.1f}"),
    "kl": (Words("loss on text,\nnats", "文本上的损失\n（nat）"), lambda one: f"{one:.3f}"),
}
"""What stands above each column, and how its numbers are written."""
UNTRAINED = Words("not trained here", "此处未训练")
EXACT = Words("exact", "精确")
"""Of both forms of multi-head attention, which compute the same."""
LONGEST = 0.5
"""Of a bar, as a share of its column; the rest is for the number."""
UP_TO = 4.0
"""Times as long as MHA: a longer bar is cut, or the others would vanish."""


def draw_variants(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a bar for every measure of every variant, with its number; times as multiples of MHA's."""
    series, settings = result.series, result.settings
    variants = series["variant"]
    for column, (name, (words, _)) in enumerate(COLUMNS.items()):
        lengths = bar_lengths(name, series[name])
        axes.barh(range(len(variants)), lengths, left=column, height=0.55, color=f"C{column}", alpha=0.6)
        axes.text(column, -0.7, words.say(language, settings), va="bottom", fontsize="small")
        for row, variant in enumerate(variants):
            text = cell(result, name, row, variant, language)
            axes.text(column + lengths[row] + 0.03, row, text, va="center", fontsize="small")
    axes.set_yticks(range(len(variants)), [NAMES[one].say(language, settings) for one in variants])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.set_xlim(0, len(COLUMNS))
    axes.set_ylim(len(variants) - 0.5, -1.6)
    axes.spines[:].set_visible(False)


def bar_lengths(name: str, values: Sequence[float | None]) -> list[float]:
    """Return how long the bars of a column are: the longest half of it, times cut at 4 times MHA's.

    A loss that one variant alone has needs no bar.
    """
    if name == "kl":
        return [0.0] * len(values)
    known = [0.0 if value is None else float(value) for value in values]
    if name in ("decode", "prefill"):
        known = [min(value, UP_TO) for value in known]
    most = max(known) or 1.0
    return [LONGEST * value / most for value in known]


def cell(result: Result, name: str, row: int, variant: str, language: Language) -> str:
    """Return what is written behind a bar."""
    value = result.series[name][row]
    if value is None:
        return (EXACT if variant in ("textbook", "mha") else UNTRAINED).say(language)
    text = COLUMNS[name][1](value)
    return f"{text} (W = {result.settings['text_window']})" if name == "kl" else text
