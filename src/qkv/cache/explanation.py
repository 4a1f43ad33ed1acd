"""What a cache holds and what it has dropped, as a value to look into and as a table to read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from qkv.cache.attending import positions_of
from qkv.cache.contiguous import CacheShape
from qkv.cache.evicting import Dropped
from qkv.cache.policy import Policy
from qkv.cache.pool import NO_PAGE, Ids
from qkv.cache.prediction import predicted_nbytes
from qkv.cache.retention import Eviction
from qkv.cache.tables import SequenceTables
from qkv.cache.windows import NO_WINDOW

if TYPE_CHECKING:
    from qkv.cache.paged import PagedCache

SCORES: Mapping[Eviction, str] = {
    "streaming": "how recent a token is",
    "h2o": "the attention a token got from all queries",
    "tova": "the attention a token got from the last query, on average over all heads",
    "knorm": "minus the norm of a token's key",
    "snapkv": "the attention a token got from the prompt's last queries, pooled by 5",
    "pyramidkv": "the attention a token got from the prompt's last queries, pooled by 5",
    "expected": "the attention that coming queries are expected to give a token",
}
"""What each eviction goes by: the tokens of the highest score stay."""

LONGEST_TABLE = 24
"""Lines; of a longer one the first half and the last are shown."""

MOST_RANGES = 6

HELD = ("layers", "heads", "tokens", "pages", "shared", "bytes", "window", "sinks", "positions")
EVICTED = ("layers", "heads", "times", "after", "tokens", "positions")
BEHIND = ("layers", "heads", "tokens", "positions")
"""Titles of the tables; layers, heads and positions are ranges, ``after`` counts the tokens there were."""

Cells: TypeAlias = tuple[str, ...]
_Item = TypeVar("_Item")


@dataclass(frozen=True, eq=False)
class HeadContents:
    """What one key head of one layer holds of one sequence.

    Attributes
    ----------
    positions : (n,) int32
        Where in the text the tokens held stand, ascending. A page stays whole until its last token is
        behind the window: what the next query sees of these is up to the window.
    dropped : (m,) int32
        Where the others stood.
    page_ids : (pages,) int64
        In the pool.
    references : (pages,) int64
        How many hold each of the pages: sequences, and an index of prefixes.
    nbytes : int
        Bytes of the pages, however many share them.
    window : int, optional
        How far back a query sees, itself included; ``None`` = as far as there are tokens.
    sinks : int
        How many first tokens stay whatever happens.
    """

    positions: NDArray[np.int32]
    dropped: NDArray[np.int32]
    page_ids: Ids
    references: NDArray[np.int64]
    nbytes: int
    window: int | None
    sinks: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a cache holds, head by head, and what it has dropped; prints as tables.

    Attributes
    ----------
    policy : Policy
    lengths : tuple of int
        Tokens of each sequence that have passed through every layer.
    heads : mapping of (row, layer, head) to HeadContents
    drops : tuple of tuples of Dropped
        Of each sequence, the evictions so far: after how many tokens, in which layer, which tokens.
    nbytes : int
        Bytes of all pages now; one that several sequences hold counts once.
    full_nbytes : int
        Bytes of the pages that all tokens would take in float32.
    """

    policy: Policy
    lengths: tuple[int, ...]
    heads: Mapping[tuple[int, int, int], HeadContents]
    drops: tuple[tuple[Dropped, ...], ...]
    nbytes: int
    full_nbytes: int

    @property
    def ratio(self) -> float:
        """Bytes now over bytes in float32; 1 for an empty cache."""
        return self.nbytes / self.full_nbytes if self.full_nbytes else 1.0

    def __str__(self) -> str:
        return "\n\n".join([self._summary(), *map(self._sequence, range(len(self.lengths)))])

    def _summary(self) -> str:
        bytes_now = f"{str(self.policy) or 'float32'}: {self.nbytes:,} bytes"
        if not self.full_nbytes:
            return bytes_now
        return f"{bytes_now}, {self.ratio:.3g} times the {self.full_nbytes:,} of all tokens in float32"

    def _sequence(self, row: int) -> str:
        lines = [f"sequence {row}: {self.lengths[row]} tokens"]
        lines += _table(HELD, self._cells(row, _held_cells))
        if self.policy.eviction is not None and self.drops[row]:
            score = SCORES[self.policy.eviction.name]
            lines += ["", f"dropped by {self.policy.eviction} (score: {score}; the lowest go)"]
            lines += _table(EVICTED, self._cells(row, partial(_evicted_cells, _steps(self.drops[row]))))
        elif any(map(any, behind := self._cells(row, _behind_cells))):
            lines += ["", "dropped behind the window", *_table(BEHIND, behind)]
        return "\n".join(lines)

    def _cells(self, row: int, cells: Callable[[int, HeadContents], Cells]) -> list[list[Cells]]:
        """Return what stands in the columns behind layer and head, layer by layer."""
        layers: dict[int, list[Cells]] = {}
        for (at, layer, _), one in self.heads.items():
            if at == row:
                layers.setdefault(layer, []).append(cells(layer, one))
        return list(layers.values())


