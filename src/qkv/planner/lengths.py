"""How long requests are: prompts and answers like those of a public data set, or of a file of one's own."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkv.errors import PlanError

Lengths = NDArray[np.int64]
"""Tokens of prompt and answer, (number of requests, 2)."""

ROUNDS = 30
"""Of fitting means; each brings them several times closer."""

CONVERSATION_CV, ANSWER_CV = 1.1, 0.87
"""Standard deviation by mean. That of answers follows from the bars of Fig. 2 in Kwon et al. 2023: 457
tokens in flight and 755 in the end per request; that of prompts is free, and of little influence."""


@dataclass(frozen=True)
class LengthModel:
    """Requests with these means: prompts lognormal, answers gamma distributed.

    Parameters
    ----------
    name : str
    mean_prompt, mean_answer : float
        Tokens, of what is left when requests are cut at the longest length.

    Examples
    --------
    >>> drawn = SHAREGPT.draw(20_000, limit=2048, seed=0)
    >>> drawn.mean(axis=0).round().tolist(), int(drawn.sum(axis=1).max())
    ([161.0, 338.0], 2048)
    """

    name: str
    mean_prompt: float
    mean_answer: float

    def draw(self, count: int, *, limit: int, seed: int = 0) -> Lengths:
        """Return ``count`` requests of at most ``limit`` tokens in all, each of at least one and one.

        Raises
        ------
        PlanError
            If the limit leaves no room for requests of these means.
        """
        if limit < 2 * (self.mean_prompt + self.mean_answer):
            raise PlanError(
                f"{self.name} requests have {self.mean_prompt + self.mean_answer:.0f} tokens on average; "
                f"a context of {limit:,} leaves too little room for the longer half of them"
            )
        random = np.random.default_rng(seed)
        spread = np.log(1 + CONVERSATION_CV**2)
        prompts = random.lognormal(-spread / 2, np.sqrt(spread), count)  # of mean 1
        answers = random.gamma(ANSWER_CV**-2, ANSWER_CV**2, count)  # of mean 1
        prompt_scale, answer_scale = self.mean_prompt, self.mean_answer
        for _ in range(ROUNDS):
            lengths = _cut(prompts * prompt_scale, answers * answer_scale, limit)
            means = lengths.mean(axis=0)
            prompt_scale *= self.mean_prompt / means[0]
            answer_scale *= self.mean_answer / means[1]
        return _cut(prompts * prompt_scale, answers * answer_scale, limit)


SHAREGPT = LengthModel("ShareGPT-like", 161.31, 337.99)
ALPACA = LengthModel("Alpaca-like", 19.31, 58.45)
"""Means of Kwon et al. 2023, Fig. 11."""

KNOWN = {"sharegpt": SHAREGPT, "alpaca": ALPACA}


def find_lengths(source: str | Path | Lengths, count: int, *, limit: int, seed: int = 0) -> Lengths:
    """Return lengths by the name of a distribution, or from a file.

    Parameters
    ----------
    source : str, Path or (n, 2) integers
        ``sharegpt``, ``alpaca``, a CSV file of prompt and answer lengths, or the lengths themselves.
    count : int
        How many to draw from a distribution.
    limit : int
        Longer requests are cut.
    seed : int

    Raises
    ------
    PlanError
        If there is no such distribution or file, or it holds no lengths.
    """
    if isinstance(source, np.ndarray):
        return _checked(source, limit, "the lengths given")
    if str(source) in KNOWN:
        return KNOWN[str(source)].draw(count, limit=limit, seed=seed)
    path = Path(source)
    if not path.is_file():
        raise PlanError(f"lengths are one of {', '.join(KNOWN)} or a CSV file, not {str(source)[:80]!r}")
    return _checked(_read_csv(path), limit, str(path))


def _read_csv(path: Path) -> Lengths:
    """Read two columns of integers: the last two that are numbers, under a heading or not."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlanError(f"{path} cannot be read as CSV ({error})") from error
    numbers = [[int(cell) for cell in map(str.strip, row) if _is_count(cell)] for row in rows]
    beside_heading = numbers[1:] if numbers and not numbers[0] else numbers
    if not beside_heading or any(len(row) < 2 for row in beside_heading):
        raise PlanError(f"{path} must hold two integers a row, the tokens of a prompt and of its answer")
    return np.array([row[-2:] for row in beside_heading], np.int64)


def _is_count(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) < 10


def _checked(lengths: Lengths, limit: int, what: str) -> Lengths:
    if lengths.ndim != 2 or lengths.shape[1] != 2 or not len(lengths) or lengths.min() < 0:
        raise PlanError(f"{what} must be (n, 2): the tokens of each prompt and of its answer, 0 or more")
    return _cut(lengths[:, 0], lengths[:, 1], limit)


def _cut(prompts: NDArray, answers: NDArray, limit: int) -> Lengths:
    prompts = np.clip(np.rint(prompts), 1, limit - 1)
    answers = np.clip(np.rint(answers), 1, limit - prompts)
    return np.stack([prompts, answers], axis=1).astype(np.int64)
