"""Page tables: which pages of a pool hold one key head's tokens in several sequences, and who shares them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qkv.cache import PagedCache
from qkv.cache.pool import NO_PAGE
from qkv.cache.tables import SequenceTables
from qkv.errors import OptionError

Kind = Literal["own", "shared", "copied"]
"""A page that one sequence holds, one that several do, one that was copied to be written to."""


@dataclass(frozen=True)
class Page:
    """One page of a table.

    Attributes
    ----------
    id : int
        In the pool.
    references : int
        How many hold it: sequences, and an index of prefixes.
    tokens : int
        Slots in use.
    copy_of : int, optional
        The shared page that stood here in the map before: it was not this sequence's to write to.
    """

    id: int
    references: int
    tokens: int
    copy_of: int | None = None

    @property
    def kind(self) -> Kind:
        """Own, shared or copied."""
        if self.references > 1:
            return "shared"
        return "own" if self.copy_of is None else "copied"


@dataclass(frozen=True)
class PageMap:
    """The page tables of one layer and key head, and the pool behind them.

    Attributes
    ----------
    layer, head : int
    page_size : int
        P, tokens of a page.
    sequences : mapping of str to tuple of Page or None
        By name, each page in the order of the text; ``None`` where one has fallen behind a window.
    other_pages : int
        Pages that somebody uses for other layers and heads, or other sequences.
    idle_pages : int
        Pages that only an index of prefixes still holds: there for whoever needs them.
    free_pages : int, optional
        How many more the pool's budget has room for; ``None`` without a budget.
    """

    layer: int
    head: int
    page_size: int
    sequences: Mapping[str, tuple[Page | None, ...]]
    other_pages: int
    idle_pages: int
    free_pages: int | None

    @property
    def pages(self) -> tuple[Page, ...]:
        """Every page once, by its id."""
        found = {page.id: page for pages in self.sequences.values() for page in pages if page is not None}
        return tuple(found[page_id] for page_id in sorted(found))

    def holders(self, page_id: int) -> tuple[str, ...]:
        """Return the names of the sequences that hold a page."""
        return tuple(
            name
            for name, pages in self.sequences.items()
            if any(page is not None and page.id == page_id for page in pages)
        )

    @property
    def pages_unshared(self) -> int:
        """How many pages there would be if each sequence had its own."""
        return sum(page is not None for pages in self.sequences.values() for page in pages)

    @property
    def num_columns(self) -> int:
        """Pages of the longest table."""
        return max(len(pages) for pages in self.sequences.values())

    @property
    def title(self) -> str:
        """Whose pages these are."""
        return f"layer {self.layer}, key head {self.head}: pages of {self.page_size} tokens"

    def slots(self, place: int) -> str:
        """Return which slots of a head lie in its page at a place of the table, such as 8-15."""
        P = self.page_size
        return f"{P * place}-{P * place + P - 1}"


def page_map(
    caches: Mapping[str, PagedCache], layer: int = 0, head: int = 0, before: PageMap | None = None
) -> PageMap:
    """Take down the page tables of caches that share a pool.

    Parameters
    ----------
    caches : mapping of str to PagedCache
        By the names that their rows will have; the sequences of one cache are numbered.
    layer, head : int
        Of the model's key heads.
    before : PageMap, optional
        An earlier one of the same head: a page that stands where a shared one stood is marked as its copy.

    Returns
    -------
    PageMap

    Raises
    ------
    OptionError
        If there is no cache, no such head, or the caches have not one pool and one form of page.

    Examples
    --------
    A fork shares every page, until it writes to the last one:

    >>> from qkv.cache import CacheShape
    >>> cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=1, head_dim=2), "page=4")
    >>> k = np.ones((1, 1, 6, 2), np.float32)
    >>> cache.append(0, k, k)
    >>> output = cache.attend(0, k)
    >>> fork = cache.fork()
    >>> first = page_map({"text": cache, "fork": fork})
    >>> first.sequences["fork"]
    (Page(id=0, references=2, tokens=4, copy_of=None), Page(id=1, references=2, tokens=2, copy_of=None))
    >>> fork.append(0, k[:, :, :1], k[:, :, :1])
    >>> page_map({"text": cache, "fork": fork}, before=first).sequences["fork"][1]
    Page(id=2, references=1, tokens=3, copy_of=1)
    """
    cache = _check(caches, layer, head)
    sequences = {
        name: _pages(tables, layer, head, () if before is None else before.sequences.get(name, ()))
        for name, tables in _named(caches)
    }
    pool, nbytes = cache.pool, cache.layout.nbytes
    num_own = len({page.id for pages in sequences.values() for page in pages if page is not None})
    idle_pages = pool.idle_bytes // nbytes
    return PageMap(
        layer=layer,
        head=head,
        page_size=cache.layout.P,
        sequences=sequences,
        other_pages=pool.num_pages - num_own - idle_pages,
        idle_pages=idle_pages,
        free_pages=None if pool.free_bytes is None else pool.free_bytes // nbytes,
    )


def _check(caches: Mapping[str, PagedCache], layer: int, head: int) -> PagedCache:
    """Return one of the caches, by whose pages the others are counted."""
    if not caches:
        raise OptionError("a page map is of one cache or more; give them by name, as {'text': cache}")
    if len({(id(cache.pool), cache.layout.P, cache.layout.nbytes) for cache in caches.values()}) != 1:
        raise OptionError("a page map is of caches of one pool and one form of page; make them with pool=...")
    cache = next(iter(caches.values()))
    L, G = cache.shape.num_layers, cache.shape.num_kv_heads
    if not (0 <= layer < L and 0 <= head < G):
        raise OptionError(f"there are {L} layers of {G} key heads, counted from 0, so no {layer}.{head}")
    return cache


def _named(caches: Mapping[str, PagedCache]) -> Iterator[tuple[str, SequenceTables]]:
    for name, cache in caches.items():
        for row, tables in enumerate(cache.sequences):
            yield (name if cache.batch_size == 1 else f"{name} {row}"), tables


def _pages(
    one: SequenceTables, layer: int, head: int, before: tuple[Page | None, ...]
) -> tuple[Page | None, ...]:
    """Return the pages of one head in the order of the text."""
    P, held = one.layout.P, int(one.held[layer, head])
    ids = np.full(-(-held // P), NO_PAGE)
    for each in one.tables:  # where pages are encoded when full, the one under way lies in the second
        some = each.ids[layer, head, : len(ids)]
        ids[: len(some)][some != NO_PAGE] = some[some != NO_PAGE]
    references = one.pages.pool.references(ids).tolist()
    table: list[Page | None] = []
    for place, (page_id, count) in enumerate(zip(ids.tolist(), references, strict=True)):
        copy_of = _left_to_others(page_id, before[place : place + 1])
        page = Page(page_id, count, min(P, held - P * place), copy_of)
        table.append(None if page_id == NO_PAGE else page)
    return tuple(table)


def _left_to_others(page_id: int, before: tuple[Page | None, ...]) -> int | None:
    """Return the shared page that stood in a place before, if another stands there now."""
    return next((was.id for was in before if was and was.references > 1 and was.id != page_id), None)
