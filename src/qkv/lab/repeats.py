"""Prompts that say the same several times, and how to make them shorter: by what is said again, or at random.

A prompt is made of pieces of a few tokens each, ``(n, width)``: pairs of a key and a value, or a passage.
A piece that stands there once more, token for token, is a repeat.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.training.recall import ASK, BOS, FIRST_VALUE, NUM_KEYS, Questions

Pieces = NDArray[np.int64]
Trim = Callable[[Pieces], Pieces]
"""From pieces to fewer of them, in their order."""


def said_again(pieces: Pieces, times: int, draw: np.random.Generator) -> Pieces:
    """Return every piece so many times, in any order."""
    return draw.permutation(np.tile(pieces, (times, 1)))


def first_of_each(pieces: Pieces) -> Pieces:
    """Drop every piece that stood there before, token for token.

    Examples
    --------
    >>> first_of_each(np.array([[5, 1], [3, 2], [5, 1], [5, 2]])).tolist()
    [[5, 1], [3, 2], [5, 2]]
    """
    _, first = np.unique(pieces, axis=0, return_index=True)
    return pieces[np.sort(first)]


def any_of_them(pieces: Pieces, count: int, draw: np.random.Generator) -> Pieces:
    """Keep so many pieces, whichever they are: the control."""
    return pieces[np.sort(draw.permutation(len(pieces))[:count])]


def first_with_key(pieces: Pieces) -> Pieces:
    """Drop every pair whose key stood there before, whatever its value.

    Examples
    --------
    >>> first_with_key(np.array([[5, 1], [3, 2], [5, 1], [5, 2]])).tolist()
    [[5, 1], [3, 2]]
    """
    _, first = np.unique(pieces[:, 0], return_index=True)
    return pieces[np.sort(first)]


def last_with_key(pieces: Pieces) -> Pieces:
    """Drop every pair whose key comes once more.

    Examples
    --------
    >>> last_with_key(np.array([[5, 1], [3, 2], [5, 1], [5, 2]])).tolist()
    [[3, 2], [5, 2]]
    """
    return first_with_key(pieces[::-1])[::-1]


def pairs_of(questions: Questions) -> Pieces:
    """Return the pairs of each row: ``(B, N, 2)``."""
    return questions.ids[:, 1:-2].reshape(len(questions.ids), -1, 2)


def asking(questions: Questions, pairs: Sequence[Pieces]) -> NDArray[np.int64]:
    """Return rows of other pairs, as many in each, with the same questions behind them: ``(B, T)``.

    Examples
    --------
    >>> from qkv.training.recall import draw_questions
    >>> questions = draw_questions(np.random.default_rng(0), N=3, rows_each=1)
    >>> (asking(questions, pairs_of(questions)) == questions.ids).all().item()
    True
    """
    told = [[BOS, *each.ravel(), ASK, key] for each, key in zip(pairs, questions.ids[:, -1], strict=True)]
    return np.array(told)


def also_changed(questions: Questions, draw: np.random.Generator) -> list[Pieces]:
    """Return each row's pairs and, anywhere among them, each key once more with another value."""
    rows = []
    for pairs in pairs_of(questions):
        free = np.setdiff1d(np.arange(FIRST_VALUE, FIRST_VALUE + NUM_KEYS), pairs[:, 1])
        changed = np.stack([pairs[:, 0], draw.permutation(free)[: len(pairs)]], axis=1)
        rows.append(draw.permutation(np.concatenate([pairs, changed])))
    return rows


def score_cells(num_tokens: int) -> int:
    """Return how many scores one head of one layer works out to read so many tokens.

    Examples
    --------
    >>> score_cells(4)
    10
    """
    return num_tokens * (num_tokens + 1) // 2
