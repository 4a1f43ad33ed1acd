"""(b) Under the causal mask no token sees what comes after it.

Two meters show it. The first adds up the weight that lies above the diagonal of a layer's attention.
The second does not trust weights: it replaces every token behind some position and asks whether any
logit up to that position moves. A control takes the mask away, and both meters must then move.

The same meters read the article's class with a cache. It has no mask, as one token at a time needs
none; but a prompt of several tokens then sees its own future. Its run without a cache hands the tokens
over as the batch axis, so each is a text of its own and sees nothing but itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.random_models import VOCABULARY, random_llama
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import CachedMultiHeadAttention, Model, new_cache
from qkv.ops import scaled_dot_product_attention, softmax

Floats = NDArray[Any]
Numbers = dict[str, Number | float]
Attention = Callable[..., tuple[Floats, Floats]]
"""q, k, v and ``causal`` to output and weights."""
MakeModel = Callable[[np.random.Generator, int], Model]
"""A model for texts of so many tokens."""

HEADS, HEAD_SIZE = 8, 16
PROMPT = 10
"""Tokens that are put through the article's class at once."""
HIDDEN_SCORE = -1e9
"""What the article writes where a token must not look."""
ARTICLE_GAIN = 2**0.5
"""Its weights have scale sqrt(2/E), ours sqrt(2/(E+E))."""


@dataclass(frozen=True)
class Causality:
    """Settings.

    Parameters
    ----------
    T : int
        Tokens of a text.
    seeds : int
        How many texts and layers, at least 2.
    chunk : int
        Tokens that go through the cache at once.
    """

    T: int = 61
    seeds: int = 5
    chunk: int = 7


def small_llama(random: np.random.Generator, T: int) -> Model:
    """Return a random model of two layers and grouped heads."""
    return random_llama(random, E=64, L=2, H=4, G=2, context_length=T)


def measure(
    settings: Causality,
    instruments: Instruments,
    *,
    attention: Attention = scaled_dot_product_attention,
    make_model: MakeModel = small_llama,
) -> Measured:
    """Read both meters with the mask, without it, and on the article's class."""
    draws = [instruments.generator("causality", seed) for seed in range(settings.seeds)]
    heads = [draw.standard_normal((3, HEADS, settings.T, HEAD_SIZE), np.float32) for draw in draws]
    masked = [attention(*qkv, causal=True)[1] for qkv in heads]
    unmasked = [attention(*qkv, causal=False)[1] for qkv in heads]
    models = [make_model(draw, settings.T) for draw in draws]
    return Measured(
        numbers_of_weights(masked, unmasked)
        | numbers_of_models(models, draws, settings)
        | numbers_of_article(draws)
        | {
            "article_blind_row_mass": article_blind_row(settings.T),
            "own_blind_row_mass": own_blind_row(settings.T),
        },
        series={"weights": masked[0][0].tolist(), "unmasked_weights": unmasked[0][0].tolist()},
    )


def numbers_of_weights(masked: list[Floats], unmasked: list[Floats]) -> Numbers:
    """Return where weight lies with the mask and without, and whether each row sums to 1."""
    return {
        "future_mass": max(future_mass(weights) for weights in masked),
        "unmasked_future_mass": Number.of([future_mass(weights) for weights in unmasked]),
        "row_error": max(float(np.abs(weights.sum(axis=-1) - 1).max()) for weights in masked),
    }


def numbers_of_models(models: list[Model], draws: list[np.random.Generator], settings: Causality) -> Numbers:
    """Return how whole models react to other tokens, before and after, and to a text in pieces."""
    texts = [draw.integers(0, VOCABULARY, settings.T) for draw in draws]
    runs = list(zip(models, texts, draws, strict=True))
    return {
        "leak": max(leak(model, text, draw) for model, text, draw in runs),
        "later_change": min(later_change(model, text) for model, text, _ in runs),
        "chunk_error": max(chunk_error(model, text, settings.chunk) for model, text, _ in runs),
    }


