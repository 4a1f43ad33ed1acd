"""(e) Whether attention shows which tokens matter for what a model says next.

What matters is found by trying: each token of a text is replaced by another, several times, and the
divergence of what the model then says from what it said is that token's importance (occlusion). Attention of
the last query is read in three ways: in the last layer, as a mean over all layers, and rolled out, that is
multiplied through the layers with the stream that passes by them (Abnar and Zuidema 2020). All of them are
ranked against occlusion, and so is gradient x input, which asks for derivatives and not for attention.

Near tokens are attended to and they matter: so distance alone is a rival, and correlations are given a second
time with distance held fixed. Random scores are the other control. Then the weights of the last layer are
dealt to other tokens: if they were mere decoration, nothing would change (Jain and Wallace 2019).

Last, a task where it is known what matters: a row of pairs, one of which is asked for. There each way is only
asked what it puts first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.lab.attribution import Floats, Occlude, Watch, learnable, occlusion, scores_of
from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, log_softmax, write_texts
from qkv.lab.pointing import pointing_numbers
from qkv.lab.rank_correlation import kendall, partial_spearman, spearman
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import Model
from qkv.models.watching import watch

ATTENTION = ("last", "mean", "rollout")
"""The ways of reading it."""

MORE = 0.1
"""Of a rank correlation: what one way must say beyond another to be clearly better. Chance moves it less."""
LITTLE = 0.5
"""A rank correlation up to which less than a quarter of the variance of ranks is explained."""
HALF = 0.5
"""Of rows: a way whose first place is right in fewer does not show what matters."""


@dataclass(frozen=True)
class Importance:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts, at least 2, of how many tokens.
    replacements : int
        How many other tokens stand in for each in turn.
    N, rows_each : int
        Pairs in a row of which one is asked for, and how often each place is.
    """

    texts: int = 16
    T: int = 48
    replacements: int = 2
    N: int = 16
    rows_each: int = 2


def measure(
    settings: Importance,
    instruments: Instruments,
    *,
    importance_of: Occlude = occlusion,
    watch: Watch = watch,
) -> Measured:
    """Rank the tokens of texts by attention and by occlusion, deal out attention anew, then ask for pairs."""
    model = instruments.text_model()
    texts = write_texts(model, settings.texts, settings.T, instruments.generator("texts"))
    others, way_back = texts[:, 1:].reshape(-1), learnable(model)
    found: dict[str, list[float]] = {}
    series: dict[str, Any] = {}
    for index, text in enumerate(texts):
        random = instruments.generator("importance", index)
        true = importance_of(model, text, others, settings.replacements, random)
        by_way = scores_of(model, text, watch(model, text).weights, way_back, random)
        for name, value in (comparisons(by_way, true) | dealt_anew(model, text, random)).items():
            found.setdefault(name, []).append(value)
        if index == 0:
            drawn = by_way.keys() - {"recency", "random"}
            series = {"importance": true.tolist()} | {name: by_way[name].tolist() for name in sorted(drawn)}
    asked = settings.N, settings.rows_each, settings.replacements
    recall = pointing_numbers(instruments, *asked, importance_of, watch)
    return Measured(text_numbers(found) | recall, series)


def text_numbers(found: Mapping[str, list[float]]) -> dict[str, Number | float]:
    """Return the medians over texts, the share of texts where first places agree, and who tells more."""
    numbers: dict[str, Number | float] = {
        name: float(np.mean(values)) if name.endswith("_first") else Number.of(values)
        for name, values in found.items()
    }
    numbers["last_beyond_recency"] = differences(found["last_tau"], found["recency_tau"])
    numbers["random_size"] = abs(float(np.median(found["random_tau"])))
    if "gradient_tau" in found:
        by_way = [found[f"{name}_given_distance"] for name in ATTENTION]
        best = max(by_way, key=np.median)
        numbers["attention_given_distance"] = Number.of(best)
        numbers["gradient_beyond_attention"] = differences(found["gradient_given_distance"], best)
    return numbers


def differences(ones: Sequence[float], others: Sequence[float]) -> Number:
    """Return how much more one list has than another, text by text."""
    return Number.of([one - other for one, other in zip(ones, others, strict=True)])


