"""(a) Why scores are divided by sqrt(d_k), and which of the reasons given for it are true.

A dot product of d_k independent numbers of mean 0 and variance 1 has variance d_k. Scores that lie so far
apart make softmax put nearly all weight on one key. That much is arithmetic, and measured here on random
queries and keys. What is said to follow, gradients that vanish and training that fails, is measured apart:
the derivative of softmax as a whole (its Jacobian, by its norm) and entry by entry, for few and many keys,
and how many steps a small lesson takes. The control is always the same draw with the scale in place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.lookup import Lesson, steps_to_learn
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.ops import softmax

Floats = NDArray[np.float64]
Scale = Callable[[int], float]
"""The factor of the scores for a d_k."""

DEAD = 1e-4
"""A smaller gradient of a score counts as none."""
COLLAPSED = 0.5
"""A derivative of softmax this much smaller than with the scale counts as vanishing."""
SATURATED = 0.99

SMALL_STD = 0.02
"""Of GPT-2's weights at the start."""
LEARNED = 0.5
"""Nats of loss."""


@dataclass(frozen=True)
class Scaling:
    """Settings.

    Parameters
    ----------
    D : int
        The d_k that the claim is about.
    sizes : sequence of int
        Others to try, from small to large.
    S, few : int
        Keys of a query: many, and few.
    rows : int
        Queries of each kind.
    seeds : int
        How often the lesson is taught, at least 2.
    most_steps : int
        After so many steps the lesson counts as not learned.
    """

    D: int = 64
    sizes: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024)
    S: int = 128
    few: int = 4
    rows: int = 500
    seeds: int = 3
    most_steps: int = 150


def inverse_root(D: int) -> float:
    """Return the scale of Vaswani et al.: 1 / sqrt(d_k)."""
    return D**-0.5


def measure(settings: Scaling, instruments: Instruments, *, scale: Scale = inverse_root) -> Measured:
    """Measure scores, weights and derivatives with and without the scale, then teach the lesson with both."""
    raw = {D: scores(settings, instruments, D, settings.S) for D in settings.sizes}
    few = scores(settings, instruments, settings.D, settings.few)
    of_claim, scaled = raw[settings.D], raw[settings.D] * scale(settings.D)
    ratios = {D: derivative_ratio(one, one * scale(D)) for D, one in raw.items()}
    collapsed = [D for D, ratio in ratios.items() if ratio <= COLLAPSED]
    upstream = instruments.generator("scaling", "upstream").standard_normal(of_claim.shape)
    p, p_scaled = softmax(of_claim), softmax(scaled)
    numbers: dict[str, Number | float] = {
        "D": settings.D,
        "raw_variance": of_claim.var(),
        "scaled_variance": scaled.var(),
        "variance_error": max(abs(one.var() / D - 1) for D, one in raw.items()),
        "scaled_variance_error": max(abs(one.var() * scale(D) ** 2 - 1) for D, one in raw.items()),
        "raw_top": p.max(axis=-1).mean(),
        "scaled_top": p_scaled.max(axis=-1).mean(),
        "raw_saturated": (p.max(axis=-1) > SATURATED).mean(),
        "scaled_saturated": (p_scaled.max(axis=-1) > SATURATED).mean(),
        "raw_dead": dead_share(p, upstream),
        "scaled_dead": dead_share(p_scaled, upstream),
        "few_ratio": derivative_ratio(few, few * scale(settings.D)),
        "many_ratio": ratios[settings.D],
    }
    if collapsed:
        numbers["collapse_D"] = min(collapsed)
    variances = {"D": list(raw), "raw": [float(one.var()) for one in raw.values()]}
    tops = {"raw_top": [float(softmax(one).max(axis=-1).mean()) for one in raw.values()]}
    tops["scaled_top"] = [float(softmax(one * scale(D)).max(axis=-1).mean()) for D, one in raw.items()]
    series = variances | tops | {"derivative_ratio": list(ratios.values())}
    return Measured(numbers | lessons(settings, instruments, scale), series)


def scores(settings: Scaling, instruments: Instruments, D: int, S: int) -> Floats:
    """Return the dot products of independent queries with S keys each: ``(rows, S)``."""
    draw = instruments.generator("scaling", D, S)
    return np.stack([draw.standard_normal((S, D)) @ draw.standard_normal(D) for _ in range(settings.rows)])


def derivative_norm(p: Floats) -> Floats:
    """Return the norm of softmax's derivative, diag(p) - p p^T, for each row of weights.

    Its square is ``sum p^2 - 2 sum p^3 + (sum p^2)^2``.
    """
    squares = (p**2).sum(axis=-1)
    return np.sqrt(np.maximum(squares - 2 * (p**3).sum(axis=-1) + squares**2, 0))


def derivative_ratio(raw: Floats, scaled: Floats) -> float:
    """Return the median norm of softmax's derivative without the scale, by that with it."""
    return float(np.median(derivative_norm(softmax(raw))) / np.median(derivative_norm(softmax(scaled))))


def dead_share(p: Floats, upstream: Floats) -> float:
    """Return the share of scores whose gradient is as good as none, for random gradients of the weights."""
    d_scores = p * (upstream - (p * upstream).sum(axis=-1, keepdims=True))
    return float((np.abs(d_scores) < DEAD).mean())


