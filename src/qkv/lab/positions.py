"""(f) Whether what stands in the middle of a text is lost, and whether attention is to blame.

A row of pairs, each a key and its value, ends with a question for one of them, and each place is asked for as
often as any other. Right answers by place have the shape of a U if the start and the end are found and the
middle is lost. Were that a law of attention, any model should show it. Others found that the shape follows
what training asks for, where lists are told back. So two models are asked that read the very same rows and
differ in which answers counted and in nothing else: all of them; or those that the row had told within 16
tokens, and half as often for every pair beyond. Behind 32 pairs these are the last seven, while one in the
middle counts less than once in a hundred times and one of the first eighth never. Both are asked again with
rows of twice the pairs they ever read.

The second meter is attention itself. The text model reads texts that it wrote; the weights of its late
queries are added up by how far from the front the keys stand, and those on the very first token apart, where
large models are known to rest attention that they have no use for (Xiao et al. 2023). Two untrained models
are the controls: one must answer no better than chance, and the other's attention must lie even.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import write_texts
from qkv.lab.random_models import untrained_like
from qkv.lab.recalling import ABLE, answers_right
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import Model
from qkv.models.watching import Watched, watch
from qkv.training.recall import Questions, draw_questions

Floats = NDArray[Any]
Numbers = Mapping[str, Number | float]
Ask = Callable[[Model, Questions], NDArray[np.bool_]]
"""A model and questions, to whether each was answered rightly."""
Watch = Callable[..., Watched]
"""A model and a text, to what its heads did."""

EIGHTHS, TENTHS = 8, 10
MIDDLE = slice(3, 5)
"""Of the eighths."""

MORE = 0.1
"""Of ten questions one more is answered."""
TWICE = 2.0
"""As much attention as if it lay even."""
CHANCE = 0.1
"""Six times the share of right answers that guessing among 64 values gives."""


@dataclass(frozen=True)
class Positions:
    """Settings.

    Parameters
    ----------
    N, rows_each : int
        Pairs in a row, as many as the models were trained to read, and how often each is asked for.
    beyond, beyond_rows_each : int
        The same where rows are longer than that.
    texts, T : int
        How many texts, at least 2, of how many tokens.
    """

    N: int = 32
    rows_each: int = 8
    beyond: int = 64
    beyond_rows_each: int = 4
    texts: int = 4
    T: int = 256


def measure(
    settings: Positions, instruments: Instruments, *, ask: Ask = answers_right, watch: Watch = watch
) -> Measured:
    """Ask both models for every place, and see where the text model attends."""
    by_place = answers_by_place(settings, instruments, ask)
    attention = attention_by_place(settings, instruments, watch)
    numbers: dict[str, Number | float] = {"N": settings.N, "beyond_N": settings.beyond, "T": settings.T}
    for name, shares in by_place.items():
        numbers |= {f"{name}_{part}": one for part, one in parts_of(shares).items()}
    for name, seen in attention.items():
        numbers |= {f"{name}_{part}": one for part, one in seen.numbers().items()}
    return Measured(
        numbers | gains(Measured(numbers)),
        {name: shares.tolist() for name, shares in by_place.items()}
        | {f"{name}_mass": seen.mass.mean(axis=0).tolist() for name, seen in attention.items()},
    )


def answers_by_place(settings: Positions, instruments: Instruments, ask: Ask) -> dict[str, Floats]:
    """Return the share of right answers in each eighth of rows, of both models and an untrained one."""
    questions = draw_questions(instruments.generator("positions"), settings.N, settings.rows_each)
    longer = draw_questions(
        instruments.generator("positions beyond"), settings.beyond, settings.beyond_rows_each
    )
    model, recent = instruments.recall_model(), instruments.recent_recall_model()
    blank = untrained_like(model, questions.ids[0], instruments.generator("positions untrained"))
    tried = {
        "even": (model, questions),
        "recent": (recent, questions),
        "beyond": (model, longer),
        "recent_beyond": (recent, longer),
        "untrained": (blank, questions),
    }
    return {
        name: share_by_place(asked.asked, ask(one, asked), EIGHTHS) for name, (one, asked) in tried.items()
    }


def share_by_place(places: NDArray[np.integer], right: NDArray[np.bool_], count: int) -> Floats:
    """Return the share of right answers in each of ``count`` equal parts of the places, from the front.

    Examples
    --------
    Six places, of which the last two and the first were found:

    >>> share_by_place(np.arange(6), np.array([True, False, False, False, True, True]), 3).tolist()
    [0.5, 0.0, 1.0]
    """
    part = places * count // (places.max() + 1)
    return np.bincount(part, weights=right, minlength=count) / np.bincount(part, minlength=count)


def parts_of(shares: Floats) -> dict[str, float]:
    """Return right answers at the start, in the middle, at the end and anywhere."""
    places = {"start": shares[0], "middle": shares[MIDDLE].mean(), "end": shares[-1], "right": shares.mean()}
    return {name: float(share) for name, share in places.items()}


def gains(measured: Measured) -> dict[str, float]:
    """Return how many more right answers there are at the start and at the end than in the middle.

    The middle is lost only if both have more: ``depth`` is the lesser of the two.
    """
    found: dict[str, float] = {}
    for name in ("even", "recent", "beyond", "recent_beyond"):
        start, middle, end = (measured.value(f"{name}_{part}") for part in ("start", "middle", "end"))
        found |= {f"{name}_start_gain": start - middle, f"{name}_end_gain": end - middle}
        found[f"{name}_depth"] = min(start, end) - middle
    return found


@dataclass(frozen=True, eq=False)
class Attention:
    """Where the late queries of several texts attend, as means over heads and layers.

    Attributes
    ----------
    mass : (texts, 10)
        Attention on each tenth of what a query sees, from the front.
    first : (texts,)
        That on the first token, as a multiple of what it would be if attention lay even.
    most_first : (texts,)
        The most that any one head gives to the first token.
    """

    mass: Floats
    first: Floats
    most_first: Floats

    def numbers(self) -> dict[str, Number]:
        """Return what decides, as medians over the texts; ``times`` compares with even attention."""
        middle = self.mass[:, TENTHS // 2 - 1 : TENTHS // 2 + 1].mean(axis=1)
        named = {
            "start_mass": self.mass[:, 0],
            "middle_mass": middle,
            "end_mass": self.mass[:, -1],
            "start_times": self.mass[:, 0] * TENTHS,
            "end_times": self.mass[:, -1] * TENTHS,
            "first_times": self.first,
            "most_first": self.most_first,
        }
        return {name: Number.of(values.tolist()) for name, values in named.items()}


def attention_by_place(settings: Positions, instruments: Instruments, watch: Watch) -> dict[str, Attention]:
    """Return where the text model attends in texts that it wrote, and where one untrained does."""
    model = instruments.text_model()
    texts = write_texts(model, settings.texts, settings.T, instruments.generator("positions text"))
    blank = untrained_like(model, texts[0], instruments.generator("positions untrained text"))
    found = {}
    for name, one in (("text", model), ("blank", blank)):
        seen = [late_attention(watch(one, text).weights) for text in texts]
        found[name] = Attention(*(np.array(part) for part in zip(*seen, strict=True)))
    return found


def late_attention(weights: Floats) -> tuple[Floats, float, float]:
    """Return where the last quarter of the queries attend, on average over heads and layers.

    Parameters
    ----------
    weights : (L, H, T, T)

    Returns
    -------
    (10,), float, float
        By tenths; the first token as a multiple of even attention, and the most of any one head there.
    """
    T = weights.shape[-1]
    late = np.arange(T - T // 4, T)
    mean = weights.mean(axis=(0, 1))
    mass = np.mean([mass_by_place(mean[t, : t + 1], TENTHS) for t in late], axis=0)
    first = float((mean[late, 0] * (late + 1)).mean())
    return mass, first, float(weights[:, :, late, 0].mean(axis=-1).max())


def mass_by_place(weights: Floats, count: int) -> Floats:
    """Return how much of one query's attention lies on each of ``count`` parts of what it sees.

    Each key is a stretch of equal length; one that lies across two parts is shared between them, so that
    even attention comes out even.

    Examples
    --------
    Three keys and two halves: the second key belongs to both.

    >>> mass_by_place(np.array([0.5, 0.25, 0.25]), 2).tolist()
    [0.625, 0.375]
    """
    so_far = np.concatenate([[0.0], np.cumsum(weights)])
    edges = np.linspace(0, len(weights), count + 1)
    return np.diff(np.interp(edges, np.arange(len(so_far)), so_far))


POSITIONS = Experiment(
    id="f",
    name="positions",
    title=Words("Lost in the middle", "中间的信息丢失"),
    claim=Words(
        "Models attend to the start and the end of what they read and lose what stands in the middle.",
        "模型对输入开头和结尾的信息关注度高，对中间部分的信息容易遗忘（Lost in the Middle）。",
    ),
    source="Liu et al. 2023; arXiv 2510.10276 (it comes from training); the article, section 3.1",
    elsewhere=Words(
        (
            "Liu et al. 2023 measured the answers of large models, not their attention. Others trained "
            "models to tell lists back and saw the shape follow the demand (arXiv 2510.10276). Here each "
            "pair is looked up by its key: the second model was asked for what stood near and never for "
            "the front of long rows, and what it learned finds both."
        ),
        (
            "Liu 等人 2023 测的是大模型的回答，不是注意力。另有研究训练模型复述列表，位置曲线随训练需求而变"
            "（arXiv 2510.10276）。这里每对按键查找：第二个模型训练时只问近处，从不问长行的开头，"
            "学到的查找却两处都找得到。"
        ),
    ),
    quick=Positions(),
    full=Positions(rows_each=32, beyond_rows_each=8, texts=15, T=512),
    measure=measure,
    shows=Words(
        "start/middle/end: {even_start:.0%}/{even_middle:.0%}/{even_end:.0%}; "
        "attention at the end {text_end_mass:.0%}",
        "开头/中间/结尾：{even_start:.0%}/{even_middle:.0%}/{even_end:.0%}；结尾的注意力 {text_end_mass:.0%}",
    ),
    parts=(
        Part(
            Words(
                "the middle is found less often than the start and the end", "中间的内容比开头和结尾更少找回"
            ),
            at_least("even_depth", MORE),
            Words(
                "{N:.0f} pairs: {even_start:.0%} of the first eighth found, {even_middle:.0%} of the middle, "
                "{even_end:.0%} of the last; untrained {untrained_right:.0%}",
                "{N:.0f} 对：开头八分之一找回 {even_start:.0%}，中间 {even_middle:.0%}，"
                "末尾 {even_end:.0%}；未训练 {untrained_right:.0%}",
            ),
            role="heart",
        ),
        Part(
            Words(
                "a model whose training asked mostly for what came last finds the end better",
                "训练时多问结尾的模型，结尾找得更好",
            ),
            at_least("recent_end_gain", MORE),
            Words(
                "{recent_start:.0%} of the first eighth, {recent_middle:.0%} of the middle, {recent_end:.0%} "
                "of the last",
                "开头 {recent_start:.0%}，中间 {recent_middle:.0%}，末尾 {recent_end:.0%}",
            ),
        ),
        Part(
            Words(
                "of a text that is longer than any in training the middle is lost first",
                "文本比训练时更长时，先丢失中间",
            ),
            at_least("beyond_depth", MORE),
            Words(
                "{beyond_N:.0f} pairs: {beyond_start:.0%} of the first eighth, {beyond_middle:.0%} of the "
                "middle, {beyond_end:.0%} of the last; asked for the latest: {recent_beyond_start:.0%}, "
                "{recent_beyond_middle:.0%}, {recent_beyond_end:.0%}",
                "{beyond_N:.0f} 对：开头 {beyond_start:.0%}，中间 {beyond_middle:.0%}，末尾 "
                "{beyond_end:.0%}；多问结尾的模型：{recent_beyond_start:.0%}，{recent_beyond_middle:.0%}，"
                "{recent_beyond_end:.0%}",
            ),
        ),
        Part(
            Words("attention gathers at the end of a text", "注意力集中在文本结尾"),
            at_least("text_end_times", TWICE),
            Words(
                "{text_end_mass:.0%} of it lies on the last tenth, {text_middle_mass:.0%} on one in the "
                "middle; untrained {blank_end_mass:.0%}",
                "最后十分之一占 {text_end_mass:.0%}，中间十分之一 {text_middle_mass:.0%}；"
                "未训练 {blank_end_mass:.0%}",
            ),
        ),
        Part(
            Words("and at its start", "也集中在文本开头"),
            at_least("text_start_times", TWICE),
            Words(
                "{text_start_mass:.1%} on the first tenth; on the first token {text_first_times:.1f}x what "
                "is even, in no head more than {text_most_first:.1%} of all",
                "最前十分之一 {text_start_mass:.1%}；第一个 token 是均匀时的 {text_first_times:.1f} 倍，"
                "任何头都不超过 {text_most_first:.1%}",
            ),
            needs=Words(
                "it is said of the end, or of short texts: over {T:.0f} tokens this model's attention has "
                "left the first ones",
                "说的是结尾，或者文本很短：到 {T:.0f} 个 token 时，这个模型的注意力已离开开头",
            ),
        ),
    ),
    controls=(
        Control(
            at_least("even_right", ABLE),
            Words("the model finds nothing anywhere", "模型在任何位置都找不到"),
        ),
        Control(
            at_most("untrained_right", CHANCE),
            Words("an untrained model answers as well", "未训练的模型也能回答"),
        ),
        Control(
            at_most("blank_end_times", TWICE),
            Words("untrained attention gathers at the end too", "未训练的注意力也集中在结尾"),
        ),
    ),
)
