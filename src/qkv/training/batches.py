"""Windows of a text: drawn at random to train on, laid end to end to be examined on.

=============  ========================================================================================
what           how
=============  ========================================================================================
a window       T tokens to predict; the model reads the token that begins a text, then all but the last
where it       at the beginning of the line it falls into, so that a text that begins anew begins with a
begins         line; in the midst of a line where that began more than T/4 tokens before
several texts  follow each other in one stream, a `END_OF_TEXT` token between; windows may see two of them
in training    each draw is as likely to fall on any token; it comes from the seed and the step alone
examined       windows lie end to end, and each token of the text is predicted once: what a window
               reads again, from its line's beginning, does not count twice
=============  ========================================================================================
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError
from qkv.tokens import Tokenizer
from qkv.training.cross_entropy import IGNORED
from qkv.training.text import Split
from qkv.training.token_file import open_tokens, tokens_of, write_tokens

Ids = NDArray[np.int64]
Batch = tuple[Ids, Ids]
"""Ids and targets, (B, T) each."""

HELD_OUT_B = 16
"""Windows that are examined at once."""


@dataclass(frozen=True, eq=False)
class Windows:
    """A tokenized text as batches; the same seed and step give the same batch in any process.

    Parameters
    ----------
    train, held_out_tokens : (tokens,) integers
    held_out_bytes : int
        What the held-out text takes in UTF-8.
    B, T : int
    seed : int
    begin_id, line_end_id : int
        The tokens before a text, and at a line's end.

    Raises
    ------
    OptionError
        If there are fewer tokens than a window takes, or none are held out.

    Examples
    --------
    >>> text = np.array([5, 6, 9, 7, 8, 9, 0])  # two lines, each with a 9 at its end
    >>> windows = Windows(text, text, held_out_bytes=20, B=1, T=4, seed=2, begin_id=0, line_end_id=9)
    >>> ids, targets = windows.batch(step=0)
    >>> ids.tolist(), targets.tolist()
    ([[0, 7, 8, 9]], [[7, 8, 9, 0]])
    """

    train: NDArray[np.integer]
    held_out_tokens: NDArray[np.integer]
    held_out_bytes: int
    B: int
    T: int
    seed: int
    begin_id: int
    line_end_id: int

    def __post_init__(self) -> None:
        if len(self.train) <= self.T:
            raise OptionError(
                f"expected a text of more than {self.T} tokens, a window, got {len(self.train)}; "
                "give more text, or take a smaller T"
            )
        if len(self.held_out_tokens) < 2 or self.held_out_bytes < 1:
            raise OptionError("expected some held-out text to be examined on, got none; hold out more")

    @classmethod
    def of(cls, split: Split, tokenizer: Tokenizer, folder: Path, *, B: int, T: int, seed: int) -> "Windows":
        """Tokenize a text into two files of a folder, and take windows of those."""
        files = {"train": split.train, "held_out": split.held_out}
        for name, documents in files.items():
            write_tokens(folder / f"{name}.tokens", tokens_of(documents, tokenizer))
        assert tokenizer.bos_id is not None, "a trained tokenizer has a token that begins a text"
        [line_end_id] = tokenizer.encode("\n", add_special_tokens=False)
        train, held_out = (open_tokens(folder / f"{name}.tokens") for name in files)
        held_out_bytes = sum(document.nbytes for document in split.held_out)
        return cls(train, held_out, held_out_bytes, B, T, seed, tokenizer.bos_id, line_end_id)

    def batch(self, step: int) -> Batch:
        """Return the ids and targets of a step, counted from 0."""
        generator = np.random.default_rng((self.seed, step))
        drawn = generator.integers(0, len(self.train) - self.T + 1, self.B)
        return self._windows(self.train, [self._line_start(self.train, start) for start in drawn.tolist()])

    def held_out(self) -> Iterator[Batch]:
        """Give the whole held-out text, every token to be predicted once, some windows at a time."""
        tokens = self.held_out_tokens
        counted = 0
        starts: list[tuple[int, int]] = []
        while counted < len(tokens):
            start = self._line_start(tokens, counted)
            starts.append((start, counted))
            counted = start + self.T
            if len(starts) == HELD_OUT_B or counted >= len(tokens):
                yield self._examined(starts)
                starts = []

    @property
    def fingerprint(self) -> str:
        """Tells this text, as tokens, from another."""
        digest = hashlib.sha256()
        for tokens in (self.train, self.held_out_tokens):
            digest.update(f"{len(tokens)} ".encode() + np.ascontiguousarray(tokens, "<u2").data)
        return digest.hexdigest()

    def _examined(self, starts: list[tuple[int, int]]) -> Batch:
        ids, targets = self._windows(self.held_out_tokens, [start for start, _ in starts])
        for row, (start, counted) in zip(targets, starts, strict=True):
            row[: counted - start] = IGNORED
        return ids, targets

    def _windows(self, tokens: NDArray[np.integer], starts: list[int]) -> Batch:
        """Return the windows that begin there; behind the end of the text nothing is asked."""
        targets = np.full((len(starts), self.T), IGNORED)
        for row, start in zip(targets, starts, strict=True):
            piece = tokens[start : start + self.T]
            row[: len(piece)] = piece
        ids = np.roll(targets, 1, axis=1)
        ids[:, 0] = self.begin_id
        ids[ids == IGNORED] = self.begin_id
        return ids, targets

    def _line_start(self, tokens: NDArray[np.integer], start: int) -> int:
        """Go back to the beginning of a line or text, if that is near."""
        first = max(0, start - self.T // 4)
        before = tokens[first:start]
        ends = np.flatnonzero((before == self.line_end_id) | (before == self.begin_id))
        if len(ends):
            return first + int(ends[-1]) + 1
        return 0 if first == 0 else start
