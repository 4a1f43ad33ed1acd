"""Sequences that can only be continued by looking back: repeats, and pairs that are asked for.

Trained on half of each, two layers learn to find what followed a symbol when it last stood there
(induction heads, Olsson et al. 2022). The pairs alone teach it much later: few of their ids are asked for.

Ids: ``BOS`` begins each row, ``ASK`` stands before a question, then the keys, then the values.
A pair is a key and its value; a question is ``ASK``, a key of the row, and that key's value.

Which of the answers a training asks for is its `Demand`: the rows are the same under any.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qkv.errors import ShapeError
from qkv.training.cross_entropy import IGNORED

BOS, ASK = 0, 1
NUM_KEYS = 64
FIRST_KEY = 2
FIRST_VALUE = FIRST_KEY + NUM_KEYS
VOCAB_SIZE = FIRST_VALUE + NUM_KEYS

SHORTEST_BLOCK, LONGEST_PIECE = 4, 8
RECENT = 16
"""Tokens: a question behind its row finds the last seven pairs so near."""
HELD_OUT_STEP = 2**62
"""Far beyond the last step of any training."""

Ids = NDArray[np.int64]
Rows = tuple[Ids, Ids]
"""Ids and, of the same shape, what should come after each: `IGNORED` where that is left open."""
Demand = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""How probably an answer is asked for, by its age: how many tokens ago the row last told it."""


class GivesLogits(Protocol):
    """A model, as far as its answers go."""

    def logits(self, ids: Any, /) -> Any:
        """Return (B, T, V) for (B, T)."""
        ...


def words() -> list[str]:
    """Return what each id is written as: ``<s> ? k0 .. k63 v0 .. v63``."""
    return ["<s>", "?", *(f"k{n}" for n in range(NUM_KEYS)), *(f"v{n}" for n in range(NUM_KEYS))]


