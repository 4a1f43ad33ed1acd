"""(d) Seconds for a whole text against its length, with a cache and without, for two models."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECONDS = Words("seconds for n tokens", "生成 n 个 token 的秒数")
WAYS = {"cached": Words("with a cache", "有缓存"), "anew": Words("all anew", "全部重算")}
SIZES = {"small": "C0", "large": "C1"}


def draw_caching(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a solid line with the cache and a dashed one without, for each model."""
    n = result.series["n"]
    for size, colour in SIZES.items():
        parameters = result.numbers[f"{size}_parameters"].value / 1e6
        for way, name in WAYS.items():
            label = f"{name.say(language)}, {parameters:.1f} M"
            style = "o-" if way == "cached" else "s--"
            axes.plot(n, result.series[f"{size}_{way}_seconds"], style, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(n, [str(one) for one in n])
    axes.set_xlabel("n = T")
    axes.set_ylabel(SECONDS.say(language))
    axes.grid(alpha=0.3)
    axes.legend()
