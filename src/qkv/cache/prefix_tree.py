"""Texts cut into pages of P tokens and remembered as a tree: what several begin with is there once.

What a page holds depends on every token before it, so an entry is its own tokens behind another
entry. Its hash covers its tokens and the hash before (as in vLLM: Kwon et al. 2023,
https://arxiv.org/abs/2309.06180), so each page of a text is found with one look-up in one dictionary.
A hash only says where to look: what is found there is compared, so a collision costs time and never
shows one text to another. Before the first page stands the salt and the adapter that a text was
computed under; what was computed under others is never found.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.errors import ShapeError


@dataclass(eq=False, slots=True)
class Entry:
    """P tokens behind the parent's, and the pages that hold them; a root stands before the first."""

    parent: "Entry | None"
    namespace: tuple[str, str]  # salt, adapter
    key: int  # hash of the tokens up to here
    tokens: bytes
    ids: NDArray[np.int64]
    depth: int
    children: "list[Entry]" = field(default_factory=list)  # in the order of their tokens


class PrefixTree:
    """Entries by what they hold: finds, adds, and cuts off.

    Parameters
    ----------
    hash : callable
        Of a tuple.

    Examples
    --------
    >>> tree = PrefixTree()
    >>> first, second = pages_of([1, 2, 3, 4, 5, 6, 7], page_size=3)[:2]
    >>> root = tree.root("salt", "adapter")
    >>> entry = tree.add(tree.add(root, first, np.array([0])), second, np.array([1]))
    >>> [found.ids for found in tree.follow(root, pages_of([1, 2, 3, 4, 5, 9], page_size=3))]
    [array([0])]
    """

    def __init__(self, hash: Callable[[tuple], int] = hash) -> None:
        self._hash = hash
        self._roots: dict[tuple[str, str], Entry] = {}
        self._with_key: dict[int, list[Entry]] = {}

    def __iter__(self) -> Iterator[Entry]:
        """Every entry, each behind its parent; roots are none."""
        for root in self._roots.values():
            yield from _behind(root)

    def root(self, salt: str, adapter: str) -> Entry:
        """Return what stands before every text of this salt and adapter; it stays once something is added."""
        namespace = (salt, adapter)
        known = self._roots.get(namespace)
        return known or Entry(None, namespace, self._hash(namespace), b"", np.zeros(0, np.int64), depth=0)

    def holds(self, entry: Entry) -> bool:
        """Whether an entry can still be found; then so can all before it."""
        return entry in self._with_key.get(entry.key, ())

    def follow(self, behind: Entry, pages: Sequence[bytes]) -> list[Entry]:
        """Return the entries of a text's pages behind an entry or a root, as far as they are known."""
        found, parent = [], behind
        for tokens in pages:
            candidates = self._with_key.get(self._hash((parent.key, tokens)), ())
            same = [entry for entry in candidates if entry.parent is parent and entry.tokens == tokens]
            if not same:
                break
            parent = same[0]
            found.append(parent)
        return found

    def add(self, parent: Entry, tokens: bytes, ids: NDArray[np.int64]) -> Entry:
        """Put a page of tokens, not yet known, behind an entry or a root."""
        key = self._hash((parent.key, tokens))
        entry = Entry(parent, parent.namespace, key, tokens, ids, parent.depth + 1)
        insort(parent.children, entry, key=_tokens_of)
        self._with_key.setdefault(key, []).append(entry)
        if parent.parent is None:
            self._roots[parent.namespace] = parent
        return entry

    def cut(self, entry: Entry) -> list[Entry]:
        """Take out an entry and all behind it, which nobody could find any more; return them, it first."""
        parent = entry.parent
        assert parent is not None, "a root goes with its last child"
        del parent.children[bisect_left(parent.children, entry.tokens, key=_tokens_of)]
        if parent.parent is None and not parent.children:
            del self._roots[parent.namespace]
        gone = [entry, *_behind(entry)]
        for found in gone:
            self._remove_key(found)
        return gone

    def check_integrity(self) -> None:
        """Raise AssertionError if what is written down in one place contradicts another."""
        entries = list(self)
        assert all(root.children for root in self._roots.values()), "a root is left without entries"
        assert sum(map(len, self._with_key.values())) == len(set(entries)) == len(entries)
        for entry in entries:
            assert entry.parent is not None and entry in entry.parent.children
            assert entry.depth == entry.parent.depth + 1 and entry.namespace == entry.parent.namespace
            assert entry.key == self._hash((entry.parent.key, entry.tokens)), "a hash is not of this chain"
            assert entry in self._with_key[entry.key], "an entry cannot be found"
            tokens = [child.tokens for child in entry.children]
            assert tokens == sorted(set(tokens)), "children are out of order, or there twice"

    def _remove_key(self, entry: Entry) -> None:
        with_key = self._with_key[entry.key]
        with_key.remove(entry)
        if not with_key:
            del self._with_key[entry.key]


def pages_of(tokens: ArrayLike, page_size: int) -> list[bytes]:
    """Cut a text into pages, of which the last may be shorter; as bytes they are quick to compare and order.

    Raises
    ------
    ShapeError
        If it is not the tokens of one text, ``(S,)``.
    """
    row = np.asarray(tokens, np.int64)
    if row.ndim != 1:
        raise ShapeError(f"expected the tokens of one text, (S,), not of shape {row.shape}")
    text, width = row.tobytes(), page_size * row.itemsize
    return [text[start : start + width] for start in range(0, len(text), width)]


def nearest_child(parent: Entry, tokens: bytes) -> tuple[Entry | None, int]:
    """Return the child that begins most like these tokens, and how many leading tokens they share.

    Of children in order, it is one of the two between which these tokens would stand.
    """
    place = bisect_left(parent.children, tokens, key=_tokens_of)
    neighbours = parent.children[max(place - 1, 0) : place + 1]
    shared = [_num_shared(neighbour.tokens, tokens) for neighbour in neighbours]
    most = max(shared, default=0)
    return (neighbours[shared.index(most)], most) if most else (None, 0)


def _num_shared(a: bytes, b: bytes) -> int:
    num_bytes = min(len(a), len(b))
    same = np.frombuffer(a[:num_bytes], np.int64) == np.frombuffer(b[:num_bytes], np.int64)
    return int(np.logical_and.accumulate(same).sum())


def _behind(entry: Entry) -> list[Entry]:
    """Return all entries behind this one, each behind its parent."""
    behind = entry.children.copy()
    for found in behind:  # the list grows on the way
        behind += found.children
    return behind


def _tokens_of(entry: Entry) -> bytes:
    return entry.tokens