def explain(cache: "PagedCache", windows: NDArray[np.int64]) -> Explanation:
    """Return what a cache holds.

    Parameters
    ----------
    cache : PagedCache
    windows : (L, G) int64
        How far back each head's queries see.
    """
    heads = {}
    for row, one in enumerate(cache.sequences):
        for layer in range(len(one.held)):
            for head, positions in enumerate(_held_positions(one, layer)):
                window = int(windows[layer, head])
                window = None if window == NO_WINDOW else window
                sinks = int(cache.keeping.first_keys[layer, head])
                heads[row, layer, head] = _contents(one, layer, head, positions, window, sinks)
    drops = tuple(map(tuple, cache.drops))
    full_nbytes = sum(_full_nbytes(cache.shape, length) for length in cache.lengths)
    return Explanation(cache.policy, cache.lengths, heads, drops, cache.nbytes, full_nbytes)


def _contents(
    one: SequenceTables,
    layer: int,
    head: int,
    positions: NDArray[np.int32],
    window: int | None,
    sinks: int,
) -> HeadContents:
    ids = np.concatenate([table.ids[layer, head] for table in one.tables])
    ids = ids[ids != NO_PAGE]
    pool = one.pages.pool
    gone = np.ones(int(one.tokens[layer]), bool)
    gone[positions] = False
    return HeadContents(
        positions=positions,
        dropped=np.flatnonzero(gone).astype(np.int32),
        page_ids=ids,
        references=pool.references(ids),
        nbytes=int(pool.sizes(ids).sum()),
        window=window,
        sinks=sinks,
    )


def _held_positions(one: SequenceTables, layer: int) -> Sequence[NDArray[np.int32]]:
    """Return where in the text the tokens stand that the pages of each head hold."""
    if one.layout.tracks:
        return list(positions_of(one, layer))
    return [_slots_in_pages(one, layer, head) for head in range(one.held.shape[1])]


def _slots_in_pages(one: SequenceTables, layer: int, head: int) -> NDArray[np.int32]:
    slots = np.arange(one.held[layer, head], dtype=np.int32)
    present = [table.present[layer, head] for table in one.tables]
    pages = np.unique(np.concatenate([np.flatnonzero(some) for some in present]))
    return slots[np.isin(slots // one.layout.P, pages)]


def _full_nbytes(shape: CacheShape, num_tokens: int) -> int:
    return predicted_nbytes(shape, Policy(), num_tokens)


def _held_cells(layer: int, one: HeadContents) -> Cells:
    window = "all" if one.window is None else str(one.window)
    shared, positions = int((one.references > 1).sum()), one.positions
    counts = (len(positions), len(one.page_ids), shared, f"{one.nbytes:,}", window, one.sinks)
    return (*map(str, counts), ranges(positions))


def _behind_cells(layer: int, one: HeadContents) -> Cells:
    return (str(len(one.dropped)), ranges(one.dropped)) if len(one.dropped) else ()


def _steps(drops: Sequence[Dropped]) -> Mapping[int, list[int]]:
    """Return, by layer, after how many tokens each eviction was."""
    steps: dict[int, list[int]] = {}
    for drop in drops:
        steps.setdefault(drop.layer, []).append(drop.at)
    return steps


def _evicted_cells(steps: Mapping[int, list[int]], layer: int, one: HeadContents) -> Cells:
    if layer not in steps:
        return ()
    after = steps[layer]
    return (str(len(after)), _span(after[0], after[-1]), *_behind_cells(layer, one))


def ranges(positions: NDArray[np.int32]) -> str:
    """Return ascending numbers as ranges; of many the first and the last.

    Examples
    --------
    >>> ranges(np.array([0, 1, 2, 3, 7, 9, 10]))
    '0-3, 7, 9-10'
    >>> ranges(np.arange(0, 40, 2))
    '0, 2, 4, ... 15 more ..., 36, 38'
    """
    starts = np.flatnonzero(np.diff(positions, prepend=-2) > 1)
    ends = np.append(starts[1:], len(positions))
    first, last = positions[starts], positions[ends - 1] if len(positions) else positions
    parts = [_span(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    if len(parts) > MOST_RANGES:
        parts = [*parts[:3], f"... {len(parts) - 5} more ...", *parts[-2:]]
    return ", ".join(parts) or "none"


def _table(titles: Cells, layers: Sequence[Sequence[Cells]]) -> list[str]:
    """Lay cells out in columns, equal neighbours in one line: counts to the right, ranges to the left."""
    lines = [titles, *_merged(layers)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    to_left = [title in ("layers", "heads", "positions") for title in titles]
    texts = ["  ".join(map(_aligned, line, widths, to_left)).rstrip() for line in lines]
    if len(texts) > LONGEST_TABLE:
        half = LONGEST_TABLE // 2
        texts[half:-half] = [f"... {len(texts) - 2 * half} lines more; `heads` has them all ..."]
    return texts


def _merged(layers: Sequence[Sequence[Cells]]) -> Iterator[Cells]:
    """Give a line for neighbouring heads of equal cells, and one group of lines for layers of equal lines."""
    by_layer = [tuple((heads, *cells) for heads, cells in _runs(layer) if cells) for layer in layers]
    for span, lines in _runs(by_layer):
        yield from ((span, *line) for line in lines)


def _runs(items: Sequence[_Item]) -> Iterator[tuple[str, _Item]]:
    """Give each run of equal items once, with where it stands."""
    for item, run in groupby(enumerate(items), key=lambda numbered: numbered[1]):
        places = [place for place, _ in run]
        yield _span(places[0], places[-1]), item


def _aligned(cell: str, width: int, to_left: bool) -> str:
    return cell.ljust(width) if to_left else cell.rjust(width)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
