"""(c) Different heads learn different patterns: how different, which patterns, and what they are good for.

That heads differ proves little: heads of random weights differ as well. So each head gets a score for every
pattern that heads are known for, and an untrained model of the same heads and width is scored beside it. For
each pattern the head that scores highest on the first text is looked for, and then measured on the others.
Copying needs something to copy: induction is read off a text that is said twice.

Whether a pattern is what a head is good for is another question. Each head is taken away alone, and what the
model then loses is set against how clearly the head follows any pattern. That is a rank correlation within
each layer, as deep heads matter more whatever they look at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, Reading, log_softmax, loss, write_texts
from qkv.lab.patterns import Delimiters, delimiter_ids, divergences, even_attention, patterns, scores
from qkv.lab.random_models import untrained_like
from qkv.lab.rank_correlation import spearman
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import Model
from qkv.models.watching import Watched, watch

Floats = NDArray[Any]
Watch = Callable[..., Watched]
"""A model, a text and maybe a change, to what the heads did."""

NAMES = ("previous", "first", "local", "duplicate", "induction", "delimiter")
LEARNED = 0.1
"""Bits by which trained heads must differ more than untrained ones: a tenth of what two heads can."""
MOST = 0.5
"""A head follows a pattern if more of its attention lies there than anywhere else together."""

RANKED = 0.7
"""A rank correlation from which on one rank explains half of the variance of the other."""


@dataclass(frozen=True)
class Heads:
    """Settings.

    Parameters
    ----------
    texts : int
        How many, at least 3: the first chooses heads, the others measure them.
    T : int
        Tokens of a text.
    ablated_texts : int
        How many of them are read again with each head taken away.
    """

    texts: int = 4
    T: int = 96
    ablated_texts: int = 2


@dataclass(frozen=True, eq=False)
class Seen:
    """What the heads of one model did on one text: scores ``(N,)`` by pattern, and weights ``(N, T, T)``."""

    scores: Mapping[str, Floats]
    even: Mapping[str, float]
    weights: Floats


def measure(
    settings: Heads,
    instruments: Instruments,
    *,
    watch: Watch = watch,
    delimiters: Delimiters = delimiter_ids,
) -> Measured:
    """Score every head on every pattern, in a trained and an untrained model, and take each away alone."""
    model = instruments.text_model()
    texts = write_texts(model, settings.texts, settings.T, instruments.generator("texts"))
    untrained = untrained_like(model, texts[0], instruments.generator("untrained"))
    ids = delimiters(model)
    trained_seen, untrained_seen = (
        [look(one, text, ids, watch) for text in texts] for one in (model, untrained)
    )
    costs = ablation_costs(model, texts[: settings.ablated_texts], watch)
    apart = np.mean([divergences(one.weights) for one in trained_seen], axis=0)
    return Measured(
        differences(trained_seen, untrained_seen)
        | best_scores(trained_seen, untrained_seen)
        | worth(trained_seen, costs, model.cache_shape.num_layers),
        series={
            "patterns": list(NAMES),
            "scores": np.mean(
                [[one.scores[name] for name in NAMES] for one in trained_seen], axis=0
            ).tolist(),
            "even": np.mean([[one.even[name] for name in NAMES] for one in trained_seen], axis=0).tolist(),
            "cost": costs.mean(axis=0).tolist(),
            "js": apart.tolist(),
            "heads": head_names(model, len(apart)),
        },
    )


def head_names(model: Model, count: int) -> list[str]:
    """Return the names of all heads: layer, then head."""
    H = count // model.cache_shape.num_layers
    return [f"{index // H}.{index % H}" for index in range(count)]


def look(model: Model, text: Ids, delimiters: Any, watch: Watch) -> Seen:
    """Score every head on one text; on the text said twice where something is to be copied."""
    half = text[: len(text) // 2 + 1]
    twice = np.concatenate([half, half[1:]])
    seen = {"plain": (text, watch(model, text).weights), "twice": (twice, watch(model, twice).weights)}
    found: dict[str, Floats] = {}
    even: dict[str, float] = {}
    for name in NAMES:
        ids, weights = seen["twice" if name == "induction" else "plain"]
        pattern = patterns(ids, delimiters)[name]
        found[name] = scores(weights, pattern).reshape(-1)
        even[name] = float(scores(even_attention(len(ids)), pattern))
    T = len(text)
    return Seen(found, even, seen["plain"][1].reshape(-1, T, T))


def differences(trained: list[Seen], untrained: list[Seen]) -> dict[str, Number | float]:
    """Return how far apart two heads look, on average over all pairs."""
    ours, theirs = (
        [mean_of_pairs(divergences(one.weights)) for one in seen] for seen in (trained, untrained)
    )
    return {
        "js": Number.of(ours),
        "untrained_js": Number.of(theirs),
        "js_learned": Number.of([one - other for one, other in zip(ours, theirs, strict=True)]),
    }


def mean_of_pairs(table: Floats) -> float:
    """Return the mean of a symmetric table ``(N, N)`` without its diagonal."""
    return float(table[np.triu_indices(len(table), 1)].mean())


def best_scores(trained: list[Seen], untrained: list[Seen]) -> dict[str, Number | float]:
    """Return what the best head of each pattern, chosen on the first text, scores on the others."""
    numbers: dict[str, Number | float] = {}
    for name in NAMES:
        for prefix, seen in (("", trained), ("untrained_", untrained)):
            best = int(seen[0].scores[name].argmax())
            numbers[prefix + name] = Number.of([float(one.scores[name][best]) for one in seen[1:]])
        numbers[f"even_{name}"] = Number.of([one.even[name] for one in trained[1:]])
    return numbers


def ablation_costs(model: Model, texts: Ids, watch: Watch) -> Floats:
    """Return what taking each head away alone costs on each text, in nats per token, ``(count, N)``."""
    L, H = watch(model, texts[0]).weights.shape[:2]
    rows = []
    for text in texts:
        whole = said(watch(model, text))
        heads = [(layer, head) for layer in range(L) for head in range(H)]
        rows.append([loss(whole, said(watch(model, text, without(*one))), text).kl for one in heads])
    return np.array(rows)


def said(watched: Watched) -> Reading:
    """Return what a watched model said, as a reading."""
    return Reading(log_softmax(watched.logits), nbytes=0)


def without(layer: int, head: int) -> Callable[[int, Floats], Floats]:
    """Return a change that lets one head see nothing."""

    def change(at: int, weights: Floats) -> Floats:
        if at == layer:
            weights[:, head] = 0
        return weights

    return change


def worth(seen: list[Seen], costs: Floats, L: int) -> dict[str, Number | float]:
    """Return what heads cost when taken away, and whether those with a clear pattern cost more."""
    each = costs.mean(axis=0)
    by_layer = each.reshape(L, -1)  # deep heads cost more, whatever they look at
    clear = np.mean([clarity(one) for one in seen], axis=0).reshape(by_layer.shape)
    return {
        "least_cost": float(each.min()),
        "median_cost": float(np.median(each)),
        "most_cost": float(each.max()),
        "clear_to_cost": float(
            np.mean([spearman(*of_layer) for of_layer in zip(clear, by_layer, strict=True)])
        ),
    }


def clarity(seen: Seen) -> Floats:
    """Return how far each head's best score lies above even attention, ``(N,)``."""
    return np.max([seen.scores[name] - seen.even[name] for name in NAMES], axis=0)


