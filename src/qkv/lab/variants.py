"""(o) Attention's variants side by side: what each remembers of a text, and how fast it reads and goes on.

One layer's attention is taken in eight forms, on the same random text: multi-head attention by the textbook
and tiled in a kernel; grouped-query attention, 4 or 8 query heads to a key head, and multi-query attention,
all of them to one; latent attention; a sliding window; and linear attention. Each keeps its text in a real
cache, whose bytes are counted and must be those of the planner. Each must agree with its formula, both read
whole and one token after the text, before anything is timed. Times are those of multi-head attention, tiled,
over the variant's, round by round; the workspace is the most that NumPy held beyond cache and output.

Random numbers tell nothing about quality: a variant is another function and has to be trained. Only a window
can be put on a model that was trained without, so its loss on text is measured, and no other is shown.

The controls: every formula and every plan must be met, and multi-head attention must slow down with the
length of its context, or no variant could help.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from qkv.bench.stopwatch import Times
from qkv.bench.tiling import peak_bytes
from qkv.lab.attention_variants import (
    GQA,
    GQA8,
    LINEAR,
    MHA,
    MLA,
    TEXTBOOK,
    WINDOW,
    Layer,
    Sizes,
    Text,
    Variant,
    farthest,
    own_variants,
)
from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import loss, loss_numbers, read, write_texts
from qkv.lab.result import Measured, Number
from qkv.lab.trained import NotTestable
from qkv.lab.words import Words

Numbers = dict[str, Number | float]
Variants = Mapping[str, Variant]
MakeVariants = Callable[[Sizes, np.random.Generator], Variants]

FASTER = 1.25
"""Times as fast: as far apart as times may lie that still decide."""
FLAT = 1.5
"""Times as slow on a text 8 times as long, or longer."""
SHARING = {GQA: 4, GQA8: 8}
"""Query heads to a key head."""


@dataclass(frozen=True)
class SideBySide:
    """Settings.

    Parameters
    ----------
    H, D, W : int
        Heads, a multiple of 8; their size; tokens that a window sees.
    short, S : int
        Tokens of a short context and of a long one, both whole pages and no less than W.
    T : int
        Tokens that are read at once, more than W.
    pairs : int
        Rounds of timing.
    texts, text_length, text_window : int
        How many texts a trained model writes, at least 2, of how many tokens, and its window on them.
    """

    H: int = 16
    D: int = 64
    W: int = 128
    short: int = 512
    S: int = 4096
    T: int = 256
    pairs: int = 5
    texts: int = 2
    text_length: int = 160
    text_window: int = 64


def measure(
    settings: SideBySide, instruments: Instruments, *, make_variants: MakeVariants = own_variants
) -> Measured:
    """Check every variant, then fill its cache, let it go on, and let it read."""
    draw = instruments.generator("variants")
    sizes = Sizes(settings.H, settings.D, settings.W)
    variants, text = make_variants(sizes, draw), Text.draw(sizes, settings.S, draw)
    prompt = text.part(0, settings.T)
    off = farthest(variants, prompt)
    kept, decode = going_on(variants, text, settings, instruments)
    spaces, reading = reading_anew(variants, prompt, settings, instruments)
    quality = on_text(settings, instruments)
    numbers = {
        "farthest": off,
        "S": settings.S,
        "T": settings.T,
        "W": settings.W,
        "text_window": settings.text_window,
    }
    columns = {
        "bytes_per_token": {name: one / settings.S for name, one in kept.items()},
        "decode": {name: slowness(decode, name).value for name in variants},
        "prefill": {name: slowness(reading, name).value for name in variants},
        "workspace": spaces,
        "kl": {WINDOW: quality["window_kl"].value} if quality else {},
    }
    numbers |= byte_numbers(kept, variants, text, settings) | time_numbers(decode, reading) | quality
    numbers["tiled_workspace_saved"] = spaces[TEXTBOOK] / max(spaces[MHA], 1)
    series = {title: [column.get(name) for name in variants] for title, column in columns.items()}
    return Measured(numbers, {"variant": list(variants), **series})


def going_on(
    variants: Variants, text: Text, settings: SideBySide, instruments: Instruments
) -> tuple[dict[str, int], Times]:
    """Return what each variant keeps of a long context, and the times of one token more."""
    layers = {name: filled(one, text) for name, one in variants.items()}
    kept = {name: layer.nbytes for name, layer in layers.items()}
    for name in (MHA, WINDOW):
        layers[f"{name} short"] = filled(variants[name], text.part(0, settings.short))
    token = text.part(text.length - 1, text.length)
    runs = {name: partial(layer.read, token) for name, layer in layers.items()}
    return kept, replace(instruments.stopwatch, pairs=settings.pairs).time_in_turn(runs)


def filled(variant: Variant, text: Text) -> Layer:
    """Return a layer that remembers a text."""
    layer = variant.start()
    layer.remember(text)
    return layer


def reading_anew(
    variants: Variants, prompt: Text, settings: SideBySide, instruments: Instruments
) -> tuple[dict[str, int], Times]:
    """Return the workspace each variant takes to read a prompt, and the times."""
    runs = {name: lambda one=one: one.start().read(prompt) for name, one in variants.items()}
    spaces = {name: workspace(one, prompt) for name, one in variants.items()}
    return spaces, replace(instruments.stopwatch, pairs=settings.pairs).time_in_turn(runs)


def workspace(variant: Variant, prompt: Text) -> int:
    """Return the most that was held while a prompt was read, beyond what is kept of it and its output."""
    layer = variant.start()
    output = layer.read(prompt)
    peak = peak_bytes(lambda: variant.start().read(prompt))
    return max(0, peak - layer.nbytes - output.nbytes)


def byte_numbers(kept: Mapping[str, int], variants: Variants, text: Text, settings: SideBySide) -> Numbers:
    """Return what is kept of a token, how many times less than by all heads, and whether it was planned."""
    numbers: Numbers = {f"{name}_bytes": one / settings.S for name, one in kept.items()}
    saving = {name: kept[MHA] / one for name, one in kept.items()}
    numbers |= {f"{name}_saving": one for name, one in saving.items()}
    numbers["planned_off"] = max(abs(variants[name].planned(settings.S) - one) for name, one in kept.items())
    numbers["shared"] = min(saving[name] / heads for name, heads in SHARING.items())
    numbers["mla_of_gqa"] = max(kept[MLA] / kept[name] for name in SHARING)
    short = text.part(0, settings.short)
    for name in (MHA, LINEAR):
        numbers[f"{name}_growth"] = kept[name] / filled(variants[name], short).nbytes
    return numbers | {"linear_state": kept[LINEAR]}


def time_numbers(decode: Times, reading: Times) -> Numbers:
    """Return how many times as fast as multi-head attention each goes on and reads, and how two slow down."""
    numbers: Numbers = {}
    for name in reading:
        numbers[f"{name}_decode"] = ratio(decode, MHA, name)
        numbers[f"{name}_prefill"] = ratio(reading, MHA, name)
    for name in (MHA, WINDOW):
        numbers[f"{name}_decode_growth"] = ratio(decode, name, f"{name} short")
    return numbers | {"tiled_prefill": ratio(reading, TEXTBOOK, MHA)}


def ratio(times: Times, one: str, other: str) -> Number:
    """Return how many times as long one took as the other, round by round."""
    rounds = zip(times[one], times[other], strict=True)
    return Number.of([its / others for its, others in rounds], is_timed=True)


def slowness(times: Times, name: str) -> Number:
    """Return how many times as long as multi-head attention a variant took."""
    return ratio(times, name, MHA)


def on_text(settings: SideBySide, instruments: Instruments) -> dict[str, Number]:
    """Return what a window costs a trained model on its own texts; nothing where there is none."""
    try:
        model = instruments.text_model()
    except NotTestable:
        return {}
    texts = write_texts(model, settings.texts, settings.text_length, instruments.generator("variants text"))
    policy = f"window={settings.text_window}"
    losses = [loss(read(model, one), read(model, one, policy), one, settings.text_window) for one in texts]
    return loss_numbers(WINDOW, losses)


VARIANTS: Experiment[Any] = Experiment(
    id="o",
    name="variants",
    title=Words("Variants side by side", "注意力变体对比"),
    claim=Words(
        "Attention's variants remember less of each token than multi-head attention, and decode faster.",
        "注意力的各种变体比多头注意力更省内存，解码也更快。",
    ),
    source="Shazeer 2019; Ainslie et al. 2023; DeepSeek-AI 2024; Katharopoulos et al. 2020; the article, "
    "sections 2.4 and 2.5",
    elsewhere=Words(
        (
            "DeepSeek-V2 says that MLA's latent takes as much as GQA with 2.25 key heads: so it does. "
            "Its absorbed decode does more arithmetic to read less; where arithmetic is dear beside "
            "bytes, as on two CPU cores, that need not pay."
        ),
        (
            "DeepSeek-V2 说 MLA 的潜在向量相当于 2.25 个 key 头的 GQA：确实如此。吸收式解码用更多算术"
            "换更少读取；在两个 CPU 核上算术相对昂贵，未必划算。"
        ),
    ),
    quick=SideBySide(),
    full=SideBySide(D=128, W=512, short=1024, S=8192, T=1024, pairs=15, texts=5, text_length=256),
    measure=measure,
    shows=Words(
        "bytes: GQA 1/{gqa_saving:.0f}, MLA 1/{mla_saving:.1f}; MQA decodes {mqa_decode:.1f}x",
        "字节：GQA 1/{gqa_saving:.0f}，MLA 1/{mla_saving:.1f}；MQA 解码 {mqa_decode:.1f} 倍",
    ),
    article="4-8x",
    parts=(
        Part(
            Words(
                "GQA cuts the cache as many times as query heads share a key head, 4x or 8x",
                "GQA 让缓存缩小的倍数等于共享一个键头的查询头数：4 倍或 8 倍",
            ),
            at_least("shared", 1.0),
            Words(
                "{mha_bytes:,.0f} bytes a token → {gqa_bytes:,.0f} ({gqa_saving:.0f}x) and {gqa8_bytes:,.0f} "
                "({gqa8_saving:.0f}x); MQA {mqa_bytes:,.0f} ({mqa_saving:.0f}x)",
                "每个 token {mha_bytes:,.0f} 字节 → {gqa_bytes:,.0f}（{gqa_saving:.0f} 倍）和 "
                "{gqa8_bytes:,.0f}（{gqa8_saving:.0f} 倍）；MQA {mqa_bytes:,.0f}（{mqa_saving:.0f} 倍）",
            ),
            article="4-8x",
        ),
        Part(
            Words("MQA decodes faster than MHA at long contexts", "长上下文时 MQA 解码比 MHA 快"),
            at_least("mqa_decode", FASTER),
            Words(
                "{mqa_decode:.1f}x at {S:,.0f} tokens; GQA {gqa_decode:.1f}x and {gqa8_decode:.1f}x, "
                "linear {linear_decode:.0f}x",
                "{S:,.0f} 个 token 时 {mqa_decode:.1f} 倍；GQA {gqa_decode:.1f} 倍和 {gqa8_decode:.1f} 倍，"
                "线性 {linear_decode:.0f} 倍",
            ),
        ),
        Part(
            Words("a window keeps decoding flat", "滑动窗口使解码时间不随长度增长"),
            at_most("window_decode_growth", FLAT),
            Words(
                "{window_decode_growth:.2f}x the time at {S:,.0f} tokens as on a short text; "
                "MHA {mha_decode_growth:.1f}x",
                "{S:,.0f} 个 token 时耗时为短文本的 {window_decode_growth:.2f} 倍；MHA 为 "
                "{mha_decode_growth:.1f} 倍",
            ),
        ),
        Part(
            Words("MLA's latent takes less than GQA's keys and values", "MLA 的潜向量比 GQA 的键和值更小"),
            at_most("mla_of_gqa", 1.0),
            Words(
                "{mla_bytes:,.0f} bytes a token; GQA {gqa_bytes:,.0f} (4x) and {gqa8_bytes:,.0f} (8x)",
                "每个 token {mla_bytes:,.0f} 字节；GQA {gqa_bytes:,.0f}（4 倍）和 {gqa8_bytes:,.0f}（8 倍）",
            ),
            needs=Words(
                "MLA is held against GQA of 3 key heads or more: a latent takes as much as 2.25",
                "MLA 与至少 3 个键头的 GQA 相比：一个潜向量相当于 2.25 个键头",
            ),
        ),
        Part(
            Words("MLA decodes faster than MHA at long contexts", "长上下文时 MLA 解码比 MHA 快"),
            at_least("mla_decode", FASTER),
            Words(
                "{mla_decode:.2f}x the speed, {mla_prefill:.2f}x in prefill, on {mla_saving:.1f} times "
                "fewer bytes",
                "速度为 {mla_decode:.2f} 倍，预填充 {mla_prefill:.2f} 倍，而字节少 {mla_saving:.1f} 倍",
            ),
            needs=Words(
                "products are cheap beside bytes, as on a GPU: a latent takes 4.25 times as many a pair",
                "乘法远比读内存便宜（如 GPU 上）：每对 token 潜向量需要 4.25 倍的乘法",
            ),
        ),
        Part(
            Words("tiling gives the same numbers in less memory", "分块计算结果相同，但更省内存"),
            at_least("tiled_workspace_saved", 2.0),
            Words(
                "{tiled_workspace_saved:.0f} times less workspace for {T:.0f} tokens, "
                "{tiled_prefill:.1f}x the textbook's speed; formulas met to {farthest:.0g}",
                "{T:.0f} 个 token 时工作内存少 {tiled_workspace_saved:.0f} 倍，速度为教科书的 "
                "{tiled_prefill:.1f} 倍；与公式最多相差 {farthest:.0g}",
            ),
        ),
        Part(
            Words("linear attention's state does not grow", "线性注意力的状态不会增长"),
            at_most("linear_growth", 1.0),
            Words(
                "{linear_state:,.0f} bytes whatever the length; MHA's cache grows {mha_growth:.0f}x",
                "无论多长都是 {linear_state:,.0f} 字节；MHA 的缓存增长 {mha_growth:.0f} 倍",
            ),
        ),
    ),
    controls=(
        Control(
            at_most("farthest", 1e-4),
            Words("a variant does not compute its formula", "某个变体与它的公式不符"),
        ),
        Control(
            at_most("planned_off", 0.0),
            Words("a cache does not take what the planner says", "缓存占用与规划不符"),
        ),
        Control(
            at_least("mha_decode_growth", 1.5),
            Words(
                "multi-head attention does not slow down with its context here",
                "此处多头注意力并不随上下文变慢",
            ),
        ),
    ),
)
