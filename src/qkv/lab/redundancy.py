"""(n) Watch your tokens, and cut what is said twice: that costs nothing, they say.

First the watching. What a prompt will take is told before it is read: its tokens by the model's tokenizer,
its bytes by the planner. Then a real cache reads it, and both must be right, the bytes to the last one. The
rule of thumb that a token is four characters is tried on the same prompts.

Then the cutting. Pairs of keys and values are read two, three and four times over, in any order, and one of
them is asked for; once more with every repeat taken out, and once with as many pairs taken out at random,
which is the control. The same is done to text: a passage stands there several times, and then the text goes
on. What counts is whether the answer stays as it was with the repeats, and how far what the model says has
moved (KL). Last come pairs that are nearly repeats, the same key with another value: one of two must go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, log_softmax, read, write_texts
from qkv.lab.planned import planned_nbytes
from qkv.lab.recalling import AS_WELL, able_recall_model
from qkv.lab.repeats import (
    Pieces,
    Trim,
    also_changed,
    any_of_them,
    asking,
    first_of_each,
    first_with_key,
    last_with_key,
    pairs_of,
    said_again,
    score_cells,
)
from qkv.lab.result import Measured, Number
from qkv.lab.told import Planned, told
from qkv.lab.words import Words
from qkv.models import Model
from qkv.training.recall import FIRST_VALUE, NUM_KEYS, Questions, draw_questions

Numbers = dict[str, Number | float]
Series = dict[str, list[Any]]
LogProbs = NDArray[np.float64]

HARDLY = 0.01
"""Nats per token: about one hundredth of the perplexity."""
NEAR = 0.1
"""How far off a count may be that is called right."""


@dataclass(frozen=True)
class Redundancy:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts, at least 2, of how many tokens.
    passage : int
        Tokens of each text, behind the first, that are said again; the rest goes on from them.
    N, rows_each : int
        Pairs to look up, and how often each is asked for.
    times : sequence of int
        How often everything is said, from 2 on.
    """

    texts: int = 3
    T: int = 145
    passage: int = 96
    N: int = 8
    rows_each: int = 16
    times: Sequence[int] = (2, 3, 4)


def measure(
    settings: Redundancy,
    instruments: Instruments,
    *,
    trim: Trim = first_of_each,
    planned: Planned = planned_nbytes,
) -> Measured:
    """Tell what prompts take, then take repeats out of text and of pairs."""
    model, draw = instruments.text_model(), instruments.generator("redundancy")
    texts = write_texts(model, settings.texts, settings.T, draw)
    text_numbers, text_series = on_text(settings, model, texts, trim, draw)
    pair_numbers, pair_series = on_pairs(settings, instruments, trim)
    random_kls = [one["random_kl"] for one in (text_series, pair_series) if one]
    numbers = told(model, texts, planned) | text_numbers | pair_numbers
    numbers["random_kl"] = min(min(kls) for kls in random_kls)
    series = {f"text_{name}": values for name, values in text_series.items()} | pair_series
    return Measured(numbers, {"times": list(settings.times), **series})


def on_text(
    settings: Redundancy, model: Model, texts: Ids, trim: Trim, draw: np.random.Generator
) -> tuple[Numbers, Series]:
    """Say a passage of each text several times, take out the repeats or anything, and see how it goes on."""
    series: Series = {"exact_kl": [], "random_kl": []}
    end = 1 + settings.passage
    for times in settings.times:
        exact, at_random = [], []
        for text in texts:
            begin, passage, rest = text[:1], text[1:end], text[end:]
            pieces = said_again(passage[None], times, draw)
            tokens = any_of_them(pieces.reshape(-1, 1), len(passage), draw)
            full, *others = (
                read(model, np.concatenate([begin, one.ravel(), rest])).log_probs[-len(rest) :]
                for one in (pieces, trim(pieces), tokens)
            )
            exact.append(divergence(full, others[0]))
            at_random.append(divergence(full, others[1]))
        series["exact_kl"].append(float(np.median(exact)))
        series["random_kl"].append(float(np.median(at_random)))
    numbers: Numbers = {"text_kl": max(series["exact_kl"]), "text_random_kl": min(series["random_kl"])}
    return numbers | {"passage": settings.passage}, series


