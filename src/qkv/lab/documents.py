"""Documents that are lists of facts, read whole or in chunks, and asked.

A fact is a key and its value. Keys and values are numbers here, as the value of one key names another: that
makes questions that take two steps. The recall model reads them as the symbols it was trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.lab.own_texts import log_softmax
from qkv.models import Model
from qkv.training.recall import ASK, BOS, FIRST_KEY, FIRST_VALUE, NUM_KEYS

Ids = NDArray[np.int64]
Floats = NDArray[Any]
Choose = Callable[[Floats], Ids]
"""Takes how sure each chunk is, (B, chunks), and returns which one counts, (B,)."""


@dataclass(frozen=True, eq=False)
class Documents:
    """B documents of N facts each, and what is asked of them.

    Attributes
    ----------
    facts : (B, N, 2)
        Numbers of keys and of values. A value's number is that of another key of the document.
    asked, answers : (B,)
        The number of a key, and of its value.
    second_answers : (B,)
        The value of the key that the answer names.
    """

    facts: Ids
    asked: Ids
    answers: Ids
    second_answers: Ids

    @property
    def N(self) -> int:  # noqa: N802
        """Facts in a document."""
        return self.facts.shape[1]

    def chunks(self, size: int) -> Ids:
        """Return the facts as chunks of ``size``: ``(B, chunks, size, 2)``.

        Raises
        ------
        ShapeError
            If a chunk would be left that is smaller.
        """
        if self.N % size:
            raise ShapeError(f"expected chunks that divide a document of {self.N} facts, not of {size}")
        return self.facts.reshape(len(self.facts), -1, size, 2)


def draw_documents(draw: np.random.Generator, N: int, rows: int, tellings: int = 1) -> Documents:
    """Draw documents of N different facts, told several times in different orders; places are asked in turn.

    Examples
    --------
    >>> one = draw_documents(np.random.default_rng(0), N=3, rows=1)
    >>> for key, value in one.facts[0]:
    ...     print(f"k{key} is v{value}")
    k27 is v16
    k16 is v36
    k36 is v27
    >>> print(f"k{one.asked[0]}: v{one.answers[0]}; k{one.answers[0]}: v{one.second_answers[0]}")
    k27: v16; k16: v36
    """
    circles = [draw.permutation(NUM_KEYS)[:N] for _ in range(rows)]  # each names the next
    pairs = [np.stack([circle, np.roll(circle, -1)], axis=-1) for circle in circles]  # N 2
    told = [[one[draw.permutation(N)] for one in pairs] for _ in range(tellings)]
    facts = np.concatenate(told, axis=1)
    asked, answers = facts[np.arange(rows), np.arange(rows) % N].T
    first = facts[:, :N]
    return Documents(facts, asked, answers, first[first[..., 0] == answers[:, None], 1])


@dataclass(frozen=True, eq=False)
class Answers:
    """What every chunk says, (B, chunks): numbers of values, and how probable each finds its own."""

    values: Ids
    sure: Floats

    def reduce(self, choose: Choose) -> Ids:
        """Return the answer that counts for each document, (B,)."""
        return np.take_along_axis(self.values, choose(self.sure)[:, None], axis=1)[:, 0]


def surest(sure: Floats) -> Ids:
    """Return the chunk that finds its answer most probable."""
    return sure.argmax(axis=1)


def ask(model: Model, chunks: Ids, keys: Ids) -> Answers:
    """Ask every chunk for the value of a key.

    Parameters
    ----------
    model : Model
    chunks : (B, chunks, size, 2)
    keys : (B,) or (B, chunks)
        One for all chunks of a document, or one for each.
    """
    B, count, size, _ = chunks.shape
    each = np.broadcast_to(keys.reshape(B, -1), (B, count))
    ids = questions(chunks.reshape(B * count, size, 2), each.reshape(-1))
    log_p = log_softmax(model.next_logits(ids))[:, FIRST_VALUE : FIRST_VALUE + NUM_KEYS]
    return Answers(log_p.argmax(axis=-1).reshape(B, count), np.exp(log_p.max(axis=-1)).reshape(B, count))


def questions(chunks: Ids, keys: Ids) -> Ids:
    """Return the ids of chunks (B, size, 2) that each end with a question for a key: ``(B, 3 + 2 size)``.

    Examples
    --------
    >>> from qkv.training.recall import words
    >>> [words()[n] for n in questions(np.array([[[7, 9], [9, 2]]]), np.array([9]))[0]]
    ['<s>', 'k7', 'v9', 'k9', 'v2', '?', 'k9']
    """
    B = len(chunks)
    told = (chunks + np.array([FIRST_KEY, FIRST_VALUE])).reshape(B, -1)
    begin, mark = (np.full((B, 1), one) for one in (BOS, ASK))
    return np.concatenate([begin, told, mark, FIRST_KEY + keys[:, None]], axis=1)
