"""Page tables: which pages of a pool hold which tokens of one sequence.

Each layer and key head has a table of its own, for eviction leaves each with other tokens. Slot s of
a head is slot ``s % P`` of its page ``s // P``. While nothing was evicted the slot of a token is its
position; pages behind a window are then holes in the table, and no slot moves.

Pages that are encoded only when full lie in a second table while they fill, in float32, and for the
rest of the step in which they became full: its queries see their own page as it came.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.cache.layout import PageLayout
from qkv.cache.pool import NO_PAGE, Ids, PagePool
from qkv.cache.prefix_tree import Entry

Counts = NDArray[np.int64]


class Marked(NamedTuple):
    """Some pages of a table: of those from ``start`` on the ones that ``where``, (layers, G, n), marks.

    What a step touches lies together. A mask of the whole table would grow with the text, even where a
    window bounds what is held of it.
    """

    start: int
    where: NDArray[np.bool_]

    @property
    def span(self) -> slice:
        """The pages among which some are marked."""
        return slice(self.start, self.start + self.where.shape[2])

    @property
    def places(self) -> NDArray[np.int64]:
        """Layer (of those meant), head and page of each, in order: ``(count, 3)``."""
        return np.argwhere(self.where) + np.array([0, 0, self.start])


def between(first: Counts, end: Counts) -> Marked:
    """Mark the pages from ``first`` to before ``end``, both (layers, G).

    Examples
    --------
    >>> between(np.array([[5, 6, 9]]), np.array([[8, 7, 9]]))
    Marked(start=5, where=array([[[ True,  True,  True],
            [False,  True, False],
            [False, False, False]]]))
    """
    some = first < end
    stop = end.max(where=some, initial=0)
    pages = np.arange(first.min(where=some, initial=stop), stop)
    return Marked(int(stop) - len(pages), (first[..., None] <= pages) & (pages < end[..., None]))


class PageTable:
    """Ids and addresses of pages, ``(L, G, N)``, with room for more than are used.

    Attributes
    ----------
    pool : PagePool
    layout : PageLayout
    ids, addresses : (L, G, N) int64
        `NO_PAGE` and 0 where there is none.
    num_present : int
        How many there are.
    """

    def __init__(self, pool: PagePool, layout: PageLayout, num_layers: int, num_kv_heads: int) -> None:
        self.pool, self.layout = pool, layout
        self.ids = np.full((num_layers, num_kv_heads, 0), NO_PAGE)
        self.addresses = np.zeros((num_layers, num_kv_heads, 0), np.int64)
        self.num_present = 0

    @property
    def num_pages(self) -> int:
        """N, pages of each head that there is room for."""
        return self.ids.shape[2]

    @property
    def present(self) -> NDArray[np.bool_]:
        """Where there is a page."""
        return self.ids != NO_PAGE

    @property
    def nbytes(self) -> int:
        """Bytes of all its pages."""
        return self.num_present * self.layout.nbytes

    def missing(self, layers: slice, first: Counts, end: Counts) -> Marked:
        """Return which pages from ``first`` to before ``end``, both (layers, G), are not there yet."""
        wanted = between(first, end)
        known = self.ids[layers, :, wanted.span]
        wanted.where[..., : known.shape[2]] &= known == NO_PAGE
        return wanted

    def take(self, layers: slice, missing: Marked) -> None:
        """Take a page from the pool for each place that `missing` marks.

        Raises
        ------
        CacheFull
            If they do not fit; then nothing has changed.
        """
        count = int(missing.where.sum())
        if count:
            self.put(layers, missing, self.pool.take(self.layout.nbytes, count))

    def put(self, layers: slice, marked: Marked, ids: Ids) -> None:
        """Enter pages that are the caller's where there are none."""
        self._reserve(marked.span.stop)
        self.ids[layers, :, marked.span][marked.where] = ids
        self.addresses[layers, :, marked.span][marked.where] = self.pool.addresses(ids)
        self.num_present += len(ids)

    def drop(self, layers: slice, marked: Marked) -> None:
        """Free the marked pages; places without a page stay so."""
        some = self.ids[layers, :, marked.span]
        gone = marked.where[..., : some.shape[2]] & (some != NO_PAGE)
        if gone.any():
            self.pool.free(some[gone])
            some[gone] = NO_PAGE
            self.addresses[layers, :, marked.span][gone] = 0
            self.num_present -= int(gone.sum())

    def drop_from(self, layers: slice, first: Counts) -> None:
        """Free the pages from ``first``, (layers, G), on."""
        self.drop(layers, between(first, np.full_like(first, self.num_pages)))

    def count_shared(self, layers: slice, first: Counts, end: Counts) -> int:
        """Return how many of the pages from ``first`` to before ``end`` others hold too."""
        return int((self._references(layers, first, end) > 1).sum())

    def count_own(self, layers: slice, first: Counts, end: Counts) -> int:
        """Return how many of the pages from ``first`` to before ``end`` nobody else holds."""
        return int((self._references(layers, first, end) == 1).sum())

    def make_own(self, layers: slice, first: Counts, end: Counts) -> None:
        """Copy those pages from ``first`` to before ``end`` that others hold too, to be written to.

        Raises
        ------
        CacheFull
            If the copies do not fit; then nothing has changed.
        """
        marked = between(first, np.minimum(end, self.num_pages))
        some, shared = self.ids[layers, :, marked.span], marked.where
        shared[shared] = self.pool.references(some[shared]) > 1
        if not shared.any():
            return
        originals = some[shared]
        copies = self.pool.take(self.layout.nbytes, originals.size)
        for copy, original in zip(copies, originals, strict=True):
            self.pool.page(copy)[:] = self.pool.page(original)
        self.pool.free(originals)
        some[shared] = copies
        self.addresses[layers, :, marked.span][shared] = self.pool.addresses(copies)

    def copy(self) -> "PageTable":
        """Return a table of the same pages, which both hold from now on."""
        other = PageTable(self.pool, self.layout, *self.ids.shape[:2])
        self.pool.share(self.ids)
        other.ids, other.addresses = self.ids.copy(), self.addresses.copy()
        other.num_present = self.num_present
        return other

    def free(self) -> None:
        """Free every page."""
        self.drop(slice(None), Marked(0, np.ones(self.ids.shape, bool)))

    def _references(self, layers: slice, first: Counts, end: Counts) -> NDArray[np.int64]:
        """Return how many hold each of the pages from ``first`` to before ``end`` that are there."""
        marked = between(first, np.minimum(end, self.num_pages))
        return self.pool.references(self.ids[layers, :, marked.span][marked.where])

    def _reserve(self, num_pages: int) -> None:
        """Have room for so many pages per head; doubling, so that a token never copies the whole table."""
        known = self.num_pages
        if num_pages > known:
            room = ((0, 0), (0, 0), (0, max(num_pages, 2 * known) - known))
            self.ids = np.pad(self.ids, room, constant_values=NO_PAGE)
            self.addresses = np.pad(self.addresses, room)