def on_pairs(settings: Redundancy, instruments: Instruments, trim: Trim) -> tuple[Numbers, Series]:
    """Say pairs several times, take out the repeats or any, and ask; nothing where no model can answer."""
    draw = instruments.generator("redundancy pairs")
    questions = draw_questions(draw, settings.N, settings.rows_each)
    model = able_recall_model(instruments, questions)
    if model is None:
        return {}, {}
    columns: Series = {}
    for times in settings.times:
        repeated = [said_again(pairs, times, draw) for pairs in pairs_of(questions)]
        found = trimmed(model, questions, repeated, trim, draw)
        for name, value in found.items():
            columns.setdefault(name, []).append(value)
    return pair_numbers(columns) | near_numbers(model, questions, draw), columns


def trimmed(
    model: Model, questions: Questions, repeated: list[Pieces], trim: Trim, draw: np.random.Generator
) -> dict[str, float]:
    """Compare answers with the repeats, without them, and without as many pairs of any kind."""
    exact = [trim(pairs) for pairs in repeated]
    at_random = [any_of_them(pairs, len(kept), draw) for pairs, kept in zip(repeated, exact, strict=True)]
    rows = [asking(questions, pairs) for pairs in (repeated, exact, at_random)]
    full, of_exact, of_random = (answers(model, one) for one in rows)
    long, short = rows[0].shape[1], rows[1].shape[1]
    return {
        "tokens": long,
        "tokens_saved": 1 - short / long,
        "cells_saved": 1 - score_cells(short) / score_cells(long),
        "accuracy": right(full, questions),
        "exact_accuracy": right(of_exact, questions),
        "random_accuracy": right(of_random, questions),
        "exact_agreement": agreement(full, of_exact),
        "random_agreement": agreement(full, of_random),
        "exact_kl": divergence(full, of_exact),
        "random_kl": divergence(full, of_random),
    }


def pair_numbers(columns: Series) -> Numbers:
    """Return what was saved where all is said twice and most often, and the worst of what it cost."""
    numbers: Numbers = {}
    for name in ("tokens_saved", "cells_saved"):
        numbers |= {f"{name}_twice": columns[name][0], f"{name}_most": columns[name][-1]}
    for name in ("accuracy", "exact_accuracy", "exact_agreement"):
        numbers[name] = min(columns[name])
    for name in ("random_accuracy", "random_agreement"):
        numbers[name] = max(columns[name])
    return numbers | {"pair_kl": max(columns["exact_kl"])}


def near_numbers(model: Model, questions: Questions, draw: np.random.Generator) -> Numbers:
    """Return how many answers stay if of two pairs with one key only the first is left, or the last."""
    both = also_changed(questions, draw)
    full = answers(model, asking(questions, both))
    shares = {}
    for name, keep in (("first", first_with_key), ("last", last_with_key)):
        shares[f"near_{name}"] = agreement(full, answers(model, asking(questions, list(map(keep, both)))))
    return shares | {"near_agreement": min(shares.values())}


def answers(model: Model, rows: Ids) -> LogProbs:
    """Return the log-probability of each value as the answer: ``(B, 64)``. Nothing else is one."""
    return log_softmax(model.next_logits(rows)[:, FIRST_VALUE : FIRST_VALUE + NUM_KEYS])


def right(log_probs: LogProbs, questions: Questions) -> float:
    """Return the share of right answers."""
    return float((log_probs.argmax(axis=-1) + FIRST_VALUE == questions.answers).mean())


def agreement(one: LogProbs, other: LogProbs) -> float:
    """Return the share of rows with the same answer."""
    return float((one.argmax(axis=-1) == other.argmax(axis=-1)).mean())


def divergence(p: LogProbs, q: LogProbs) -> float:
    """Return ``KL(p || q)`` in nats, on average over the rows.

    Examples
    --------
    >>> round(divergence(np.log([[0.5, 0.5]]), np.log([[0.75, 0.25]])), 4)
    0.1438
    """
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


