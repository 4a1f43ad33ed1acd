"""The smallest lesson attention can learn, every gradient written out: find the key that is the query.

A text is S pairs of a key and a value. The query is one of the keys, and the answer its value. Keys and
values are random vectors that stay as they are; what is learned are the two maps that make queries and
keys, W_q and W_k, each (D, E). The loss is the cross-entropy of the answer among all V values, in nats.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.ops import softmax

Floats = NDArray[np.float32]

ADAM_DECAYS = 0.9, 0.99
LEAST = 1e-8


@dataclass(frozen=True)
class Lesson:
    """Sizes of the lesson, and how it is taught.

    Parameters
    ----------
    V : int
        Different keys, and different values.
    S : int
        Pairs in a text.
    E, D : int
        Width of the vectors, and of queries and keys.
    B : int
        Texts in a step.
    learning_rate : float
        Of Adam.
    """

    V: int = 128
    S: int = 16
    E: int = 64
    D: int = 128
    B: int = 32
    learning_rate: float = 3e-3


@dataclass(frozen=True)
class Texts:
    """B texts: their pairs, and which one is asked for."""

    keys: Floats
    """(B, S, E)."""
    values: Floats
    """(B, S, E)."""
    asked: NDArray[np.integer]
    """(B,) positions of the keys that the queries equal."""
    answers: NDArray[np.integer]
    """(B,) rows of the table of values."""


@dataclass(frozen=True)
class Pupil:
    """The two maps that are learned, and the factor of the scores."""

    w_q: Floats
    w_k: Floats
    scale: float

    @classmethod
    def begin(cls, lesson: Lesson, random: np.random.Generator, std: float, scale: float) -> "Pupil":
        """Return maps that are normal with a standard deviation; 1/sqrt(E) makes queries of variance 1."""
        shape = (lesson.D, lesson.E)
        w_q, w_k = (np.float32(std) * random.standard_normal(shape, np.float32) for _ in range(2))
        return cls(w_q, w_k, scale)


def draw_table(lesson: Lesson, random: np.random.Generator) -> Floats:
    """Return V random vectors: ``(V, E)``."""
    return random.standard_normal((lesson.V, lesson.E), np.float32)


def draw_texts(lesson: Lesson, keys: Floats, values: Floats, random: np.random.Generator) -> Texts:
    """Draw texts of S different keys with S different values."""
    drawn = (np.argsort(random.random((lesson.B, lesson.V)), axis=1)[:, : lesson.S] for _ in range(2))
    key_ids, value_ids = drawn
    asked = random.integers(0, lesson.S, lesson.B)
    answers = value_ids[np.arange(lesson.B), asked]
    return Texts(keys[key_ids], values[value_ids], asked, answers)


def loss_and_gradients(pupil: Pupil, texts: Texts, values: Floats) -> tuple[float, Floats, Floats]:
    """Return the loss in nats and its gradients for W_q and W_k, each step back beside its step forward."""
    rows = np.arange(len(texts.asked))
    asked = texts.keys[rows, texts.asked]  # B E
    q, k = asked @ pupil.w_q.T, texts.keys @ pupil.w_k.T  # B D, B S D
    p = softmax(np.einsum("bd,bsd->bs", q, k) * np.float32(pupil.scale))
    output = np.einsum("bs,bse->be", p, texts.values)
    shrink = np.float32(values.shape[1] ** -0.5)
    guess = softmax(output @ values.T * shrink)  # B V
    loss = -np.log(np.maximum(guess[rows, texts.answers], np.finfo(np.float32).tiny)).mean()

    d_logits = guess.copy()
    d_logits[rows, texts.answers] -= 1
    d_output = (d_logits / np.float32(len(rows))) @ values * shrink
    d_p = np.einsum("be,bse->bs", d_output, texts.values)
    d_scores = p * (d_p - (p * d_p).sum(axis=-1, keepdims=True)) * np.float32(pupil.scale)
    d_q, d_k = np.einsum("bs,bsd->bd", d_scores, k), d_scores[:, :, None] * q[:, None, :]
    return float(loss), d_q.T @ asked, np.tensordot(d_k, texts.keys, axes=([0, 1], [0, 1]))


def steps_to_learn(
    lesson: Lesson, random: np.random.Generator, *, std: float, scale: float, below: float, most: int
) -> int:
    """Teach until the loss falls below a bound; return after how many steps, ``most`` if it never does."""
    keys, values = draw_table(lesson, random), draw_table(lesson, random)
    pupil = Pupil.begin(lesson, random, std, scale)
    moments = [(np.zeros_like(pupil.w_q), np.zeros_like(pupil.w_q)) for _ in range(2)]
    for step in range(1, most + 1):
        loss, *gradients = loss_and_gradients(pupil, draw_texts(lesson, keys, values, random), values)
        if loss < below:
            return step
        for weight, gradient, of_weight in zip((pupil.w_q, pupil.w_k), gradients, moments, strict=True):
            weight -= lesson.learning_rate * adam_direction(gradient, of_weight, step)
    return most


def adam_direction(gradient: Floats, moments: tuple[Floats, Floats], step: int) -> Floats:
    """Return where Adam goes (Kingma and Ba 2015, algorithm 1), its moments brought up to date in place."""
    for moment, power, decay in zip(moments, (gradient, gradient**2), ADAM_DECAYS, strict=True):
        moment += (1 - decay) * (power - moment)
    mean, square = (moment / (1 - decay**step) for moment, decay in zip(moments, ADAM_DECAYS, strict=True))
    return mean / (np.sqrt(square) + np.float32(LEAST))
