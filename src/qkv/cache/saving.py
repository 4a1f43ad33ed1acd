"""Save what a cache holds and load it again, its pages byte for byte as they are.

In the file, ``pages`` and ``filling`` hold every page of the two kinds of page tables once, however many
sequences share it. A table is an array of row numbers into them, so that what was shared is shared again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkv.cache.cache_file import CacheFile, Rows, open_file, write_file
from qkv.cache.evicting import Dropped, adds_up_attention
from qkv.cache.identity import Identity
from qkv.cache.layout import Page, PageLayout
from qkv.cache.policy import Policy
from qkv.cache.pool import NO_PAGE, Ids, PagePool
from qkv.cache.room import require_room
from qkv.cache.tables import Counts, Marked, PageTable, SequenceTables
from qkv.errors import CacheFileError

COUNTS = ("held", "tokens", "before")
"""Arrays of a sequence that say how far it has come."""


def save_sequences(
    path: Path,
    identity: Identity,
    sequences: Sequence[SequenceTables],
    drops: Sequence[Sequence[Dropped]],
    windows: Counts,
) -> None:
    """Write sequences to a file.

    Parameters
    ----------
    path : Path
    identity : Identity
    sequences : B SequenceTables
    drops : B lists of Dropped
    windows : (L,) int64
        The model's own, by layer.

    Raises
    ------
    CacheFileError
        If the file cannot be written; one that was there before is as it was.
    """
    scored = adds_up_attention(Policy.parse(identity.policy).eviction)
    arrays: dict[str, Rows] = {"windows": windows}
    for name in _kinds(sequences):
        arrays |= _table_arrays(name, [getattr(one, name) for one in sequences], sequences, scored)
    for row, one in enumerate(sequences):
        arrays |= _sequence_arrays(row, one, drops[row])
    write_file(path, {**vars(identity), "sequences": str(len(sequences))}, arrays)


class SavedCache:
    """An open file of saved sequences, which may be put into the pages of a pool.

    Attributes
    ----------
    path : Path
    identity : Identity
    policy : Policy
    batch_size : int
    windows : (L,) int64
        The model's own, by layer.
    """

    def __init__(self, path: Path, file: CacheFile) -> None:
        self.path, self._file = path, file
        self.identity = Identity(*(file.texts[field.name] for field in fields(Identity)))
        self.batch_size = int(file.texts["sequences"])
        self.policy = Policy.parse(self.identity.policy)
        self.windows: Counts = file.array("windows")

    def check_identity(self, asked: Identity) -> None:
        """Refuse to be loaded as something else than what was saved.

        Raises
        ------
        CacheFileError
        """
        if difference := self.identity.difference(asked):
            name, saved, other = difference
            what = f"saved for the {name} {saved!r}, and is to be loaded for {other!r}"
            if name == "model":  # hashes say nothing to a reader
                what = "of another model or other weights"
            raise CacheFileError(
                f"{self.path} was {what}; load it for what it was saved for, or compute its text again"
            )

    def fill(self, sequences: Sequence[SequenceTables]) -> list[list[Dropped]]:
        """Put what was saved into as many sequences, which hold nothing yet; return what they had dropped.

        Raises
        ------
        CacheFull
            If the pages do not fit; then nothing has changed.
        """
        tables = {name: [getattr(one, name) for one in sequences] for name in _kinds(sequences)}
        nbytes = sum(some[0].layout.nbytes * self._file.num_rows(name) for name, some in tables.items())
        require_room(sequences[0].pages.pool, sequences[0].layout.nbytes, nbytes)
        try:
            for name, some in tables.items():
                self._fill_tables(name, some)
        except BaseException:
            for one in sequences:
                one.free()
            raise
        for row, one in enumerate(sequences):
            for name in COUNTS:
                setattr(one, name, self._file.array(f"{name}.{row}"))
            one.evicted_at = int(self._file.array(f"evicted_at.{row}")[0])
            one.length = self._length(row, one)
            one.scored_at = int(one.tokens.max())  # of all tokens, as far as the file tells
        return [self._drops(row) for row in range(self.batch_size)]

    def _fill_tables(self, name: str, tables: Sequence[PageTable]) -> None:
        pool, nbytes = tables[0].pool, tables[0].layout.nbytes
        with _taken(pool, nbytes, self._file.num_rows(name)) as ids:
            self._file.read_rows(name, map(pool.page, ids))
            for row, table in enumerate(tables):
                _enter(table, self._file.array(f"{name}.{row}"), ids)

    def _length(self, row: int, one: SequenceTables) -> int:
        name = f"length.{row}"  # which files of steps that all came to their end need not have
        return int(self._file.array(name)[0]) if name in self._file else int(one.tokens[-1])

    def _drops(self, row: int) -> list[Dropped]:
        events, positions = self._file.array(f"drops.{row}"), self._file.array(f"dropped_positions.{row}")
        by = str(self.policy.eviction)
        ends = np.cumsum(events[:, 2])
        return [
            Dropped(at, layer, positions[:, end - count : end], by)
            for (at, layer, count), end in zip(events.tolist(), ends.tolist(), strict=True)
        ]


@contextmanager
def open_saved(path: Path) -> Iterator[SavedCache]:
    """Open a file of saved sequences; it is open until the block is left.

    Raises
    ------
    CacheFileError
        If it cannot be read, is no saved cache, is of another version, damaged or cut short.
    """
    with open_file(path) as file:
        yield SavedCache(path, file)


class _SavedPages:
    """Pages of a pool as rows of a file; what holds no token is 0 there, and not what memory held before."""

    dtype = np.dtype(np.uint8)

    def __init__(self, pool: PagePool, layout: PageLayout, ids: Ids, counts: Counts, scored: bool) -> None:
        self.shape = (len(ids), layout.nbytes)
        self._pool, self._layout = pool, layout
        self._ids, self._counts, self._scored = ids, counts, scored

    def __iter__(self) -> Iterator[Page]:
        for page_id, count in zip(self._ids, self._counts.tolist(), strict=True):
            yield self._without_blanks(self._pool.page(page_id).copy(), count)

    def _without_blanks(self, page: Page, count: int) -> Page:
        sections = self._layout.open(page)
        if not self._layout.codecs.closes_pages:  # such a page is full, and its steps are not by token
            for section in sections.values():
                section[count:] = 0
        if self._layout.tracks and not self._scored:
            sections["score"][:] = 0
        return page


def _kinds(sequences: Sequence[SequenceTables]) -> tuple[str, ...]:
    return ("pages", "filling") if sequences[0].closes_pages else ("pages",)


def _table_arrays(
    name: str, tables: Sequence[PageTable], sequences: Sequence[SequenceTables], scored: bool
) -> Mapping[str, Rows]:
    pool, layout = tables[0].pool, tables[0].layout
    ids = np.unique(np.concatenate([table.ids[table.present] for table in tables]))
    counts = np.zeros(len(ids), np.int64)
    arrays: dict[str, Rows] = {name: _SavedPages(pool, layout, ids, counts, scored)}
    for row, (table, one) in enumerate(zip(tables, sequences, strict=True)):
        numbers = np.where(table.present, np.searchsorted(ids, table.ids), NO_PAGE)
        first_slots = np.arange(table.ids.shape[2]) * layout.P
        in_page = np.clip(one.held[..., None] - first_slots, 0, layout.P)
        np.maximum.at(counts, numbers[table.present], in_page[table.present])
        arrays[f"{name}.{row}"] = numbers
    return arrays


def _sequence_arrays(row: int, one: SequenceTables, drops: Sequence[Dropped]) -> Mapping[str, Rows]:
    positions: list[NDArray[np.int32]] = [np.zeros((one.held.shape[1], 0), np.int32)]
    positions += [event.positions for event in drops]
    events = [(event.at, event.layer, event.positions.shape[1]) for event in drops]
    counts = {f"{name}.{row}": getattr(one, name) for name in COUNTS}
    return counts | {
        f"length.{row}": np.array([one.length]),
        f"evicted_at.{row}": np.array([one.evicted_at]),
        f"drops.{row}": np.array(events, np.int64).reshape(-1, 3),
        f"dropped_positions.{row}": np.concatenate(positions, axis=1),
    }


@contextmanager
def _taken(pool: PagePool, nbytes: int, count: int) -> Iterator[Ids]:
    """Take pages and give up the references to them at the end; only those stay that others took."""
    ids = pool.take(nbytes, count)
    try:
        yield ids
    finally:
        pool.free(ids)


def _enter(table: PageTable, numbers: NDArray[np.int64], ids: Ids) -> None:
    """Enter the pages of a saved table, each with a reference of its own."""
    where = numbers != NO_PAGE
    table.pool.share(ids[numbers[where]])
    table.put(slice(None), Marked(0, where), ids[numbers[where]])
