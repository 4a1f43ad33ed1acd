"""(l) How much of the memory for keys and values holds any: runs set aside whole, against pages.

Requests arrive without end, each a prompt and an answer of a length that nobody knows beforehand. A server
that wants a request's cache in one piece sets aside a run when it begins: for the longest request there can
be, or for the next power of two, or, if an oracle told it, for exactly its tokens. A server with pages gives
out 16 tokens' worth when they are needed. All four meet the same stream, and what is counted is the share of
all slots that hold a token, on average over time. The pages are those of qkv's own pool; the control is that
counting alone comes to the same, and that the pool holds nothing but what it gave out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.planner.allocators import CountedPages, Pages, PooledPages
from qkv.planner.contiguous_runs import RESERVES, simulate_contiguous
from qkv.planner.lengths import KNOWN, Lengths
from qkv.planner.paged_runs import simulate_paged
from qkv.planner.simulation import Utilisation

MakePages = Callable[[int, int], Pages]
"""So many pages, of so many bytes each."""

CHAT, SHORT = "sharegpt", "alpaca"
KNOWN_TO_SERVERS = ("max", "power of two")
"""What can be set aside without an oracle."""


@dataclass(frozen=True)
class Paging:
    """Settings.

    Parameters
    ----------
    slots : int
        Tokens the memory has room for; 15,700 is OPT-13B in 12 GiB, as in the paper.
    longest : int
        Tokens of the longest request.
    P : int
        Tokens of a page.
    long_page : int
        Tokens of a page that is too long.
    drawn, ends : int
        Requests in the stream, and how many must end while it is counted.
    seeds : int
        How many streams, at least 2.
    """

    slots: int = 15_700
    longest: int = 2048
    P: int = 16
    long_page: int = 256
    drawn: int = 2000
    ends: int = 300
    seeds: int = 3


def measure(settings: Paging, instruments: Instruments, *, make_pages: MakePages = PooledPages) -> Measured:
    """Put the same streams through every way of giving out memory."""
    streams = [draw_stream(CHAT, settings, instruments, seed) for seed in range(settings.seeds)]
    short = [draw_stream(SHORT, settings, instruments, seed) for seed in range(settings.seeds)]
    runs = {name: [in_runs(name, stream, settings) for stream in streams] for name in RESERVES}
    pages = [in_pages(stream, settings, settings.P, make_pages) for stream in streams]
    counted = [in_pages(stream, settings, settings.P, lambda num, _: CountedPages(num)) for stream in streams]
    long = [in_pages(stream, settings, settings.long_page, make_pages) for stream in streams]
    of_short = [in_pages(stream, settings, settings.P, make_pages) for stream in short]
    best = [max(one) for one in zip(*(stored(runs[name]) for name in KNOWN_TO_SERVERS), strict=True)]
    batches = zip(pages, runs["max"], strict=True)
    numbers: dict[str, Number | float] = {
        "paged": Number.of(stored(pages)),
        "contiguous": Number.of(best),
        "wasted": Number.of([1 - share for share in stored(runs["max"])]),
        "max": Number.of(stored(runs["max"])),
        "power_of_two": Number.of(stored(runs["power of two"])),
        "oracle": Number.of(stored(runs["oracle"])),
        "paged_long": Number.of(stored(long)),
        "paged_short_requests": Number.of(stored(of_short)),
        "batch_ratio": Number.of([paged.batch / whole.batch for paged, whole in batches]),
        "pool_error": max(abs(a - b) for a, b in zip(stored(pages), stored(counted), strict=True)),
        "P": settings.P,
        "long_page": settings.long_page,
    }
    return Measured(
        numbers, bars({**runs, f"pages of {settings.P}": pages, f"pages of {settings.long_page}": long})
    )


def draw_stream(source: str, settings: Paging, instruments: Instruments, seed: int) -> Lengths:
    """Return prompts and answers like those of a public data set: ``(drawn, 2)``."""
    drawn = int(instruments.generator("utilisation", seed).integers(2**31))
    return KNOWN[source].draw(settings.drawn, limit=settings.longest, seed=drawn)


def in_runs(strategy: str, stream: Lengths, settings: Paging) -> Utilisation:
    """Set aside a run for each request when it begins."""
    return simulate_contiguous(strategy, stream, settings.slots, settings.longest, settings.ends)


def in_pages(stream: Lengths, settings: Paging, P: int, make_pages: MakePages) -> Utilisation:
    """Give out a page when a token needs one; a page of a token takes a byte here."""
    pages = make_pages(settings.slots // P, P)
    used = simulate_paged(stream, pages, P, settings.ends)
    if isinstance(pages, PooledPages):
        pages.pool.check_integrity()
    return used


def stored(runs: Sequence[Utilisation]) -> list[float]:
    """Return the shares of slots that hold tokens."""
    return [one.token_states for one in runs]


def bars(runs: dict[str, list[Utilisation]]) -> dict[str, list[str] | list[float]]:
    """Return what slots were used for under each strategy, as means over the streams."""
    kinds = ("token_states", "reserved", "internal", "external")
    shares = {
        kind: [mean(getattr(one, kind) for one in of_way) for of_way in runs.values()] for kind in kinds
    }
    return {"strategy": list(runs), **shares}


UTILISATION = Experiment(
    id="l",
    name="utilisation",
    title=Words("PagedAttention's memory", "PagedAttention 的内存利用率"),
    claim=Words(
        "PagedAttention raises the utilisation of KV-cache memory from 60-80 % to over 95 %.",
        "PagedAttention 把 KV-Cache 的内存利用率从 60-80% 提升到 95% 以上。",
    ),
    source="Kwon et al. 2023, figures 2 and 12; the article, sections 2.5 and 3.3",
    quick=Paging(),
    full=Paging(drawn=8000, ends=2000, seeds=11),
    measure=measure,
    shows=Words(
        "{contiguous:.0%} in one piece → {paged:.1%} in pages", "整块 {contiguous:.0%} → 分页 {paged:.1%}"
    ),
    article="60-80 % → > 95 %",
    parts=(
        Part(
            Words(
                "with pages of 16 over 95 % of memory holds tokens",
                "页大小为 16 时，95% 以上的内存存有 token",
            ),
            at_least("paged", 0.95),
            "{paged:.1%}",
            article="> 95 %",
        ),
        Part(
            Words("without pages 60-80 % does", "不分页时为 60-80%"),
            at_least("contiguous", 0.6),
            Words(
                "{contiguous:.0%} ({max:.0%} set aside for the longest, {power_of_two:.0%} for a power of "
                "two; {oracle:.0%} if lengths were known)",
                "{contiguous:.0%}（按最长预留 {max:.0%}，按 2 的幂 {power_of_two:.0%}；"
                "若已知长度 {oracle:.0%}）",
            ),
            needs=Words(
                "60-80 % is read as what was wasted before (here {wasted:.0%})",
                "60-80% 应读作此前的浪费比例（此处 {wasted:.0%}）",
            ),
            article="60-80 %",
        ),
        Part(
            Words("whatever the size of a page", "无论页有多大"),
            at_least("paged_long", 0.95),
            Words("pages of {long_page:.0f}: {paged_long:.1%}", "页大小 {long_page:.0f}：{paged_long:.1%}"),
            needs=Words("pages are small, 16 tokens", "页要小（16 个 token）"),
        ),
        Part(
            Words("whatever the requests", "无论请求长短"),
            at_least("paged_short_requests", 0.95),
            Words(
                "requests of about 80 tokens, as Alpaca's: {paged_short_requests:.1%}",
                "约 80 个 token 的请求（如 Alpaca）：{paged_short_requests:.1%}",
            ),
            needs=Words("requests are long against a page", "请求相对于页足够长"),
        ),
        Part(
            Words("at least twice as many requests run at once", "同时运行的请求至少多一倍"),
            at_least("batch_ratio", 2.0),
            Words(
                "{batch_ratio:.1f} times as many as with runs for the longest",
                "是按最长预留时的 {batch_ratio:.1f} 倍",
            ),
        ),
    ),
    controls=(
        Control(
            at_most("pool_error", 0.0),
            Words("qkv's pool gives out other pages than counting does", "qkv 的页池与单纯计数结果不同"),
        ),
    ),
)
