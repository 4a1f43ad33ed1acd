"""(k) Dropping what is unimportant: tokens by a score, to a budget, and whole key heads.

Text is read a page at a time; behind each page every key head comes down to its budget of tokens. The caches
are real, and what they drop is gone. Which tokens stay is decided by what is published: the first and the
latest (StreamingLLM), by attention summed up (H2O), by that of the last query or queries (TOVA, SnapKV),
by the length of keys. None of these is worth anything unless it beats two controls: tokens dropped at random,
and the latest kept, whatever they are.

Text goes mostly by what stands nearby. So pairs of keys and values are read as well, dropped from, and asked
for: once by a question that comes after the drop, and once by one that stood there before it.

Key heads are dropped as well: some go altogether, some are cut short. How much each matters is measured on a
text apart; then the least important go together, and in their place the most important, and any.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.head_drops import drop_heads
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, Reading, as_much, loss, loss_numbers, read, write_texts
from qkv.lab.recalling import AS_WELL, able_recall_model, answers_right
from qkv.lab.result import Measured, Number
from qkv.lab.token_drops import BY_SCORE, CONTROLS, POLICIES, found_pairs, read_dropping
from qkv.lab.words import Words
from qkv.models import Model
from qkv.training.recall import draw_questions

SMALL = 0.05
"""Nats per token: a twentieth of the perplexity."""


@dataclass(frozen=True)
class Dropping:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts, at least 3, of how many tokens.
    budgets : sequence of int
        Tokens that stay per key head, whole pages, from small to large; the loss is counted in the
        second half of the text.
    budget : int
        The one of them that the claim is tried with.
    N, rows_each : int
        Pairs to look up, and how often each is asked for.
    recall_budgets : sequence of int
        Tokens that stay of the pairs; a page less than these are at most.
    recall_budget : int
        The one of them that the claim is tried with.
    share : float
        Of key heads that go; twice as many are cut short.
    """

    texts: int = 3
    T: int = 192
    budgets: Sequence[int] = (32, 64)
    budget: int = 64
    N: int = 32
    rows_each: int = 1
    recall_budgets: Sequence[int] = (16,)
    recall_budget: int = 16
    share: float = 0.25


def measure(
    settings: Dropping, instruments: Instruments, *, policies: Mapping[str, str] = POLICIES
) -> Measured:
    """Drop tokens of texts and of pairs under every policy and at random, then heads."""
    model = instruments.text_model()
    draw = instruments.generator("dropping")
    texts = write_texts(model, settings.texts, settings.T, draw)
    full = [read(model, text) for text in texts]
    text_numbers, text_series = on_text(settings, model, texts, full, policies, draw)
    recall_numbers, recall_series = on_pairs(settings, instruments, policies)
    heads = drop_heads(model, texts, full, settings.share, draw)
    return Measured({**text_numbers, **recall_numbers, **heads}, {**text_series, **recall_series})


