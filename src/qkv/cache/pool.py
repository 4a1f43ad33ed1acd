"""The pool: pages of memory by number, shared by counting references, within a byte budget.

Who holds what:

========== =================== ====================================================
holder     takes a reference   gives it up
========== =================== ====================================================
a sequence ``take``, ``share`` ``free``; the last one drops the page's array
a `Keeper` ``keep``            ``give_back``, at the latest when asked to ``reclaim``
========== =================== ====================================================

A page that only its keeper still holds is *idle*: it may be of use to a later sequence, and is of
none to a present one, so its bytes are there for whoever needs them.
"""

from collections.abc import Callable
from operator import index
from typing import Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.arguments import as_whole, shown
from qkv.errors import CacheFull, OptionError, ShapeError

NO_PAGE = -1
"""Stands in a table of ids where there is no page: nothing to share or free, address 0."""

Ids = NDArray[np.int64]


class Keeper(Protocol):
    """One who keeps pages that no sequence may need again, such as an index of prefixes."""

    @property
    def idle_bytes(self) -> int:
        """Bytes that `reclaim` could give back now."""
        ...

    def reclaim(self, nbytes: int) -> None:
        """Give idle pages back until that many bytes are freed, the longest unused first."""
        ...

    def references_changed(self, ids: Ids) -> None:
        """Take note that others have shared or freed these pages, which this keeper keeps."""
        ...


def new_page(nbytes: int) -> NDArray[np.uint8]:
    """Return a page whose bytes are not yet anything."""
    return np.empty(nbytes, np.uint8)