def numbers_of_article(draws: list[np.random.Generator]) -> Numbers:
    """Return what the article's class does with prompts, one for each generator."""
    found = [article_run(draw, draw.standard_normal((PROMPT, 1, HEADS * HEAD_SIZE))) for draw in draws]
    return {
        "article_future_mass": Number.of([one.future_mass for one in found]),
        "article_layout_error": Number.of([one.layout_error for one in found]),
        "article_output_std": Number.of([one.output_std for one in found]),
    }


def future_mass(weights: Floats) -> float:
    """Return the share of all weight ``(..., T, T)`` that lies on tokens behind the query's own."""
    return float(np.triu(weights, 1).sum() / weights.sum())


def leak(model: Model, text: NDArray[np.integer], random: np.random.Generator) -> float:
    """Return how far any logit up to a token moves when every token behind it is replaced."""
    kept = len(text) // 2
    other = text.copy()
    other[kept:] = (text[kept:] + random.integers(1, VOCABULARY, len(text) - kept)) % VOCABULARY
    return float(np.abs(model.logits(other)[:kept] - model.logits(text)[:kept]).max())


def later_change(model: Model, text: NDArray[np.integer]) -> float:
    """Return how far the last logits move when the first token is replaced: what is past must be seen."""
    other = text.copy()
    other[0] = (text[0] + 1) % VOCABULARY
    return float(np.abs(model.logits(other)[-1] - model.logits(text)[-1]).max())


def chunk_error(model: Model, text: NDArray[np.integer], chunk: int) -> float:
    """Return how far logits of a text put through a cache piece by piece lie from those of the whole."""
    cache = new_cache(model)
    pieces = [model.logits(text[start : start + chunk], cache) for start in range(0, len(text), chunk)]
    return float(np.abs(np.concatenate(pieces) - model.logits(text)).max())


@dataclass(frozen=True)
class ArticleRun:
    """What the article's class does with one text."""

    future_mass: float
    layout_error: float
    output_std: float


def article_run(random: np.random.Generator, tokens: Floats) -> ArticleRun:
    """Run the article's class on tokens in its own layout, ``(T, 1, E)``, and as it should be run.

    Its class attends from all queries to all keys it holds; that is a layer without causal order. What it
    should give is the same layer, one token after the other through a cache.
    """
    layer = CachedMultiHeadAttention(tokens.shape[-1], HEADS, rng=random)
    unmasked = layer.attention
    for weight in (unmasked.w_q, unmasked.w_k, unmasked.w_v, unmasked.w_o):
        weight *= ARTICLE_GAIN
    as_text = tokens.swapaxes(0, 1)  # 1 T E
    _, prompt_weights = unmasked(as_text)
    as_batch, _ = unmasked(tokens)  # T texts of one token
    right = np.concatenate([layer(as_text[:, t : t + 1])[0] for t in range(len(tokens))], axis=1)
    error = np.abs(as_batch[:, 0] - right[0]).max()
    return ArticleRun(future_mass(prompt_weights), float(error), float(right.std()))


def article_blind_row(T: int) -> float:
    """Return how much a token takes that may see nothing, where hidden scores are minus a billion."""
    return float(softmax(np.full(T, HIDDEN_SCORE, np.float32)).sum())


def own_blind_row(T: int) -> float:
    """Return the same where hidden means hidden."""
    x = np.ones((T, HEAD_SIZE), np.float32)
    return float(scaled_dot_product_attention(x, x, x, np.zeros((T, T), bool))[1][0].sum())


