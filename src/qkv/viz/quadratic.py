"""(g) Memory at its peak against n, and times beside it, both with their exponents."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMORY = Words("bytes held at the peak", "峰值字节数")
SECONDS = Words("seconds", "秒")
NAMES = {
    "textbook": Words("textbook", "教科书"),
    "tiled": Words("tiled, NumPy", "分块（NumPy）"),
    "kernel": Words("kernel", "内核"),
}


def draw_quadratic(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a solid line of bytes and, on an axis of its own, a dashed one of seconds for each way."""
    series, numbers = result.series, result.numbers
    beside = axes.twinx()
    for index, way in enumerate(series["ways"]):
        name, colour = NAMES[way].say(language), f"C{index}"
        exponents = f"n^{numbers[f'{way}_bytes_slope']:.1f}, n^{numbers[f'{way}_time_slope']:.1f}"
        label = f"{name} ({exponents})"
        axes.plot(series["bytes_n"], series[f"{way}_bytes"], "o-", color=colour, label=label)
        beside.plot(series["seconds_n"], series[f"{way}_seconds"], "s--", color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    beside.set_yscale("log")
    axes.set_xticks(series["bytes_n"], [str(n) for n in series["bytes_n"]])
    axes.set_xlabel("n = T = S")
    axes.set_ylabel(f"{MEMORY.say(language)} (●)")
    beside.set_ylabel(f"{SECONDS.say(language)} (■)")
    axes.grid(alpha=0.3)
    axes.legend()