def comparisons(by_way: dict[str, Floats], true: Floats) -> dict[str, float]:
    """Return how each way ranks tokens against their importance: plainly, given distance, and at the top."""
    numbers: dict[str, float] = {"most_kl": float(true.max())}
    for name, scores in by_way.items():
        numbers[f"{name}_tau"] = kendall(scores, true)
        numbers[f"{name}_rho"] = spearman(scores, true)
        numbers[f"{name}_given_distance"] = partial_spearman(scores, true, by_way["recency"])
        numbers[f"{name}_first"] = float(scores.argmax() == true.argmax())
    return numbers


def dealt_anew(model: Model, text: Ids, random: np.random.Generator) -> dict[str, float]:
    """Return how far what is said moves when the last layer's attention is shuffled, or made even."""
    order = random.permutation(len(text))
    whole = probabilities(watch(model, text).logits)
    last = model.cache_shape.num_layers - 1

    def with_row(deal: Callable[[Floats], Floats]) -> Callable[[int, Floats], Floats]:
        def change(layer: int, weights: Floats) -> Floats:
            if layer == last:
                weights[..., -1, :] = deal(weights[..., -1, :])
            return weights

        return change

    deals = {"shuffled": lambda row: row[..., order], "even": lambda row: np.full_like(row, 1 / len(text))}
    return {
        f"{name}_tvd": total_variation(whole, probabilities(watch(model, text, with_row(deal)).logits))
        for name, deal in deals.items()
    }


def probabilities(logits: Floats) -> Floats:
    """Return the probabilities ``(V,)`` of what comes after a text."""
    return np.exp(log_softmax(logits[-1]))


def total_variation(p: Floats, q: Floats) -> float:
    """Return the share of probability that lies elsewhere, from 0 to 1."""
    return float(np.abs(p - q).sum()) / 2