REDUNDANCY = Experiment(
    id="n",
    name="redundancy",
    title=Words("Tokens said twice", "重复的 token"),
    claim=Words(
        "Watch your tokens: what is redundant in a prompt can be trimmed, and that costs nothing.",
        "监控 token 使用量，删减 prompt 中的冗余，而且没有任何损失。",
    ),
    source="Jiang et al. 2023 (LLMLingua); the article, section 3.2 and summary",
    elsewhere=Words(
        (
            "LLMLingua trims up to 20 times by a second model's judgement of what matters. Here only "
            "what is said again word for word is trimmed, and what nearly is."
        ),
        ("LLMLingua 用第二个模型判断什么重要，最多能删 20 倍。这里只删一字不差的重复，以及几乎相同的重复。"),
    ),
    quick=Redundancy(),
    full=Redundancy(texts=15, rows_each=64),
    measure=measure,
    shows=Words(
        "said twice: -{tokens_saved_twice:.0%} tokens, {exact_agreement:.0%} of answers stay",
        "重复一遍：token -{tokens_saved_twice:.0%}，{exact_agreement:.0%} 的回答不变",
    ),
    parts=(
        Part(
            Words(
                "a token is four characters, whatever the tokenizer",
                "无论用什么分词器，一个 token 都是四个字符",
            ),
            at_most("rule_off", NEAR),
            Words(
                "four characters a token would make {rule:.0%} of the {prompt_tokens:,.0f} tokens there are",
                "按四个字符估算，只有实际 {prompt_tokens:,.0f} 个 token 的 {rule:.0%}",
            ),
            needs=Words(
                "tokens must be counted with the model's own tokenizer", "token 数要用模型自己的分词器计算"
            ),
            role="aside",
        ),
        Part(
            Words(
                "what a prompt's cache takes is known before it is read, to the byte",
                "prompt 的缓存占用在读入之前就能精确到字节地知道",
            ),
            at_most("bytes_off", 0.0),
            Words(
                "{prompts:.0f} prompts: {told_bytes:,.0f} bytes told, {prompt_bytes:,.0f} taken",
                "{prompts:.0f} 个 prompt：预计 {told_bytes:,.0f} 字节，实际 {prompt_bytes:,.0f} 字节",
            ),
        ),
        Part(
            Words(
                "of a prompt that says all twice, half of attention's work can go",
                "如果 prompt 把一切都说了两遍，注意力的一半计算可以省去",
            ),
            at_least("cells_saved_twice", 0.5),
            Words(
                "tokens -{tokens_saved_twice:.0%}, scores -{cells_saved_twice:.0%}; at most "
                "-{tokens_saved_most:.0%} and -{cells_saved_most:.0%}",
                "token -{tokens_saved_twice:.0%}，分数 -{cells_saved_twice:.0%}；最多 "
                "-{tokens_saved_most:.0%} 与 -{cells_saved_most:.0%}",
            ),
        ),
        Part(
            Words("without exact repeats the answers stay the same", "去掉完全相同的重复后，回答不变"),
            at_least("exact_agreement", AS_WELL),
            Words(
                "{exact_agreement:.1%} the same, {exact_accuracy:.1%} right, KL {pair_kl:.1g}; "
                "as many pairs at random: {random_agreement:.1%} the same",
                "{exact_agreement:.1%} 相同，{exact_accuracy:.1%} 正确，KL {pair_kl:.1g}；"
                "随机删去同样多的键值对：{random_agreement:.1%} 相同",
            ),
        ),
        Part(
            Words("without its repeats a text goes on as it would", "去掉重复后，文本照样往下写"),
            at_most("text_kl", HARDLY),
            Words(
                "KL {text_kl:.4f} nats a token; as many tokens at random {text_random_kl:.3f}",
                "每个 token 的 KL {text_kl:.4f} nat；随机删去同样多的 token {text_random_kl:.3f}",
            ),
            needs=Words("what is said twice is not meant to weigh more", "重复不是为了加重语气"),
        ),
        Part(
            Words("near repeats can go as well, whichever of them", "近似的重复也可以删，删哪一个都行"),
            at_least("near_agreement", AS_WELL),
            Words(
                "same key, other value: {near_first:.0%} of answers stay if the first is kept, "
                "{near_last:.0%} if the last is",
                "键相同、值不同：保留第一个时 {near_first:.0%} 的回答不变，保留最后一个时 {near_last:.0%}",
            ),
            needs=Words(
                "repeats are exact: of two that differ, one is the answer",
                "重复完全一致：若有差异，其中一个才是答案",
            ),
        ),
    ),
    controls=(
        Control(
            at_least("random_kl", HARDLY),
            Words(
                "trimmed at random they say the same: these prompts need none of it",
                "随机删减也没有影响：这些 prompt 什么都不需要",
            ),
        ),
    ),
)