def on_text(
    settings: Dropping,
    model: Model,
    texts: Ids,
    full: Sequence[Reading],
    policies: Mapping[str, str],
    draw: np.random.Generator,
) -> tuple[dict[str, Number | float], dict[str, list[Any]]]:
    """Return what each policy costs in the second half of texts, by budget; and what random dropping does."""
    numbers: dict[str, Number | float] = {"budget": settings.budget, "T": settings.T}
    series: dict[str, list[Any]] = {"budget": list(settings.budgets)}
    for budget, name in product(settings.budgets, ("random", *policies)):
        others = [read_dropping(model, text, budget, policies.get(name), draw) for text in texts]
        losses = [loss(*three, settings.T // 2) for three in zip(full, others, texts, strict=True)]
        found = loss_numbers(name, losses)
        series.setdefault(f"{name}_kl", []).append(found[f"{name}_kl"].value)
        if budget == settings.budget:
            numbers |= found
            numbers["kept_bytes"] = others[0].nbytes  # the same for every policy; the last is no control
    numbers["full_bytes"] = full[0].nbytes
    return numbers | text_ratios(Measured(numbers)), series


def text_ratios(measured: Measured) -> dict[str, float]:
    """Return the losses of the best and of the worst score as shares of the controls'."""
    by_score = [measured.value(f"{name}_kl") for name in BY_SCORE]
    random, latest = (measured.value(f"{name}_kl") for name in CONTROLS)
    return {
        "best_kl": min(by_score),
        "worst_kl": max(by_score),
        "worst_to_random": as_much(max(by_score), random),
        "best_to_latest": as_much(min(by_score), latest),
    }


def on_pairs(
    settings: Dropping, instruments: Instruments, policies: Mapping[str, str]
) -> tuple[dict[str, Number | float], dict[str, list[Any]]]:
    """Return the share of pairs found by policy, asked for behind the drop and before it.

    Leaves out what the model cannot do with the full cache either.
    """
    draw = instruments.generator("dropping recall")
    questions = draw_questions(draw, settings.N, settings.rows_each)
    numbers: dict[str, Number | float] = {"recall_budget": settings.recall_budget}
    series: dict[str, list[Any]] = {"recall_budget": list(settings.recall_budgets)}
    for when, sees_question in (("blind", False), ("aware", True)):
        model = able_recall_model(instruments, questions, sees_question=sees_question)
        if model is None:
            continue
        for budget, name in product(settings.recall_budgets, ("random", *policies)):
            found = found_pairs(model, questions, budget, policies.get(name), draw, sees_question)
            series.setdefault(f"{name}_{when}", []).append(found)
            if budget == settings.recall_budget:
                numbers[f"{name}_{when}"] = found
        full = float(answers_right(model, questions, sees_question=sees_question).mean())
        best = max(Measured(numbers).value(f"{name}_{when}") for name in BY_SCORE)
        numbers |= {f"full_{when}": full, f"best_{when}": best, f"best_{when}_kept": best / full}
    return numbers, series


DROPPING = Experiment(
    id="k",
    name="dropping",
    title=Words("Dropping unimportant keys and values", "丢弃不重要的键和值"),
    claim=Words(
        "The cache can be compressed by dropping what is unimportant: tokens of a low score, or whole heads.",
        "KV 缓存可以压缩：动态丢弃不重要的 token 或 K/V 头，减少内存占用。",
    ),
    source="Zhang et al. 2023 (H2O); Li et al. 2024 (SnapKV); Oren et al. 2024 (TOVA); the article, 2.5",
    elsewhere=Words(
        (
            "H2O and SnapKV report a fifth of the cache and less at hardly any loss. So it is on "
            "text, and where the score has seen the question; a question that comes later asks for "
            "what is gone. Plain sums of attention favour old keys, which is why ages are taken into "
            "account."
        ),
        (
            "H2O 与 SnapKV 报告只留五分之一甚至更少也几乎没有损失。在普通文本上、以及打分时已看到问题"
            "时确实如此；后来才提的问题，问的就是丢掉的东西。单纯累加注意力偏向旧的 key，所以要考虑年"
            "龄。"
        ),
    ),
    quick=Dropping(),
    full=Dropping(texts=7, T=384, budgets=(32, 64, 128), rows_each=2, recall_budgets=(8, 16, 32)),
    measure=measure,
    shows=Words(
        "{budget:.0f} of {T:.0f} tokens: best +{best_kl:.3f} nats, random +{random_kl:.3f}",
        "{T:.0f} 个 token 留 {budget:.0f} 个：最好 +{best_kl:.3f} nat，随机 +{random_kl:.3f}",
    ),
    parts=(
        Part(
            Words(
                "on text, a few tokens that matter do as well as all",
                "对文本，少数重要的 token 与全部一样好",
            ),
            at_most("best_kl", SMALL),
            Words(
                "{budget:.0f} of {T:.0f}: {best_kl:.3f} nats with the best score, {worst_kl:.3f} with the "
                "worst; {full_bytes:,.0f} → {kept_bytes:,.0f} bytes",
                "{T:.0f} 个留 {budget:.0f} 个：最好的评分 {best_kl:.3f} nat，最差 {worst_kl:.3f}；"
                "{full_bytes:,.0f} → {kept_bytes:,.0f} 字节",
            ),
            needs=Words("the budget is larger", "预算更大"),
        ),
        Part(
            Words("any of the scores beats dropping at random", "任何一种评分都优于随机丢弃"),
            at_most("worst_to_random", 1.0),
            Words(
                "random {random_kl:.3f}; H2O as published {h2o_kl:.3f}, with decay {h2o_decay_kl:.3f}, TOVA "
                "{tova_kl:.3f}, SnapKV {snapkv_kl:.3f}, key norm {knorm_kl:.3f}",
                "随机 {random_kl:.3f}；H2O 原版 {h2o_kl:.3f}，带衰减 {h2o_decay_kl:.3f}，TOVA "
                "{tova_kl:.3f}，SnapKV {snapkv_kl:.3f}，键范数 {knorm_kl:.3f}",
            ),
            needs=Words(
                "the score is chosen with care: some do worse than chance", "评分方法要选对：有的还不如随机"
            ),
        ),
        Part(
            Words("the best of them beats keeping the latest tokens", "其中最好的优于只保留最近的 token"),
            at_most("best_to_latest", 1.0),
            Words(
                "{best_kl:.3f} nats, the latest {latest_kl:.3f}, with four sinks {streaming_kl:.3f}",
                "{best_kl:.3f} nat，只留最近的 {latest_kl:.3f}，加四个开头 token {streaming_kl:.3f}",
            ),
            needs=Words(
                "more is asked for than the text nearby, for which the latest tokens are as good",
                "需要的不只是附近的文本（否则只留最近的 token 一样好）",
            ),
        ),
        Part(
            Words("what is asked for later is still there", "之后才问到的内容仍在"),
            at_least("best_blind_kept", AS_WELL),
            Words(
                "{recall_budget:.0f} tokens kept: {best_blind:.0%} of the pairs found at best, random "
                "{random_blind:.0%}, the latest {latest_blind:.0%}; all kept {full_blind:.0%}",
                "保留 {recall_budget:.0f} 个 token：最多找回 {best_blind:.0%} 的键值对，随机 "
                "{random_blind:.0%}，只留最近的 {latest_blind:.0%}；全部保留 {full_blind:.0%}",
            ),
            needs=Words(
                "the score has seen the question, or text is all that matters",
                "评分时已看到问题，或只在意文本",
            ),
        ),
        Part(
            Words("what is asked for already is still there", "已经问到的内容仍在"),
            at_least("best_aware_kept", AS_WELL),
            Words(
                "SnapKV {snapkv_aware:.0%}, TOVA {tova_aware:.0%}, H2O {h2o_aware:.0%}, "
                "random {random_aware:.0%}; all kept {full_aware:.0%}",
                "SnapKV {snapkv_aware:.0%}，TOVA {tova_aware:.0%}，H2O {h2o_aware:.0%}，"
                "随机 {random_aware:.0%}；全部保留 {full_aware:.0%}",
            ),
        ),
        Part(
            Words("the least important quarter of the key heads can go", "最不重要的四分之一的键头可以丢弃"),
            at_most("gone_least_kl", SMALL),
            Words(
                "{gone_count:.0f} of {heads:.0f} gone: {gone_least_kl:.3f} nats; any {gone_any_kl:.3f}, the "
                "most important {gone_most_kl:.3f}",
                "{heads:.0f} 个中丢 {gone_count:.0f} 个：{gone_least_kl:.3f} nat；任意 {gone_any_kl:.3f}，"
                "最重要的 {gone_most_kl:.3f}",
            ),
            needs=Words("fewer heads go", "丢弃更少的头"),
        ),
        Part(
            Words(
                "half of the key heads need no more than the latest 32 tokens",
                "一半的键头只需最近 32 个 token",
            ),
            at_most("short_least_kl", SMALL),
            Words(
                "{full_bytes:,.0f} → {short_bytes:,.0f} bytes: {short_least_kl:.3f} nats; any half "
                "{short_any_kl:.3f}, the other half {short_most_kl:.3f}",
                "{full_bytes:,.0f} → {short_bytes:,.0f} 字节：{short_least_kl:.3f} nat；任意一半 "
                "{short_any_kl:.3f}，另一半 {short_most_kl:.3f}",
            ),
            needs=Words("fewer heads are cut short", "缩短更少的头"),
        ),
        Part(
            Words("it matters which heads go", "丢哪些头很重要"),
            at_most("gone_least_to_most", 0.5),
            Words(
                "the least important cost {gone_least_to_most:.0%} of what the most important do",
                "最不重要的头的损失是最重要的头的 {gone_least_to_most:.0%}",
            ),
        ),
    ),
    controls=(
        Control(
            at_least("random_kl", 0.01),
            Words(
                "dropping tokens at random costs nothing either: the texts need no memory",
                "随机丢弃也没有损失：这些文本不需要记忆",
            ),
        ),
    ),
)