IMPORTANCE = Experiment(
    id="e",
    name="importance",
    title=Words("Attention and importance", "注意力与重要性"),
    claim=Words(
        "Attention weights do not show which tokens are important.",
        "注意力权重不等于重要性。",
    ),
    source=(
        "Jain and Wallace 2019; Wiegreffe and Pinter 2019; Abnar and Zuidema 2020; Simonyan et al. 2014; "
        "Shrikumar et al. 2016; the article, section 3.1"
    ),
    elsewhere=Words(
        (
            "Jain and Wallace find weak rank correlations, Serrano and Smith weights that predict "
            "noisily; Wiegreffe and Pinter object that it depends on the question. It does: the "
            "number changes with the layers, with whether distance is taken out, and most with the task. "
            "Where the answer is looked up, attention is the look-up."
        ),
        (
            "Jain 与 Wallace 得到很弱的秩相关，Serrano 与 Smith 认为权重只是有噪声的预测；Wiegreffe "
            "与 Pinter 则说要看问的是什么。确实如此：看哪些层、扣不扣除距离，结果都不同，任务的影响最"
            "大。答案要靠查找时，注意力就是查找本身。"
        ),
    ),
    quick=Importance(),
    full=Importance(texts=20, T=96, replacements=3, N=32),
    measure=measure,
    shows=Words(
        "on text tau {last_tau:.2f}, distance {recency_tau:.2f}; pair asked for {recall_last:.0%}",
        "文本上 tau {last_tau:.2f}，仅距离 {recency_tau:.2f}；被问的键值对 {recall_last:.0%}",
    ),
    parts=(
        Part(
            Words(
                "the last layer's attention ranks tokens not clearly better than their distance does",
                "最后一层注意力的排序并不明显优于距离",
            ),
            at_most("last_beyond_recency", MORE),
            Words(
                "tau to occlusion {last_tau:.2f}, distance alone {recency_tau:.2f}, random {random_tau:.2f}; "
                "the same token first in {last_first:.0%} of texts, the nearest in {recency_first:.0%}",
                "与遮挡的 tau 为 {last_tau:.2f}，仅距离 {recency_tau:.2f}，随机 {random_tau:.2f}；"
                "{last_first:.0%} 的文本中首位相同，最近的 token 为 {recency_first:.0%}",
            ),
            needs=Words("distance is not the rival", "不以距离为对照"),
        ),
        Part(
            Words(
                "at a given distance, the last layer's attention says little",
                "给定距离后，最后一层的注意力说明不了多少",
            ),
            at_most("last_given_distance", LITTLE),
            Words(
                "rank correlation {last_given_distance:.2f}, {last_rho:.2f} without that; random "
                "{random_given_distance:.2f}",
                "秩相关 {last_given_distance:.2f}，不给定距离时 {last_rho:.2f}；"
                "随机 {random_given_distance:.2f}",
            ),
            needs=Words("distance is not held fixed", "不固定距离"),
        ),
        Part(
            Words(
                "at a given distance, attention through all layers says little either",
                "给定距离后，贯穿各层的注意力（rollout）也说明不了多少",
            ),
            at_most("rollout_given_distance", LITTLE),
            Words(
                "rolled out {rollout_given_distance:.2f}, mean of layers {mean_given_distance:.2f}; random "
                "{random_given_distance:.2f}",
                "rollout {rollout_given_distance:.2f}，各层平均 {mean_given_distance:.2f}；"
                "随机 {random_given_distance:.2f}",
            ),
            needs=Words("attention is not followed through all layers", "不追踪贯穿各层的注意力"),
        ),
        Part(
            Words(
                "another cheap reading, gradient x input, says clearly more",
                "另一种廉价的读法，梯度 × 输入，明显更能说明",
            ),
            at_least("gradient_beyond_attention", MORE),
            Words(
                "given distance {gradient_given_distance:.2f}, attention at its best "
                "{attention_given_distance:.2f}; plainly tau {gradient_tau:.2f}",
                "给定距离 {gradient_given_distance:.2f}，注意力最好的读法 {attention_given_distance:.2f}；"
                "不给定距离时 tau {gradient_tau:.2f}",
            ),
            needs=Words(
                "gradient x input says no more than attention does", "梯度 × 输入并不比注意力更能说明"
            ),
            role="aside",
        ),
        Part(
            Words(
                "shuffling the last layer's weights hardly changes what is said",
                "打乱最后一层的权重几乎不改变输出",
            ),
            at_most("shuffled_tvd", 0.1),
            Words(
                "{shuffled_tvd:.0%} of the probability moves; even weights {even_tvd:.0%}",
                "{shuffled_tvd:.0%} 的概率发生移动；均匀权重 {even_tvd:.0%}",
            ),
            needs=Words("it is not taken to mean that weights do nothing", "不理解为权重毫无作用"),
        ),
        Part(
            Words(
                "where one pair is asked for, the last layer's attention does not put it first",
                "只问一个键值对时，最后一层的注意力也不把它排在首位",
            ),
            at_most("recall_last", HALF),
            Words(
                "of {recall_N:.0f} pairs the one asked for in {recall_last:.0%} of rows, its value in "
                "{recall_last_value:.0%}; best head {recall_head:.0%}, rolled out {recall_rollout:.0%}, "
                "gradient x input {recall_gradient:.0%}, occlusion {recall_occlusion:.0%}; nearest "
                "{recall_recency:.0%}, random {recall_random:.0%}",
                "{recall_N:.0f} 对中，{recall_last:.0%} 的行把被问的一对排在首位，{recall_last_value:.0%} "
                "正是它的值；最好的头 {recall_head:.0%}，rollout {recall_rollout:.0%}，梯度 × 输入 "
                "{recall_gradient:.0%}，遮挡 {recall_occlusion:.0%}；最近的 {recall_recency:.0%}，"
                "随机 {recall_random:.0%}",
            ),
            needs=Words(
                "nothing is looked up: of the pair that is asked for it tells in {recall_last:.0%} of rows",
                "不是查找任务：被问的键值对，它在 {recall_last:.0%} 的行中指得出",
            ),
        ),
    ),
    controls=(
        Control(
            at_most("random_size", 0.25),
            Words("random scores rank tokens as well: too few texts", "随机分数也能排序：文本太少"),
        ),
        Control(
            at_least("most_kl", 1e-4),
            Words("replacing tokens changes nothing that is said", "替换 token 不改变任何输出"),
        ),
    ),
)