def stacked_addresses(tables: Sequence[PageTable], layer: int) -> NDArray[np.int64]:
    """Return the addresses of a layer's pages in several tables, ``(B, G, N)``; 0 where there is no page.

    Not to be written to: those of a single table are its own.
    """
    if len(tables) == 1:
        return tables[0].addresses[layer : layer + 1]
    each = [table.addresses[layer] for table in tables]
    stacked = np.zeros((len(each), len(each[0]), max(some.shape[1] for some in each)), np.int64)
    for row, addresses in zip(stacked, each, strict=True):
        row[:, : addresses.shape[1]] = addresses
    return stacked


class SequenceTables:
    """All pages of one sequence, and how far each layer and head has come.

    Attributes
    ----------
    pages : PageTable
        As the policy stores them.
    filling : PageTable
        The same table, except where pages are encoded when full.
    held : (L, G) int64
        Slots in use: tokens of each head, holes behind a window counted.
    tokens : (L,) int64
        Tokens that have come to each layer, whether still held or not.
    length : int
        Tokens of finished steps, which have passed through every layer; a step is finished by its last
        layer's queries, and not before.
    before : (L, G) int64
        Slots that were in use before each layer's last step.
    behind : (L, G) int64
        The page before which all that a window no longer sees have been given back.
    evicted_at : int
        How many tokens there were when one was last evicted; 0 if never.
    scored_at : int
        How many there were when attention was last added to the scores of all; 0 if never.
    remembered : Entry, optional
        Up to where an index was last found to know the text, or told of it.
    owns_last_pages : bool
        Whether pages under way are known to be nobody else's; not known is as good as not so.
    """

    def __init__(self, pool: PagePool, layout: PageLayout, num_layers: int, num_kv_heads: int) -> None:
        self.pages = PageTable(pool, layout, num_layers, num_kv_heads)
        closes = layout.codecs.closes_pages
        self.filling = (
            PageTable(pool, layout.while_filling, num_layers, num_kv_heads) if closes else self.pages
        )
        self.held = np.zeros((num_layers, num_kv_heads), np.int64)
        self.tokens = np.zeros(num_layers, np.int64)
        self.length = 0
        self.before, self.behind = np.zeros_like(self.held), np.zeros_like(self.held)
        self.evicted_at = self.scored_at = 0
        self.owns_last_pages = False
        self.remembered: Entry | None = None

    @property
    def layout(self) -> PageLayout:
        """Of the pages as the policy stores them."""
        return self.pages.layout

    @property
    def closes_pages(self) -> bool:
        """Whether pages are encoded when full."""
        return self.filling is not self.pages

    def is_unfinished(self, layers: slice = slice(None)) -> bool:
        """Whether some layers hold of a step that has not come to its end: under way, or interrupted."""
        return set(self.tokens[layers].tolist()) != {self.length}

    @property
    def finished(self) -> Counts:
        """How many slots of each head hold tokens of finished steps, ``(L, G)``."""
        return np.where(self.tokens[:, None] != self.length, self.before, self.held)

    def finish_step(self) -> None:
        """Count the tokens of the step under way, which has come to its end in every layer."""
        self.length = int(self.tokens.min())

    def reaches_beyond(self, length: int) -> bool:
        """Whether there are more tokens than that in any layer."""
        return bool((self.tokens > length).any())

    @property
    def nbytes(self) -> int:
        """Bytes of all pages; one shared with another sequence counts in both."""
        return sum(table.nbytes for table in self.tables)

    @property
    def tables(self) -> Iterator[PageTable]:
        """Each table once."""
        yield self.pages
        if self.closes_pages:
            yield self.filling

    def fork(self) -> "SequenceTables":
        """Return a sequence of the same tokens that shares every page until one of the two writes to it."""
        other = SequenceTables.__new__(SequenceTables)
        other.pages = self.pages.copy()
        other.filling = self.filling.copy() if self.closes_pages else other.pages
        other.held, other.tokens = self.held.copy(), self.tokens.copy()
        other.before, other.behind = self.before.copy(), self.behind.copy()
        other.remembered = self.remembered
        other.length, other.evicted_at, other.scored_at = self.length, self.evicted_at, self.scored_at
        self.owns_last_pages = other.owns_last_pages = False
        return other

    def free(self) -> None:
        """Give back every page and hold nothing."""
        for table in self.tables:
            table.free()
        self.owns_last_pages, self.remembered = False, None
        self.held[:], self.tokens[:], self.before[:], self.behind[:] = 0, 0, 0, 0
        self.length = self.evicted_at = self.scored_at = 0

    def pages_for(self, count: int, layers: slice) -> tuple[Counts, Counts]:
        """Return which pages the next ``count`` tokens are written to: from the first to before the last."""
        P = self.layout.P
        first, end = self.held[layers] // P, -(-(self.held[layers] + count) // P)
        return (first, end) if count else (first, first)

    def cut(self, layers: slice, held: Counts) -> None:
        """Hold only the first ``held`` slots, (layers, G), and give back the pages behind them."""
        self.owns_last_pages = False
        self.held[layers] = held
        self.filling.drop_from(layers, -(-held // self.layout.P))
        if self.closes_pages:
            self.pages.drop_from(layers, held // self.layout.P)

    def check_integrity(self) -> None:
        """Raise AssertionError if a page is missing where tokens are, or present where none can be."""
        for table in self.tables:
            assert ((table.ids == NO_PAGE) == (table.addresses == 0)).all(), "an address without a page"
            ids = table.ids[table.present]
            assert len(ids) == table.num_present, "pages are miscounted"
            assert len(np.unique(ids)) == len(ids), "a page stands in the table twice"
            assert (table.addresses[table.present] == table.pool.addresses(ids)).all(), "a wrong address"
        assert (self.held <= self.tokens[:, None]).all(), "more tokens are held than there ever were"
        assert (self.tokens >= self.length).all(), "a token has passed through layers to which it never came"
        if self.owns_last_pages:
            under_way = self.held // self.layout.P, -(-self.held // self.layout.P)
            assert not self.filling.count_shared(slice(None), *under_way), "others hold a page under way"
        self._check_last_pages()
        if not self.is_unfinished():
            self._check_no_pages_behind()

    def _check_last_pages(self) -> None:
        full, part = np.divmod(self.held, self.layout.P)
        for layer, head in np.argwhere(part > 0):
            assert self.filling.ids[layer, head, full[layer, head]] != NO_PAGE, (
                "the page under way is missing"
            )

    def _check_no_pages_behind(self) -> None:
        P = self.layout.P
        ends = [(self.filling, -(-self.held // P))] + [(self.pages, self.held // P)] * self.closes_pages
        for table, end in ends:
            behind = np.arange(table.num_pages) >= end[..., None]
            assert not (table.present & behind).any(), "a page is behind the last token"
