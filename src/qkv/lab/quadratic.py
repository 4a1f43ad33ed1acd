"""(g) Attention is O(n²) in time whatever one does; its memory need not be.

Three ways to compute the same output are set side by side: the textbook formula, which writes every score
down; the same formula tile by tile in NumPy, with FlashAttention's running maximum and sum; and a compiled
kernel that does so without leaving the tile. Their results must agree before anything is timed. Memory is
the most that NumPy held at once above the operands. Slopes are those of log cost against log n: 2 is n².
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.bench.stopwatch import Times
from qkv.bench.textbook import textbook
from qkv.bench.tiling import peak_bytes
from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.ops import attend
from qkv.ops.attention import attend_by, tiled_path
from qkv.ops.backend import is_compiled

Floats = NDArray[np.float32]
Way = Callable[[Floats, Floats, Floats], Floats]
"""q, k and v, each (H, n, D), to the output."""
Ways = Mapping[str, Way]

TEXTBOOK, TILED, KERNEL = "textbook", "tiled", "kernel"

HEAD_SIZE = 64


@dataclass(frozen=True)
class Quadratic:
    """Settings.

    Parameters
    ----------
    H : int
        Heads.
    lengths : sequence of int
        Of texts, from short to long; slopes are taken over them.
    short : sequence of int
        Lengths below 100.
    pairs : int
        Rounds of timing.
    """

    H: int = 4
    lengths: Sequence[int] = (256, 512, 1024, 2048)
    short: Sequence[int] = (16, 48, 96)
    pairs: int = 5


def own_ways() -> dict[str, Way]:
    """Return the ways that this machine can go."""
    ways: dict[str, Way] = {
        TEXTBOOK: textbook,
        TILED: lambda q, k, v: attend_by(tiled_path, q, k, v).output,
    }
    if is_compiled():
        ways[KERNEL] = attend
    return ways


def measure(settings: Quadratic, instruments: Instruments, *, ways: Ways | None = None) -> Measured:
    """Check that all ways agree, then take their peaks of memory and their times."""
    tried = own_ways() if ways is None else ways
    stopwatch = replace(instruments.stopwatch, pairs=settings.pairs)
    lengths, short = list(settings.lengths), list(settings.short)
    runs = {n: runs_of(tried, settings.H, n, instruments) for n in (*short, *lengths)}
    different = max(apart(of_length) for of_length in runs.values())  # also warms every way up
    peaks = {name: {n: peak_bytes(runs[n][name]) for n in runs} for name in tried}
    seconds = {n: stopwatch.time_in_turn(runs[n]) for n in lengths}
    of_short = {n: stopwatch.time_in_turn(without_tiles(runs[n])) for n in short}
    numbers = memory_numbers(peaks, lengths, short) | time_numbers(seconds, of_short)
    numbers["apart"] = different
    numbers["longest"] = lengths[-1]
    series: dict[str, Any] = {"ways": list(tried), "bytes_n": list(runs), "seconds_n": lengths}
    for name in tried:
        series[f"{name}_bytes"] = list(peaks[name].values())
        series[f"{name}_seconds"] = [float(np.median(seconds[n][name])) for n in lengths]
    return Measured(numbers, series)


def runs_of(ways: Ways, H: int, n: int, instruments: Instruments) -> dict[str, Callable[[], Floats]]:
    """Return each way on the same random operands."""
    q, k, v = instruments.generator("quadratic", n).standard_normal((3, H, n, HEAD_SIZE), np.float32)
    return {name: partial(way, q, k, v) for name, way in ways.items()}


def without_tiles(runs: Mapping[str, Callable[[], Floats]]) -> dict[str, Callable[[], Floats]]:
    """Return the ways but the tiled one in NumPy, which a short text leaves a single tile."""
    return {name: run for name, run in runs.items() if name != TILED}


def apart(runs: Mapping[str, Callable[[], Floats]]) -> float:
    """Return how far the outputs of any two ways lie apart at most."""
    outputs = np.stack([run() for run in runs.values()])
    return float(np.ptp(outputs, axis=0).max())


def memory_numbers(
    peaks: Mapping[str, Mapping[int, int]], lengths: Sequence[int], short: Sequence[int]
) -> dict[str, Number | float]:
    """Return slopes of the peaks, how much tiling saves at the longest text, and from which length on."""
    numbers: dict[str, Number | float] = {
        f"{name}_bytes_slope": slope(lengths, [of_way[n] for n in lengths]) for name, of_way in peaks.items()
    }
    dense, tiled = peaks[TEXTBOOK], peaks[TILED]
    numbers["memory_saved"] = dense[lengths[-1]] / tiled[lengths[-1]]
    numbers["short_memory_saved"] = max(dense[n] / tiled[n] for n in short)
    saving = [n for n in (*short, *lengths) if tiled[n] < dense[n]]
    if saving:
        numbers["memory_from"] = min(saving)
    return numbers


def time_numbers(seconds: Mapping[int, Times], of_short: Mapping[int, Times]) -> dict[str, Number | float]:
    """Return slopes of the times, and how much faster than the textbook, each worked out round by round.

    Below 100 tokens it is the length at which a way is slowest against the textbook that counts.
    """
    lengths, longest = list(seconds), max(seconds)
    numbers: dict[str, Number | float] = {}
    for name, of_longest in seconds[longest].items():
        rounds = range(len(of_longest))
        slopes = [slope(lengths, [seconds[n][name][one] for n in lengths]) for one in rounds]
        numbers[f"{name}_time_slope"] = Number.of(slopes, is_timed=True)
        numbers[f"{name}_speedup"] = speedup(seconds[longest], name)
    for name in next(iter(of_short.values())):
        slowest = min((speedup(times, name) for times in of_short.values()), key=lambda one: one.value)
        numbers[f"short_{name}_speedup"] = slowest
    return numbers


def speedup(times: Times, name: str) -> Number:
    """Return how many times as fast as the textbook a way is, round by round."""
    pairs = zip(times[TEXTBOOK], times[name], strict=True)
    return Number.of([dense / own for dense, own in pairs], is_timed=True)


def slope(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent with which costs grow: the slope of log cost against log n.

    Examples
    --------
    >>> round(slope([2, 4, 8], [12.0, 48.0, 192.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])


QUADRATIC: Experiment[Any] = Experiment(
    id="g",
    name="quadratic",
    title=Words("O(n²), and tiling", "O(n²) 与分块"),
    claim=Words(
        "Attention is O(n²); tiling brings its memory to O(n) and makes it much faster, but is not worth it "
        "below 100 tokens.",
        "注意力是 O(n²) 的；分块计算把内存降到 O(n)，速度也大幅提升，但在不到 100 个 token 时不划算。",
    ),
    source="Dao et al. 2022 and 2023; the article, sections 3.1 and 3.2",
    elsewhere=Words(
        (
            "FlashAttention's authors report 10 to 20 times less memory at 2K to 4K tokens, and their "
            "speed on accelerators. That it is not worth it below 100 tokens we have found said, but "
            "not measured: what counts there is what a call costs."
        ),
        (
            "FlashAttention 的作者报告 2K 到 4K 时省 10 到 20 倍内存，速度则是加速卡上的。“100 个 tok"
            "en 以下不值得”只见有人说，没见有人测：那里要紧的是一次调用的开销。"
        ),
    ),
    quick=Quadratic(),
    full=Quadratic(lengths=(256, 512, 1024, 2048, 4096), short=(8, 16, 32, 48, 64, 96), pairs=7),
    measure=measure,
    shows=Words(
        "memory n^{textbook_bytes_slope:.1f} → n^{tiled_bytes_slope:.1f}, kernel {kernel_speedup:.1f}x",
        "内存 n^{textbook_bytes_slope:.1f} → n^{tiled_bytes_slope:.1f}，内核 {kernel_speedup:.1f} 倍",
    ),
    article="O(n²) → O(n)",
    parts=(
        Part(
            Words("the textbook's memory grows with n²", "教科书公式的内存按 n² 增长"),
            at_least("textbook_bytes_slope", 1.8),
            "n^{textbook_bytes_slope:.2f}",
            article="O(n²)",
        ),
        Part(
            Words("tiled, it grows with n", "分块后按 n 增长"),
            at_most("tiled_bytes_slope", 1.2),
            Words(
                "n^{tiled_bytes_slope:.2f}; {memory_saved:.0f} times less at {longest:.0f} tokens",
                "n^{tiled_bytes_slope:.2f}；{longest:.0f} 个 token 时少 {memory_saved:.0f} 倍",
            ),
            article="O(n)",
        ),
        Part(
            Words("time still grows nearly with n², tiled or not", "无论是否分块，时间仍接近按 n² 增长"),
            at_least("tiled_time_slope", 1.5),
            Words(
                "textbook n^{textbook_time_slope:.2f}, tiled n^{tiled_time_slope:.2f}, "
                "kernel n^{kernel_time_slope:.2f}",
                "教科书 n^{textbook_time_slope:.2f}，分块 n^{tiled_time_slope:.2f}，"
                "内核 n^{kernel_time_slope:.2f}",
            ),
            article="O(n²)",
        ),
        Part(
            Words("tiling alone, in NumPy, makes it 1.5 times as fast", "仅在 NumPy 中分块就能快 1.5 倍"),
            at_least("tiled_speedup", 1.5),
            Words(
                "{tiled_speedup:.2f}x the textbook's speed at {longest:.0f} tokens",
                "{longest:.0f} 个 token 时为教科书速度的 {tiled_speedup:.2f} 倍",
            ),
            needs=Words(
                "the tiles are worked through by a fused kernel, not by array operations one by one",
                "分块由融合内核处理，而不是逐个数组运算",
            ),
        ),
        Part(
            Words("in a fused kernel it does", "在融合内核中确实更快"),
            at_least("kernel_speedup", 1.5),
            Words(
                "{kernel_speedup:.1f}x at {longest:.0f} tokens",
                "{longest:.0f} 个 token 时为 {kernel_speedup:.1f} 倍",
            ),
        ),
        Part(
            Words("below 100 tokens the kernel is the slower way", "不到 100 个 token 时，内核反而更慢"),
            at_most("short_kernel_speedup", 1.0),
            Words(
                "it is at least {short_kernel_speedup:.1f}x as fast at every length tried",
                "在所有试过的长度上至少快 {short_kernel_speedup:.1f} 倍",
            ),
            needs=Words(
                "“not below 100 tokens” is about memory, not about time on this CPU",
                "“不到 100 个 token 不划算”指内存，而不是本机 CPU 上的时间",
            ),
        ),
        Part(
            Words("below 100 tokens tiling saves no memory", "不到 100 个 token 时，分块不省内存"),
            at_most("short_memory_saved", 1.2),
            Words(
                "at most {short_memory_saved:.1f} times less; it begins at {memory_from:.0f} tokens",
                "最多少 {short_memory_saved:.1f} 倍；从 {memory_from:.0f} 个 token 起才节省",
            ),
        ),
        Part(
            Words("on a GPU it is faster from 100 tokens on", "在 GPU 上，从 100 个 token 起更快"),
            at_least("gpu_speedup", 1.0),
            "{gpu_speedup:.1f}x",
        ),
    ),
    controls=(
        Control(
            at_most("apart", 1e-4),
            Words("the ways compute different things", "几种方法算出的结果不同"),
        ),
    ),
)
