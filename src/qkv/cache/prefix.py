"""Prefix sharing: full pages are found again by the next text that begins with the same tokens.

An entry of the index keeps the pages of P tokens, of every layer and head. While a sequence uses
them they stay; after that they are *idle*, and go when the pool needs their bytes, the longest
unused first. Whoever uses a page uses those before it, so a page never goes before those behind it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from qkv.cache.pool import NO_PAGE, Ids, PagePool
from qkv.cache.prefix_tree import Entry, PrefixTree, nearest_child, pages_of
from qkv.errors import OptionError, ShapeError


@dataclass(frozen=True)
class Hit:
    """Pages that hold the beginning of a text, with a reference to each: the caller frees all of them.

    Parameters
    ----------
    ids_per_page : tuple of int64 arrays
        The ids of each full page in turn, of the shape they were inserted in.
    num_tokens : int
        Tokens in those full pages.
    partial_ids : int64 array, optional
        The ids of one more page, which begins as the text goes on and holds other tokens behind that:
        to be copied, and then freed.
    partial_tokens : int
        How many leading tokens of that page are the text's, from 1 to P - 1; 0 without such a page.
    """

    ids_per_page: tuple[Ids, ...] = ()
    num_tokens: int = 0
    partial_ids: Ids | None = None
    partial_tokens: int = 0


@dataclass(frozen=True)
class PrefixStatistics:
    """Tokens of all texts looked up: found in full pages, found in part of one more, not found."""

    full_tokens: int = 0
    partial_tokens: int = 0
    missed_tokens: int = 0


class PrefixIndex:
    """Finds the pages of a pool that hold the beginning of a text.

    Parameters
    ----------
    pool : PagePool
        It asks the index for idle pages when its budget is used up.
    page_size : int
        P, tokens per page.
    hash : callable, optional
        Of a tuple. Any function gives the same results; a poor one gives them late.

    Attributes
    ----------
    idle_bytes : int
        Bytes of the entries that no sequence uses.
    statistics : PrefixStatistics

    Examples
    --------
    >>> pool = PagePool()
    >>> index = PrefixIndex(pool, page_size=4)
    >>> index.insert([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], pool.take(nbytes=100, count=2))
    >>> hit = index.lookup([1, 2, 3, 4, 5, 6, 99])
    >>> hit.num_tokens, hit.ids_per_page
    (4, (array(0),))
    >>> hit.partial_tokens, hit.partial_ids
    (2, array(1))
    """

    def __init__(self, pool: PagePool, page_size: int, hash: Callable[[tuple], int] = hash) -> None:
        if page_size < 1:
            raise OptionError(f"a page holds at least one token, not {page_size}")
        self.page_size = page_size
        self.idle_bytes = 0
        self.statistics = PrefixStatistics()
        self._pool = pool
        self._tree = PrefixTree(hash)
        self._with_first_id: dict[int, Entry] = {}
        self._first_ids = np.zeros(0, np.int64)  # of the entry that each page belongs to
        self._idle: OrderedDict[Entry, None] = OrderedDict()  # the longest unused first
        pool.keepers.append(self)

    @property
    def pool(self) -> PagePool:
        """Whose pages it keeps."""
        return self._pool

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of all pages remembered."""
        return len(self._with_first_id) * self.page_size

    def insert(
        self, tokens: ArrayLike, ids_per_page: Sequence[ArrayLike] | Ids, *, salt: str = "", adapter: str = ""
    ) -> None:
        """Remember the full pages of a text; where its tokens are known already, the known pages stay.

        Parameters
        ----------
        tokens : (S,) integers
            The text from its first token on. What does not fill a page is not remembered.
        ids_per_page : S // P arrays of ids
            The pages of each P tokens in turn, such as those of every layer and head, ``(L, G)``.
            Nobody may write to them from now on.
        salt, adapter : str
            Found only by those who give the same.

        Raises
        ------
        ShapeError
            If there are not as many arrays of ids as full pages of tokens, or one of them has no page.
        OptionError
            If a page is not held, or remembered for other tokens; then nothing has changed.
        """
        pages = pages_of(tokens, self.page_size)[: np.size(tokens) // self.page_size]
        if len(ids_per_page) != len(pages):
            raise ShapeError(
                f"{np.size(tokens)} tokens fill {len(pages)} pages of {self.page_size}; "
                f"expected the ids of so many, not of {len(ids_per_page)}"
            )
        known = self.last_known(tokens, salt=salt, adapter=adapter)
        self.insert_behind(known, pages[known.depth :], ids_per_page[known.depth :])

    def insert_behind(
        self, known: Entry, pages: Sequence[bytes], ids_per_page: Sequence[ArrayLike] | Ids
    ) -> Entry:
        """Remember the pages, not yet known, behind what `last_known` has found; return the last one's entry.

        Raises
        ------
        ShapeError, OptionError
            As for `insert`.
        """
        new = [np.array(ids, np.int64) for ids in ids_per_page]
        self._keep(new)
        for page, ids in zip(pages, new, strict=True):
            known = self._tree.add(known, page, ids)
            self._with_first_id[_first_id(ids)] = known
        return known

    def lookup(self, tokens: ArrayLike, *, salt: str = "", adapter: str = "") -> Hit:
        """Find the longest beginning of a text that is remembered, and take a reference to its pages.

        The logits behind a text need its last token computed. To have that left to do, look up
        ``tokens[:-1]``: of a text that is known in full, all but one token are then found.

        Parameters
        ----------
        tokens : (S,) integers
        salt, adapter : str
            As given to `insert`.

        Returns
        -------
        Hit
            The caller frees its pages, the partial one included.
        """
        pages = pages_of(tokens, self.page_size)
        root = self._tree.root(salt, adapter)
        full = self._tree.follow(root, pages)
        rest = b"".join(pages[len(full) : len(full) + 1])
        partial, partial_tokens = nearest_child(full[-1] if full else root, rest)
        hit = Hit(
            ids_per_page=tuple(entry.ids for entry in full),
            num_tokens=len(full) * self.page_size,
            partial_ids=partial.ids if partial else None,
            partial_tokens=partial_tokens,
        )
        self._pool.share(_joined(entry.ids for entry in ([*full, partial] if partial else full)))
        self._count(hit, np.size(tokens))
        return hit

    def last_known(
        self, tokens: ArrayLike, *, salt: str = "", adapter: str = "", known: Entry | None = None
    ) -> Entry:
        """Return the last entry of a text that is known from its first token on; takes no reference.

        Parameters
        ----------
        tokens : (S,) integers
        salt, adapter : str
            As given to `insert`.
        known : Entry, optional
            Of the same text, from earlier. While the index has it, only what is behind it is looked for.
        """
        if known is None or known.namespace != (salt, adapter) or not self._tree.holds(known):
            known = self._tree.root(salt, adapter)
        rest = np.asarray(tokens)[known.depth * self.page_size :]
        return [known, *self._tree.follow(known, pages_of(rest, self.page_size))][-1]

    def clear(self) -> None:
        """Forget everything; pages in use stay with those who use them."""
        for entry in [entry for entry in self._tree if entry.depth == 1]:
            self._forget(entry)

    def reclaim(self, nbytes: int) -> None:
        """Give back idle entries, the longest unused first, until that many bytes are freed."""
        enough = self._pool.nbytes - nbytes
        while self._idle and self._pool.nbytes > enough:
            self._forget(next(iter(self._idle)))

    def references_changed(self, ids: Ids) -> None:
        """Note which entries of these pages are idle from now on, and which no longer."""
        entries = [self._with_first_id[first] for first in np.unique(self._first_ids[ids]).tolist()]
        for entry in sorted(entries, key=lambda entry: entry.depth, reverse=True):
            if self._is_idle(entry):
                self._enter_idle(entry)
            else:
                self._leave_idle(entry)

    def check_integrity(self) -> None:
        """Raise AssertionError if what is written down in one place contradicts another."""
        self._tree.check_integrity()
        entries = list(self._tree)
        assert set(self._with_first_id.values()) == set(entries) and len(self._with_first_id) == len(entries)
        for entry in entries:
            named = entry.ids[entry.ids != NO_PAGE]
            assert (self._first_ids[named] == named[0]).all(), "a page is not known to be of its entry"
            assert self._with_first_id[_first_id(named)] is entry, "a page is of another entry"
            assert (self._pool.references(named) > 0).all(), "a page is remembered that was freed"
        assert set(self._idle) == set(filter(self._is_idle, entries)), "an entry is wrongly known as idle"
        assert self.idle_bytes == sum(map(self._nbytes, self._idle)), "the idle bytes do not sum up"

    def _keep(self, new: Sequence[Ids]) -> None:
        if not all((ids != NO_PAGE).any() for ids in new):
            raise ShapeError("expected at least one id for each page of tokens")
        self._pool.keep(_joined(new), self)
        for ids in new:
            ids.flags.writeable = False  # hits hand them out
            named = ids[ids != NO_PAGE]
            unknown = int(named.max()) + 1 - len(self._first_ids)
            if unknown > 0:
                more = np.full(max(unknown, len(self._first_ids)), NO_PAGE)
                self._first_ids = np.concatenate([self._first_ids, more])
            self._first_ids[named] = named[0]

    def _forget(self, entry: Entry) -> None:
        """Let go of an entry and of all behind it."""
        gone = self._tree.cut(entry)
        for forgotten in gone:
            self._leave_idle(forgotten)
            del self._with_first_id[_first_id(forgotten.ids)]
        self._pool.give_back(_joined(forgotten.ids for forgotten in gone), self)

    def _is_idle(self, entry: Entry) -> bool:
        return self._pool.references(entry.ids).max() == 1

    def _enter_idle(self, entry: Entry) -> None:
        self._idle[entry] = None
        self.idle_bytes += self._nbytes(entry)
        above = entry.parent
        while above is not None and above in self._idle:  # used with this one, so unused no longer than it
            self._idle.move_to_end(above)
            above = above.parent

    def _leave_idle(self, entry: Entry) -> None:
        if entry in self._idle:
            del self._idle[entry]
            self.idle_bytes -= self._nbytes(entry)

    def _nbytes(self, entry: Entry) -> int:
        return int(self._pool.sizes(entry.ids).sum())

    def _count(self, hit: Hit, num_tokens: int) -> None:
        past = self.statistics
        self.statistics = PrefixStatistics(
            full_tokens=past.full_tokens + hit.num_tokens,
            partial_tokens=past.partial_tokens + hit.partial_tokens,
            missed_tokens=past.missed_tokens + num_tokens - hit.num_tokens - hit.partial_tokens,
        )


def _first_id(ids: Ids) -> int:
    return int(ids[ids != NO_PAGE][0])


def _joined(ids: Iterable[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, np.int64), *(each.ravel() for each in ids)])