def uniform(ages: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ask for every answer."""
    return np.ones_like(ages)


def recent(ages: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ask for every answer up to the age `RECENT`, and half as often for every pair, two tokens, beyond.

    Were the last few asked for alone, a guess among them would be right so often that two layers take far
    longer to find out that they could look back.
    """
    return 0.5 ** (np.maximum(ages - RECENT, 0) / 2)


def mixed(
    generator: np.random.Generator,
    B: int,
    T: int,
    num_pairs: range = range(4, 33),
    demand: Demand = uniform,
    num_keys: int = NUM_KEYS,
) -> Rows:
    """Return (B, T) rows for training, half of them repeats and half pairs with questions.

    A row of pairs ends with as many questions as fit, none of them asked twice.

    Parameters
    ----------
    generator : numpy.random.Generator
    B, T : int
        T has room for the most pairs and one question: ``4 + 2 * pairs``.
    num_pairs : range
        Each row's number of pairs is drawn from these, all alike.
    demand : Demand
        Which answers are asked for, in rows of either kind; the others stand there, but are `IGNORED`.
    num_keys : int
        How many of the keys, and of the values, are in use.

    Raises
    ------
    ShapeError
        If a row is too short for the pairs and a question, or there are more pairs than keys.
    """
    most = max(num_pairs)
    if most > num_keys or 4 + 2 * most > T:
        raise ShapeError(
            f"expected T of at least 4 + 2 * pairs and at most {num_keys} pairs, not T {T} for {most} pairs"
        )
    counts = generator.choice(num_pairs, B)
    rows = [
        _pieces(generator, T, num_keys) if row % 2 else _pairs(generator, T, counts[row], num_keys)
        for row in range(B)
    ]
    ids, targets = (np.stack(part) for part in zip(*rows, strict=True))
    is_asked = generator.random((B, T)) < demand(ages_of(ids, targets))
    return ids, np.where(is_asked, targets, IGNORED)


def ages_of(ids: Ids, targets: Ids) -> NDArray[np.float64]:
    """Return how many tokens ago each target last followed the id that it should follow now.

    Parameters
    ----------
    ids, targets : (B, T)

    Returns
    -------
    (B, T) float64
        Infinite where it never did.

    Examples
    --------
    After the last 5 a 6 is asked for, which followed the first, three tokens before:

    >>> ages_of(np.array([[5, 6, 8, 5]]), np.array([[IGNORED, IGNORED, IGNORED, 6]])).tolist()
    [[inf, inf, inf, 3.0]]
    """
    back = np.subtract.outer(np.arange(ids.shape[1]), np.arange(ids.shape[1] - 1.0))  # T T-1
    followed = (ids[:, None, :-1] == ids[:, :, None]) & (ids[:, None, 1:] == targets[:, :, None])
    followed &= back > 0
    return np.min(np.broadcast_to(back, followed.shape), axis=-1, initial=np.inf, where=followed)


def _pieces(generator: np.random.Generator, T: int, num_keys: int) -> Rows:
    """Repeat a block of distinct symbols, in pieces and in any order: inside a piece, what follows is known.

    Repeated whole it would teach less: what stood as many symbols back as last time would be right as
    well, or what stood after the same few symbols, and neither helps to find a pair.
    """
    in_use = np.arange(num_keys)
    symbols = generator.permutation(np.concatenate([FIRST_KEY + in_use, FIRST_VALUE + in_use]))
    longest = min(T // 2, len(symbols))
    # Each doubling is as likely as another: what is learned first is learned from short blocks.
    block = int(SHORTEST_BLOCK * ((longest + 1) / SHORTEST_BLOCK) ** generator.random())
    starts = generator.integers(0, block - 1, T // 2)
    ends = np.minimum(starts + generator.integers(2, LONGEST_PIECE + 1, T // 2), block)
    places = np.concatenate([np.arange(block), *map(np.arange, starts, ends)])[:T]
    told = symbols[places]
    is_known = (np.diff(places, prepend=-1) == 1) & (np.arange(T) >= block)
    return np.concatenate([[BOS], told[:-1]]), np.where(is_known, told, IGNORED)


def _pairs(generator: np.random.Generator, T: int, N: int, num_keys: int) -> Rows:
    pairs = _draw_pairs(generator, 1, N, num_keys)[0]  # N 2
    count = min(N, (T - 1 - 2 * N) // 3)
    asked = pairs[np.argsort(generator.exponential(size=N))[:count]]  # any, in any order
    questions = np.insert(asked, 0, ASK, axis=1)  # count 3
    told = np.concatenate([[BOS], pairs.ravel(), questions.ravel()])
    ids = np.full(T, BOS)
    ids[: len(told)] = told
    targets = np.full(T, IGNORED)
    targets[1 + 2 * N + 1 + 3 * np.arange(count)] = asked[:, 1]
    return ids, targets


@dataclass(frozen=True)
class Stage:
    """From which step on how many keys are in use; half as many pairs stand in a row at most.

    Few keys and short rows come first: there two layers find out within seconds what to do, and they
    keep it as the rest is added. With everything from the beginning it takes them far longer.
    """

    first_step: int
    num_keys: int

    @property
    def num_pairs(self) -> range:
        """Of a row."""
        return range(2, self.num_keys // 2 + 1)

    @property
    def T(self) -> int:  # noqa: N802
        """Room for the most pairs and three questions."""
        return self.num_keys + 10


CURRICULUM = (Stage(0, 16), Stage(700, 32), Stage(1500, NUM_KEYS))


@dataclass(frozen=True)
class RecallData:
    """Rows of `mixed` as steps of a training: the same seed and step give the same in any process.

    Attributes
    ----------
    B, seed, demand
        See `mixed`.
    stages : sequence of Stage
        In the order of their first steps, of which the first is 0.
    """

    B: int
    seed: int
    demand: Demand = uniform
    stages: Sequence[Stage] = CURRICULUM

    held_out_bytes = None
    """These rows are no text."""

    @property
    def fingerprint(self) -> str:
        """Tells this data from other data."""
        return f"recall {self.B} {self.seed} {self.demand.__name__} {self.stages}"

    def batch(self, step: int) -> Rows:
        """Return the ids and targets of a step, counted from 0."""
        stage = [stage for stage in self.stages if stage.first_step <= step][-1]
        return self._rows(stage, self.seed, step)

    def held_out(self) -> Iterator[Rows]:
        """Give rows of the last stage that no step of training does."""
        yield self._rows(self.stages[-1], self.seed, HELD_OUT_STEP)

    def _rows(self, stage: Stage, *seed: int) -> Rows:
        return mixed(
            np.random.default_rng(seed),
            self.B,
            stage.T,
            stage.num_pairs,
            self.demand,
            stage.num_keys,
        )


@dataclass(frozen=True)
class Questions:
    """Rows of N pairs that end with a question, each pair asked for in as many rows as any other.

    Attributes
    ----------
    ids : (B, 3 + 2 N)
        `BOS`, the pairs, `ASK` and a key.
    asked : (B,)
        Which pair the key is of, counted from the front.
    answers : (B,)
        The values that should come next.
    """

    ids: Ids
    asked: Ids
    answers: Ids


def draw_questions(generator: np.random.Generator, N: int, rows_each: int) -> Questions:
    """Return ``B = N * rows_each`` rows to examine a model with.

    Raises
    ------
    ShapeError
        If there are more pairs than keys.

    Examples
    --------
    >>> questions = draw_questions(np.random.default_rng(0), N=2, rows_each=1)
    >>> for row, answer in zip(questions.ids, questions.answers, strict=True):
    ...     print(*(words()[n] for n in row), "->", words()[answer])
    <s> k16 v51 k36 v7 ? k16 -> v51
    <s> k53 v9 k42 v7 ? k42 -> v7
    """
    if not 1 <= N <= NUM_KEYS:
        raise ShapeError(f"expected 1 to {NUM_KEYS} pairs, as there are {NUM_KEYS} keys, not {N}")
    pairs = _draw_pairs(generator, N * rows_each, N)
    asked = np.tile(np.arange(N), rows_each)
    keys, answers = pairs[np.arange(len(pairs)), asked].T
    begin, ask = (np.full((len(pairs), 1), token) for token in (BOS, ASK))
    ids = np.concatenate([begin, pairs.reshape(len(pairs), -1), ask, keys[:, None]], axis=1)
    return Questions(ids, asked, answers)


def accuracy_by_position(model: GivesLogits, questions: Questions, B: int = 64) -> NDArray[np.float64]:
    """Return the share of right answers for each of the N pairs, from the front; B rows are asked at once."""
    answered = [
        np.asarray(model.logits(questions.ids[start : start + B]))[:, -1].argmax(axis=-1)
        for start in range(0, len(questions.ids), B)
    ]
    right = np.concatenate(answered) == questions.answers
    return np.bincount(questions.asked, weights=right) / np.bincount(questions.asked)


def _draw_pairs(generator: np.random.Generator, B: int, N: int, num_keys: int = NUM_KEYS) -> Ids:
    """Return (B, N, 2) keys and values, in each row distinct."""
    keys, values = (
        generator.permuted(np.tile(np.arange(first, first + num_keys), (B, 1)), axis=1)[:, :N]
        for first in (FIRST_KEY, FIRST_VALUE)
    )
    return np.stack([keys, values], axis=-1)
