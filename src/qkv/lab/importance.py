"""(e) Whether attention shows which tokens matter for what a model says next.

What matters is found by trying: each token of a text is replaced by another, several times, and the
divergence of what the model then says from what it said is that token's importance (occlusion). Attention of
the last query is read in three ways: in the last layer, as a mean over all layers, and rolled out, that is
multiplied through the layers with the stream that passes by them (Abnar and Zuidema 2020). All of them are
ranked against occlusion.

Near tokens are attended to and they matter: so distance alone is a rival, and correlations are given a second
time with distance held fixed. Random scores are the other control. Last, the weights of the last layer are
dealt to other tokens: if they were mere decoration, nothing would change (Jain and Wallace 2019).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, log_softmax, write_texts
from qkv.lab.rank_correlation import kendall, partial_spearman, spearman
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import Model
from qkv.models.watching import watch

Floats = NDArray[Any]
Occlude = Callable[[Model, Ids, Ids, int, np.random.Generator], Floats]
"""A model, a text, ids to replace tokens with, how often, random numbers; to each token's importance."""

WAYS = ("last", "mean", "rollout", "recency", "random")
"""Attention read in three ways, and two controls."""


@dataclass(frozen=True)
class Importance:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts, at least 2, of how many tokens.
    replacements : int
        How many other tokens stand in for each in turn.
    """

    texts: int = 6
    T: int = 48
    replacements: int = 2


def occlusion(model: Model, text: Ids, others: Ids, replacements: int, random: np.random.Generator) -> Floats:
    """Return how far what a model says after a text moves when each token is replaced, in nats.

    Parameters
    ----------
    model : Model
    text : (T,) integers
    others : (N,) integers
        Where replacements are drawn from: what is as common there is as likely.
    replacements : int
        Over which the divergence is a mean.
    random : numpy.random.Generator

    Returns
    -------
    (T - 2,) float64
        For all tokens but the one that begins the text and the last.
    """
    said = log_softmax(model.next_logits(text))
    importance = []
    for at in range(1, len(text) - 1):
        changed = np.tile(text, (replacements, 1))
        changed[:, at] = random.choice(others[others != text[at]], replacements)
        then = log_softmax(model.next_logits(changed))
        importance.append((np.exp(said) * (said - then)).sum(axis=-1).mean())
    return np.array(importance)


def measure(
    settings: Importance, instruments: Instruments, *, importance_of: Occlude = occlusion
) -> Measured:
    """Rank the tokens of each text by attention and by occlusion, and deal out attention anew."""
    model = instruments.text_model()
    texts = write_texts(model, settings.texts, settings.T, instruments.generator("texts"))
    others = texts[:, 1:].reshape(-1)
    found: dict[str, list[float]] = {}
    series: dict[str, Any] = {}
    for index, text in enumerate(texts):
        random = instruments.generator("importance", index)
        true = importance_of(model, text, others, settings.replacements, random)
        by_way = attention_scores(watch(model, text).weights, random)
        numbers = comparisons(by_way, true) | dealt_anew(model, text, random)
        for name, value in numbers.items():
            found.setdefault(name, []).append(value)
        if index == 0:
            series = {"importance": true.tolist()} | {name: by_way[name].tolist() for name in WAYS[:3]}
    numbers = {name: Number.of(values) for name, values in found.items()}
    beyond = [one - other for one, other in zip(found["last_tau"], found["recency_tau"], strict=True)]
    random_size = abs(numbers["random_tau"].value)
    return Measured({**numbers, "last_beyond_recency": Number.of(beyond), "random_size": random_size}, series)


def attention_scores(weights: Floats, random: np.random.Generator) -> dict[str, Floats]:
    """Return what each way of reading the weights ``(L, H, T, T)`` says of each token, controls among them.

    As in `occlusion`, the token that begins the text and the last are left out.
    """
    T = weights.shape[-1]
    by_layer = weights.mean(axis=1)
    last_query = {
        "last": by_layer[-1, -1],
        "mean": by_layer.mean(axis=0)[-1],
        "rollout": rollout(by_layer)[-1],
    }
    return {name: row[1:-1] for name, row in last_query.items()} | {
        "recency": np.arange(1, T - 1, dtype=float),
        "random": random.random(T - 2),
    }


def rollout(by_layer: Floats) -> Floats:
    """Return attention through all layers ``(T, T)``, half of each going past it in the residual stream.

    Examples
    --------
    Two layers that each look at the first token: a quarter of the second token goes past both.

    >>> rollout(np.array([[[1.0, 0.0], [1.0, 0.0]]] * 2)).tolist()
    [[1.0, 0.0], [0.75, 0.25]]
    """
    own = np.eye(by_layer.shape[-1])
    through = own
    for weights in by_layer:
        through = (weights + own) / 2 @ through
    return through


def comparisons(by_way: dict[str, Floats], true: Floats) -> dict[str, float]:
    """Return how each way ranks tokens against their importance: plainly, given distance, and at the top."""
    numbers: dict[str, float] = {"most_kl": float(true.max())}
    for name, scores in by_way.items():
        numbers[f"{name}_tau"] = kendall(scores, true)
        numbers[f"{name}_rho"] = spearman(scores, true)
        numbers[f"{name}_given_distance"] = partial_spearman(scores, true, by_way["recency"])
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
    source="Jain and Wallace 2019; Wiegreffe and Pinter 2019; Abnar and Zuidema 2020; the article",
    quick=Importance(),
    full=Importance(texts=31, T=128, replacements=8),
    measure=measure,
    shows=Words(
        "tau {last_tau:.2f}, recency {recency_tau:.2f}; given distance {last_given_distance:.2f}",
        "tau {last_tau:.2f}，仅距离 {recency_tau:.2f}；给定距离 {last_given_distance:.2f}",
    ),
    parts=(
        Part(
            Words(
                "the last layer's attention ranks tokens no better than their distance does",
                "最后一层注意力的排序不比距离更好",
            ),
            at_most("last_beyond_recency", 0.0),
            Words(
                "tau to occlusion {last_tau:.2f}, distance alone {recency_tau:.2f}, random {random_tau:.2f}",
                "与遮挡的 tau 为 {last_tau:.2f}，仅距离 {recency_tau:.2f}，随机 {random_tau:.2f}",
            ),
            needs=Words("distance is not the rival", "不以距离为对照"),
        ),
        # Less than a tenth of the variance of ranks is then explained.
        Part(
            Words(
                "at a given distance, the last layer's attention says little",
                "给定距离后，最后一层的注意力说明不了多少",
            ),
            at_most("last_given_distance", 0.3),
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
            at_most("rollout_given_distance", 0.3),
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