CAUSALITY = Experiment(
    id="b",
    name="causality",
    title=Words("The causal mask", "因果掩码"),
    claim=Words(
        "The causal mask makes sure that a token attends only to itself and to earlier tokens.",
        "因果掩码确保每个 token 只能关注它自己和之前的 token，不能偷看未来。",
    ),
    source="Vaswani et al. 2017, section 3.2.3; the article, sections 2.1 and 2.3",
    elsewhere=Words(
        (
            "How much of its attention a class without a mask spends on the future depends on its "
            "random weights: 44 to 54 % in our tries."
        ),
        ("没有掩码的类把多少注意力放在未来，取决于随机权重：我们试过的在 44 % 到 54 % 之间。"),
    ),
    quick=Causality(),
    full=Causality(T=499, seeds=11, chunk=31),
    measure=measure,
    shows=Words(
        "weight on later tokens {future_mass:.0%}, article's cached class {article_future_mass:.0%}",
        "落在未来 token 上的权重 {future_mass:.0%}，文章的缓存类 {article_future_mass:.0%}",
    ),
    article="0 %",
    parts=(
        Part(
            Words("no weight lies on a later token", "没有权重落在之后的 token 上"),
            at_most("future_mass", 0.0),
            Words(
                "{future_mass:.0%} of the weight; {unmasked_future_mass:.0%} without a mask",
                "占权重的 {future_mass:.0%}；没有掩码时为 {unmasked_future_mass:.0%}",
            ),
            article="0",
        ),
        Part(
            Words("each row of weights sums to 1", "每行权重之和为 1"),
            at_most("row_error", 1e-5),
            Words("off by at most {row_error:.1g}", "最大偏差 {row_error:.1g}"),
            article="1",
        ),
        Part(
            Words(
                "in a whole model, no logit changes when later tokens do",
                "在整个模型里，改动之后的 token 不会改变之前的 logits",
            ),
            at_most("leak", 1e-5),
            Words(
                "changes by {leak:.1g}; by {later_change:.1f} when an earlier token does",
                "变化 {leak:.1g}；改动之前的 token 时变化 {later_change:.1f}",
            ),
        ),
        Part(
            Words(
                "a prompt put through the cache in pieces gives what it gives as a whole",
                "提示词分块经过缓存，结果与一次算完相同",
            ),
            at_most("chunk_error", 1e-4),
            Words("logits differ by at most {chunk_error:.1g}", "logits 最多相差 {chunk_error:.1g}"),
        ),
        Part(
            Words("the article's class with a cache is causal too", "文章里带缓存的类也是因果的"),
            at_most("article_future_mass", 0.0),
            Words(
                "a prompt of 10 tokens puts {article_future_mass:.0%} on the future",
                "10 个 token 的提示词有 {article_future_mass:.0%} 的权重落在未来",
            ),
            needs=Words(
                "the article's class with a cache does not mask prompts",
                "文章里带缓存的类没有给提示词加掩码",
            ),
            role="aside",
        ),
        Part(
            Words(
                "the article's run without a cache computes what its run with one does",
                "文章“无缓存”的运行与“有缓存”的运行计算的是同一件事",
            ),
            at_most("article_layout_error", 1e-5),
            Words(
                "outputs of deviation {article_output_std:.2f} differ by up to {article_layout_error:.1f}",
                "标准差为 {article_output_std:.2f} 的输出最多相差 {article_layout_error:.1f}",
            ),
            needs=Words(
                "its timing loop lays tokens along the batch, so that none sees another",
                "它的计时循环把 token 沿 batch 轴排列，彼此看不见",
            ),
            role="aside",
        ),
        Part(
            Words(
                "a score of -1e9 hides everything from a row that may see nothing",
                "对不允许看到任何 token 的行，-1e9 的分数也能全部遮住",
            ),
            at_most("article_blind_row_mass", 0.0),
            Words(
                "such a row spreads {article_blind_row_mass:.0%} over hidden tokens; "
                "{own_blind_row_mass:.0%} in qkv",
                "这样的行仍把 {article_blind_row_mass:.0%} 分给被遮住的 token；"
                "qkv 为 {own_blind_row_mass:.0%}",
            ),
            needs=Words(
                "a score of -1e9 hides nothing where nothing may be seen",
                "在什么都不许看的行里，-1e9 什么也遮不住",
            ),
            role="aside",
        ),
    ),
    controls=(
        Control(
            at_least("unmasked_future_mass", 0.3),
            Words("without a mask the meter should move, and does not", "没有掩码时读数应当变化，却没有变化"),
        ),
        Control(
            at_least("later_change", 1e-3),
            Words("the model does not react to earlier tokens either", "模型对之前的 token 也没有反应"),
        ),
    ),
)