class PagePool:
    """Pages of any size, each a NumPy array of bytes that is allocated when taken and dropped when freed.

    Ids are small integers; those of freed pages are used again. Arrays of ids may have any shape,
    and hold `NO_PAGE` where there is no page.

    Parameters
    ----------
    budget_bytes : int, optional
        The pages together never take more than this. ``None``: no limit.
    new_page : callable, optional
        Makes the page of so many bytes; one that fills it with NaN shows who reads what was never written.

    Attributes
    ----------
    nbytes, peak_nbytes : int
        Bytes of all pages held: now, and at most so far.
    keepers : list of Keeper
        Asked in this order to give idle pages back when the budget is used up.

    Examples
    --------
    >>> pool = PagePool(budget_bytes=1000)
    >>> ids = pool.take(nbytes=200, count=3)
    >>> ids.tolist(), pool.nbytes, pool.free_bytes
    ([0, 1, 2], 600, 400)
    >>> pool.share(ids[:2])
    >>> pool.free(ids)
    >>> pool.references(ids).tolist(), pool.nbytes
    ([1, 1, 0], 400)
    """

    def __init__(
        self,
        budget_bytes: int | None = None,
        new_page: Callable[[int], NDArray[np.uint8]] = new_page,
    ) -> None:
        if budget_bytes is not None and (as_whole(budget_bytes) is None or budget_bytes < 0):
            raise OptionError(
                f"a budget is 0 bytes or more, such as 64 * 2**20, or None for no limit, "
                f"not {shown(budget_bytes)}"
            )
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self.peak_nbytes = 0
        self.keepers: list[Keeper] = []
        self._new_page = new_page
        self._pages: list[NDArray[np.uint8] | None] = []
        self._free_ids: list[int] = []
        # One slot more than there are ids: the last is NO_PAGE's and stays as it is here.
        self._references = np.zeros(1, np.int64)
        self._addresses = np.zeros(1, np.int64)
        self._sizes = np.zeros(1, np.int64)
        self._keeper = np.full(1, -1)  # a place in `keepers`

    @property
    def num_pages(self) -> int:
        """Pages held by anyone."""
        return len(self._pages) - len(self._free_ids)

    @property
    def free_bytes(self) -> int | None:
        """What the budget has left, idle pages not counted; ``None`` without a budget."""
        return None if self.budget_bytes is None else self.budget_bytes - self.nbytes

    @property
    def idle_bytes(self) -> int:
        """Bytes that the keepers could give back now."""
        return sum(keeper.idle_bytes for keeper in self.keepers)

    def take(self, nbytes: int, count: int) -> Ids:
        """Allocate pages, each with one reference, the caller's.

        Parameters
        ----------
        nbytes : int
            Bytes of each page.
        count : int
            How many.

        Returns
        -------
        (count,) int64
            Their ids.

        Raises
        ------
        CacheFull
            If they do not fit, even with every idle page given back; then none is.
        """
        if nbytes < 1 or count < 0:
            raise OptionError(f"expected a count of pages of 1 byte or more, not {count} of {nbytes} bytes")
        self._make_room(nbytes, count)
        pages = [self._page_of(nbytes) for _ in range(count)]
        ids = self._next_ids(count)
        for page_id, page in zip(ids.tolist(), pages, strict=True):
            self._pages[page_id] = page
        self._addresses[ids] = [_address(page) for page in pages]
        self._sizes[ids] = nbytes
        self._references[ids] = 1
        self.nbytes += nbytes * count
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        return ids

    def share(self, ids: ArrayLike) -> None:
        """Add one reference to each page.

        Raises
        ------
        OptionError
            If a page is not held by anyone; then nothing has changed.
        """
        held = self._held(ids)
        np.add.at(self._references, held, 1)
        self._tell_keepers(held)

    def free(self, ids: ArrayLike) -> None:
        """Give up one reference to each page, the last page first; a page without any is dropped.

        Raises
        ------
        OptionError
            If a page has no such reference, or only its keeper's; then nothing has changed.
        """
        held = self._held(ids)
        np.subtract.at(self._references, held, 1)
        missing = self._references[held] < (self._keeper[held] >= 0)
        if missing.any():
            np.add.at(self._references, held, 1)
            raise OptionError(
                f"page {held[missing][0]} has fewer references than were to be given up; "
                "each reference is freed once"
            )
        self._tell_keepers(held)
        self._drop_unheld(held)

    def keep(self, ids: ArrayLike, keeper: Keeper) -> None:
        """Add the keeper's reference to each page; one of ``keepers``, which is told of changes from now on.

        Raises
        ------
        OptionError
            If a page is not held, kept already, or given twice; then nothing has changed.
        """
        held = self._held(ids)
        if (self._keeper[held] >= 0).any() or len(np.unique(held)) < len(held):
            raise OptionError("a page is kept once, by one keeper; some of these pages are kept already")
        self._references[held] += 1
        self._keeper[held] = self.keepers.index(keeper)

    def give_back(self, ids: ArrayLike, keeper: Keeper) -> None:
        """Give up the keeper's reference to each page; a page without any other is dropped.

        Raises
        ------
        OptionError
            If a page is not kept by this keeper, or given twice; then nothing has changed.
        """
        held = self._held(ids)
        if (self._keeper[held] != self.keepers.index(keeper)).any() or len(np.unique(held)) < len(held):
            raise OptionError("some of these pages are not this keeper's to give back")
        self._references[held] -= 1
        self._keeper[held] = -1
        self._drop_unheld(held)

    def dismiss(self, keeper: Keeper) -> None:
        """Ask a keeper no more.

        Raises
        ------
        OptionError
            If it keeps a page; then nothing has changed.
        """
        place = self.keepers.index(keeper)
        if (self._keeper == place).any():
            raise OptionError("a keeper that keeps pages gives them back before it is dismissed")
        del self.keepers[place]
        self._keeper[self._keeper > place] -= 1

    def page(self, id: SupportsIndex) -> NDArray[np.uint8]:
        """Return the bytes of a page, to read and to write.

        Raises
        ------
        OptionError
            If it is not held by anyone.
        """
        number = index(id)
        page = self._pages[number] if 0 <= number < len(self._pages) else None
        if page is None:
            raise _not_held(number)
        return page

    def addresses(self, ids: ArrayLike) -> Ids:
        """Return where in memory each page begins, for compiled code to read; 0 where there is no page.

        An address holds as long as the page is held.

        Raises
        ------
        OptionError
            If a page is not held by anyone.
        """
        self._held(ids)
        return self._addresses[np.asarray(ids, np.int64)]

    def references(self, ids: ArrayLike) -> Ids:
        """Return how many hold each page, its keeper included; 0 for one that was freed."""
        return self._references[self._known(ids)]

    def sizes(self, ids: ArrayLike) -> Ids:
        """Return the bytes of each page; 0 for one that was freed."""
        return self._sizes[self._known(ids)]

    def check_integrity(self) -> None:
        """Raise AssertionError if what is written down in one place contradicts another."""
        free = set(self._free_ids)
        used = {page_id for page_id, page in enumerate(self._pages) if page is not None}
        assert len(free) == len(self._free_ids), "an id is in the free list twice"
        assert not free & used and len(free | used) == len(self._pages), "each id is free or used, never both"
        self._check_used(np.array(sorted(used), np.int64))
        for column in (self._references, self._addresses, self._sizes, self._keeper + 1):
            assert not column[[*free, NO_PAGE]].any(), "something is still known of a page that was freed"
        assert self.nbytes <= self.peak_nbytes, "there are more bytes than there ever were"
        assert self.budget_bytes is None or self.nbytes <= self.budget_bytes, "over budget"

    def _check_used(self, used: Ids) -> None:
        pages = [self.page(page_id) for page_id in used.tolist()]
        starts, sizes = self._addresses[used], self._sizes[used]
        assert starts.tolist() == [_address(page) for page in pages], "an address is not its page's"
        assert sizes.tolist() == [page.nbytes for page in pages], "a size is not its page's"
        assert self.nbytes == sizes.sum(), "the bytes do not sum up"
        order = np.argsort(starts)
        overlapping = starts[order][1:] < (starts + sizes)[order][:-1]
        assert not overlapping.any(), "two pages lie on the same memory"
        kept = self._keeper[used] >= 0
        assert (self._references[used] >= np.maximum(1, kept)).all(), "a page is used by no one"

    def _make_room(self, nbytes: int, count: int) -> None:
        if self.budget_bytes is None:
            return
        allowed = self.budget_bytes - nbytes * count
        if self.nbytes - self.idle_bytes > allowed:
            raise CacheFull(
                count, nbytes, self.budget_bytes - self.nbytes, self.idle_bytes, self.budget_bytes
            )
        for keeper in self.keepers:
            if self.nbytes > allowed:
                keeper.reclaim(self.nbytes - allowed)
        assert self.nbytes <= allowed, "keepers gave back less than they said they could"

    def _page_of(self, nbytes: int) -> NDArray[np.uint8]:
        page = self._new_page(nbytes)
        if page.dtype != np.uint8 or page.shape != (nbytes,) or not page.flags.c_contiguous:
            raise ShapeError(
                f"new_page makes ({nbytes},) bytes in one piece, not {page.shape} of {page.dtype} "
                f"with strides {page.strides}"
            )
        return page

    def _next_ids(self, count: int) -> Ids:
        if count > len(self._free_ids):
            self._add_ids(max(count, len(self._pages)))
        first = len(self._free_ids) - count
        ids = np.array(self._free_ids[first:][::-1], np.int64)
        del self._free_ids[first:]
        return ids

    def _add_ids(self, count: int) -> None:
        """Make room for more pages; at least doubling keeps the cost of a page constant."""
        known = len(self._pages)
        self._free_ids[:0] = range(known + count - 1, known - 1, -1)
        self._pages += [None] * count
        self._references, self._addresses, self._sizes, self._keeper = (
            np.concatenate([column[:known], np.full(count + 1, column[NO_PAGE])])
            for column in (self._references, self._addresses, self._sizes, self._keeper)
        )

    def _known(self, ids: ArrayLike) -> Ids:
        ids = np.asarray(ids, np.int64)
        if ids.size and not NO_PAGE <= ids.min() <= ids.max() < len(self._pages):
            raise OptionError(
                f"expected ids of this pool, from 0 to {len(self._pages) - 1}, or {NO_PAGE} for no page, "
                f"not from {ids.min()} to {ids.max()}"
            )
        return ids

    def _held(self, ids: ArrayLike) -> Ids:
        """Return the ids that name pages, in one row."""
        known = self._known(ids).ravel()
        named = known[known != NO_PAGE]
        unheld = self._references[named] == 0
        if unheld.any():
            raise _not_held(int(named[unheld][0]))
        return named

    def _tell_keepers(self, ids: Ids) -> None:
        for place, keeper in enumerate(self.keepers):
            kept = ids[self._keeper[ids] == place]
            if kept.size:
                keeper.references_changed(kept)

    def _drop_unheld(self, ids: Ids) -> None:
        unheld = ids[self._references[ids] == 0]
        gone = list(dict.fromkeys(unheld[::-1].tolist()))  # each once, the last first
        for page_id in gone:
            self._pages[page_id] = None
        self.nbytes -= int(self._sizes[gone].sum())
        self._addresses[gone] = 0
        self._sizes[gone] = 0
        self._free_ids += gone


def _address(page: NDArray[np.uint8]) -> int:
    return page.__array_interface__["data"][0]


def _not_held(id: int) -> OptionError:
    return OptionError(f"page {id} is not held: it was freed, or never taken")