def lessons(settings: Scaling, instruments: Instruments, scale: Scale) -> dict[str, Number | float]:
    """Return how many steps the lesson takes with and without the scale, from two ways to begin."""
    lesson = Lesson()
    starts = {"unit": lesson.E**-0.5, "small": SMALL_STD}
    factors = {"raw": 1.0, "scaled": scale(lesson.D)}
    numbers: dict[str, Number | float] = {}
    for start, std in starts.items():
        steps = {
            name: [
                steps_to_learn(
                    lesson,
                    instruments.generator("scaling lesson", seed),
                    std=std,
                    scale=factor,
                    below=LEARNED,
                    most=settings.most_steps,
                )
                for seed in range(settings.seeds)
            ]
            for name, factor in factors.items()
        }
        numbers |= {f"{start}_{name}_steps": Number.of(counts) for name, counts in steps.items()}
        ratios = [raw / scaled for raw, scaled in zip(steps["raw"], steps["scaled"], strict=True)]
        numbers[f"{start}_steps_ratio"] = Number.of(ratios)
    return numbers


SCALING = Experiment(
    id="a",
    name="scaling",
    title=Words("Dividing by √d_k", "除以 √d_k"),
    claim=Words(
        "Without dividing by √d_k, scores have variance d_k, softmax saturates, its gradient becomes tiny, "
        "and training becomes extremely hard.",
        "不除以 √d_k，分数的方差就是 d_k，softmax 进入梯度极小的饱和区，训练变得极其困难。",
    ),
    source="Vaswani et al. 2017, section 3.2.1, footnote 4; the article, section 1.2",
    quick=Scaling(),
    full=Scaling(sizes=(8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), rows=2000, seeds=11, most_steps=300),
    measure=measure,
    shows=Words(
        "variance {raw_variance:.0f} → {scaled_variance:.2f}, top weight {raw_top:.2f} → {scaled_top:.2f}",
        "方差 {raw_variance:.0f} → {scaled_variance:.2f}，最大权重 {raw_top:.2f} → {scaled_top:.2f}",
    ),
    article="d_k → 1",
    parts=(
        Part(
            Words("scores of independent elements have variance d_k", "元素独立时，分数的方差为 d_k"),
            at_most("variance_error", 0.1),
            Words(
                "{raw_variance:.1f} at d_k = {D:.0f}; off by {variance_error:.1%} at most, for any size",
                "d_k = {D:.0f} 时为 {raw_variance:.1f}；各尺寸最多偏差 {variance_error:.1%}",
            ),
            article="d_k",
        ),
        Part(
            Words("dividing by √d_k brings it to 1", "除以 √d_k 后方差回到 1"),
            at_most("scaled_variance_error", 0.1),
            "{scaled_variance:.2f}",
            article="1",
        ),
        Part(
            Words("without it softmax saturates", "不除，softmax 会饱和"),
            at_least("raw_top", 0.5),
            Words(
                "top key of 128 takes {raw_top:.2f}, scaled {scaled_top:.2f}; "
                "rows above .99: {raw_saturated:.0%}, scaled {scaled_saturated:.0%}",
                "128 个键中最大者占 {raw_top:.2f}，缩放后 {scaled_top:.2f}；"
                "超过 .99 的行：{raw_saturated:.0%}，缩放后 {scaled_saturated:.0%}",
            ),
        ),
        Part(
            Words("most score gradients die out", "多数分数的梯度消失"),
            at_least("raw_dead", 0.5),
            Words(
                "{raw_dead:.0%} below 1e-4, scaled {scaled_dead:.0%}",
                "{raw_dead:.0%} 低于 1e-4，缩放后 {scaled_dead:.0%}",
            ),
        ),
        Part(
            Words("with few keys softmax's derivative as a whole is tiny", "键少时，softmax 的整个导数极小"),
            at_most("few_ratio", COLLAPSED),
            Words(
                "median norm with 4 keys is {few_ratio:.2f} of the scaled one",
                "4 个键时，范数中位数是缩放后的 {few_ratio:.2f} 倍",
            ),
        ),
        Part(
            Words("with many keys it is too", "键多时也是如此"),
            at_most("many_ratio", COLLAPSED),
            Words(
                "with 128 keys it is {many_ratio:.2f} of the scaled one",
                "128 个键时，是缩放后的 {many_ratio:.2f} 倍",
            ),
            needs=Words(
                "tiny gradients mean most entries, or few keys, or with 128 keys d_k ≥ {collapse_D:.0f}",
                "“梯度极小”指多数分量，或键很少，或 128 个键时 d_k ≥ {collapse_D:.0f}",
            ),
        ),
        Part(
            Words(
                "training needs at least twice the steps, queries and keys of variance 1 at the start",
                "查询和键起初方差为 1 时，训练至少要两倍的步数",
            ),
            at_least("unit_steps_ratio", 2.0),
            Words(
                "a small lesson takes {unit_raw_steps:.0f} steps, scaled {unit_scaled_steps:.0f}",
                "一个小任务要 {unit_raw_steps:.0f} 步，缩放后 {unit_scaled_steps:.0f} 步",
            ),
        ),
        Part(
            Words(
                "it does from small weights as well (GPT-2's .02)", "从很小的权重（GPT-2 的 .02）开始也是如此"
            ),
            at_least("small_steps_ratio", 1.0),
            Words(
                "{small_raw_steps:.0f} steps, scaled {small_scaled_steps:.0f}",
                "{small_raw_steps:.0f} 步，缩放后 {small_scaled_steps:.0f} 步",
            ),
            needs=Words(
                "training does not begin with small weights, from which the unscaled lesson is faster",
                "训练不是从很小的权重开始（那样不缩放反而学得更快）",
            ),
        ),
    ),
    controls=(
        Control(
            at_most("scaled_top", 0.25),
            Words("the scaled weights saturate as well", "缩放后的权重也饱和了"),
        ),
    ),
)