def pattern_part(name: str, says: Words, needs: Words) -> Part:
    """Return the part that says one head follows a pattern."""
    numbers = f"{{{name}:.0%}}"
    control = f"{{untrained_{name}:.0%}}"
    even = f"{{even_{name}:.0%}}"
    return Part(
        says,
        at_least(name, MOST),
        Words(
            f"{numbers} of its attention; untrained {control}, even attention {even}",
            f"占其注意力的 {numbers}；未训练 {control}，均匀注意力 {even}",
        ),
        needs=needs,
    )


HEADS = Experiment(
    id="c",
    name="heads",
    title=Words("What heads look at", "各个头在看什么"),
    claim=Words(
        "Different heads learn different patterns: position, copying, syntax, and each one matters.",
        "不同的头学到不同的模式：位置、复制、语法，而且每个头都有用。",
    ),
    source="Clark et al. 2019; Olsson et al. 2022; Michel et al. 2019; the article, section 2.2",
    elsewhere=Words(
        (
            "Olsson et al. find induction heads in models that have read far more; with 2.8 million "
            "parameters this one has learned little of copying. That most heads can be taken away "
            "alone, as Michel et al. report, is so here. What a head knows of meaning is not tried."
        ),
        (
            "Olsson 等人在读过多得多文本的模型里找到归纳头；这个 280 万参数的模型几乎没学会复制。Mich"
            "el 等人说多数头单独去掉无妨，这里也是如此。头懂多少语义没有检验。"
        ),
    ),
    quick=Heads(),
    full=Heads(texts=11, T=256, ablated_texts=5),
    measure=measure,
    shows=Words(
        "JS {js:.2f} bit, untrained {untrained_js:.2f}; local {local:.0%}, copy {induction:.0%}",
        "JS {js:.2f} bit，未训练 {untrained_js:.2f}；邻近 {local:.0%}，复制 {induction:.0%}",
    ),
    parts=(
        Part(
            Words("trained heads differ more than random ones do", "训练后的头之间的差异大于随机的头"),
            at_least("js_learned", LEARNED),
            Words(
                "{js:.2f} bit between two heads, untrained {untrained_js:.2f}",
                "两个头之间 {js:.2f} bit，未训练 {untrained_js:.2f}",
            ),
            needs=Words(
                "the patterns are named: random heads differ about as much",
                "指明是哪些模式：随机的头差异也差不多大",
            ),
        ),
        pattern_part(
            "previous",
            Words("a head looks at the token just before", "有一个头看紧挨着的前一个 token"),
            Words("just before may be the last few tokens", "“前一个”可以放宽为最近几个"),
        ),
        pattern_part(
            "local",
            Words(
                "a head goes by position: it looks at the last four tokens",
                "有一个头按位置看：最近的四个 token",
            ),
            Words("heads of position may stay diffuse", "位置头可以较为分散"),
        ),
        pattern_part(
            "induction",
            Words("a head copies: it looks behind the last time", "有一个头负责复制：看上次出现之后的 token"),
            Words("the model was trained to copy", "模型在训练中学过复制"),
        ),
        pattern_part(
            "delimiter",
            Words("a head looks at what divides the text", "有一个头看分隔文本的符号"),
            Words("syntax means more than line ends and punctuation", "语法不止于换行和标点"),
        ),
        Part(
            Words(
                "each head matters: taken away alone, even the least costs 0.001 nats",
                "每个头都有用：单独去掉任何一个，至少损失 0.001 nat",
            ),
            at_least("least_cost", 0.001),
            Words(
                "least {least_cost:.4f}, median {median_cost:.3f}, most {most_cost:.2f} nats",
                "最小 {least_cost:.4f}，中位数 {median_cost:.3f}，最大 {most_cost:.2f} nat",
            ),
            needs=Words("some heads may be redundant", "允许部分头是冗余的"),
        ),
        Part(
            Words(
                "within a layer, the clearer a head's pattern, the more it matters",
                "同一层内，头的模式越清晰，它就越重要",
            ),
            at_least("clear_to_cost", RANKED),
            Words("rank correlation {clear_to_cost:.2f}", "秩相关 {clear_to_cost:.2f}"),
            needs=Words("a pattern is not taken for what the head is good for", "不把模式当成头的作用"),
        ),
    ),
    controls=(
        Control(
            at_least("most_cost", 1e-4),
            Words("taking heads away changes nothing at all", "去掉任何头都毫无影响"),
        ),
    ),
)
