"""Where things lie in a page: one run of bytes that holds P tokens of one key head, keys and values.

The sections follow each other without a gap, those of larger items first, so that every number lies at
a multiple of its own size:

================  ===========  =========================================================
section           items        there for
================  ===========  =========================================================
k_scale, v_scale  float32      int8; int8-kivi (values)
positions         int32        pages that track their tokens: where each token stands
score             float32      pages that track their tokens: what eviction thinks of each
k_step, k_low     float16      int8-kivi, int4
v_step, v_low     float16      int4
k                 its element  every page: the keys, row by row
v                 its element  every page but a latent one, whose values are part of the keys
================  ===========  =========================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.codecs import Codec
from qkv.cache.elements import Element, element_named
from qkv.errors import OptionError, ShapeError

Page = NDArray[np.uint8]


@dataclass(frozen=True)
class Section:
    """Where one array lies in a page: its ``offset`` in bytes, and how the bytes are read."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.dtype.itemsize * prod(self.shape)


@dataclass(frozen=True)
class PageLayout:
    """What a page of P tokens of one key head holds, and where.

    Parameters
    ----------
    element : str
        How the numbers are stored, by its name in `qkv.cache.elements.ELEMENTS`.
    P : int
        Tokens of a page.
    D_k, D_v : int
        Numbers of a key and of a value.
    shares_values : bool
        Whether a value is the first ``D_v`` numbers of its key, as in latent attention; no value is stored.
    tracks : bool
        Whether a page holds the position and the score of each token beside it, as eviction needs.

    Raises
    ------
    OptionError
        If a size is not positive, is odd where int4 stores it, or a shared value is longer than its key.

    Examples
    --------
    An int8 page of 2 tokens and head size 4: two scales of 4 bytes and two rows of 4 bytes, for k and v.

    >>> layout = PageLayout("int8", P=2, D_k=4, D_v=4)
    >>> layout.nbytes
    32
    >>> page = np.zeros(layout.nbytes, np.uint8)
    >>> layout.write(page, 0, np.eye(2, 4), np.ones((2, 4)))
    >>> layout.open(page)["k"]
    array([[127,   0,   0,   0],
           [  0, 127,   0,   0]], dtype=int8)
    >>> k, v = layout.read(page)
    >>> v[1]
    array([1., 1., 1., 1.], dtype=float32)
    """

    element: str
    P: int
    D_k: int
    D_v: int
    shares_values: bool = False
    tracks: bool = False

    def __post_init__(self) -> None:
        for name in ("P", "D_k", "D_v"):
            if getattr(self, name) < 1:
                raise OptionError(f"a page needs {name} of at least 1, not {getattr(self, name)}")
        if self.shares_values and self.D_v > self.D_k:
            raise OptionError(
                f"a value that is part of its key cannot be longer: D_v = {self.D_v} > D_k = {self.D_k}"
            )
        _ = self.sections

    @cached_property
    def codecs(self) -> Element:
        """How keys and values are encoded and decoded."""
        return element_named(self.element)

    @cached_property
    def sections(self) -> Mapping[str, Section]:
        """Every section by name, in the order of their bytes."""
        sections, offset = {}, 0
        for name, dtype, shape in self._in_order():
            sections[name] = Section(offset, dtype, shape)
            offset += sections[name].nbytes
        return sections

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a page, to the byte."""
        return sum(section.nbytes for section in self.sections.values())

    @property
    def while_filling(self) -> "PageLayout":
        """The layout of a page that has fewer than its P tokens.

        Its own, except where pages are encoded when full: until then they hold float32.
        """
        return replace(self, element="float32") if self.codecs.closes_pages else self

    def open(self, page: Page) -> dict[str, NDArray[Any]]:
        """Return the sections of a page as named arrays, which share its bytes.

        Leading axes stay: pages ``(N, nbytes)`` give keys ``(N, P, D_k)``.

        Raises
        ------
        ShapeError
            If ``page`` is not ``(..., nbytes)`` of uint8.
        """
        if page.dtype != np.uint8 or page.shape[-1:] != (self.nbytes,):
            raise ShapeError(
                f"a page is {self.nbytes} bytes of uint8 here, not {page.dtype} of shape {page.shape}"
            )
        return {name: _view(page, section) for name, section in self.sections.items()}

    def write(self, page: Page, first_slot: int, k: NDArray[Any], v: NDArray[Any] | None = None) -> None:
        """Encode the rows of T tokens into the slots from ``first_slot`` on.

        Leading axes of pages and rows go together: ``(N, nbytes)`` takes ``(N, T, D_k)``.

        Parameters
        ----------
        page : (..., nbytes) uint8
        first_slot : int
        k : (..., T, D_k)
        v : (..., T, D_v)
            Left out where values are part of their keys.

        Raises
        ------
        ShapeError
            If the rows do not fit, or are fewer than P where a page is encoded as a whole.
        """
        self._check_rows(page, first_slot, k, v)
        slots = slice(first_slot, first_slot + k.shape[-2])
        sections = self.open(page)
        for name, part in self.encode(k, v).items():
            if self.codecs.closes_pages:
                sections[name][...] = part
            else:
                rest = (slice(None),) * (len(self.sections[name].shape) - 1)
                sections[name][..., slots, *rest] = part

    def read(self, page: Page) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the keys ``(..., P, D_k)`` and values ``(..., P, D_v)`` of pages ``(..., nbytes)``.

        Where values are part of their keys, the second array is a view of the first.
        Slots in which nothing was written give whatever their bytes say.
        """
        decoded = self._decode(self.open(page))
        return decoded[0], decoded[0][..., : self.D_v] if self.shares_values else decoded[1]

    @property
    def _sides(self) -> list[tuple[str, Codec, int]]:
        keys = ("k", self.codecs.keys, self.D_k)
        return [keys] if self.shares_values else [keys, ("v", self.codecs.values, self.D_v)]

    def _in_order(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        beside, codes = [], []
        for side, codec, D in self._sides:
            for part, (dtype, shape) in codec.forms(self.P, D).items():
                group = codes if part == "codes" else beside
                group.append((_section_name(side, part), dtype, shape))
        if self.tracks:
            beside.append(("positions", np.dtype(np.int32), (self.P,)))
            beside.append(("score", np.dtype(np.float32), (self.P,)))
        return sorted(beside, key=lambda section: -section[1].itemsize) + codes

    def encode(self, k: NDArray[Any], v: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
        """Return what is stored of keys ``(..., T, D_k)`` and values, by section (shared: ``None``)."""
        encoded = {}
        for (side, codec, _), x in zip(self._sides, (k, v), strict=False):
            for part, stored in codec.encode(np.asarray(x, np.float32)).items():
                encoded[_section_name(side, part)] = stored
        return encoded

    def _decode(self, sections: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        return [
            codec.decode({part: sections[_section_name(side, part)] for part in codec.forms(self.P, D)})
            for side, codec, D in self._sides
        ]

    def _check_rows(self, page: Page, first_slot: int, k: NDArray[Any], v: NDArray[Any] | None) -> None:
        T, free = k.shape[-2], self.P - first_slot
        if k.shape != (*page.shape[:-1], T, self.D_k) or not 0 <= first_slot <= self.P - T:
            raise ShapeError(
                f"from slot {first_slot} of {self.P} a page takes keys of at most {free} tokens, "
                f"{(*page.shape[:-1], free, self.D_k)}, not {k.shape}"
            )
        wanted = None if self.shares_values else (*k.shape[:-1], self.D_v)
        if (None if v is None else v.shape) != wanted:
            raise ShapeError(f"with keys {k.shape} go values {wanted}, not {None if v is None else v.shape}")
        if self.codecs.closes_pages and self.P != T:
            raise ShapeError(
                f"{self.element} encodes a page of {self.P} tokens as a whole, not {T}; "
                f"keep fewer in a page of layout.while_filling"
            )


def _section_name(side: str, part: str) -> str:
    return side if part == "codes" else f"{side}_{part}"


def _view(page: Page, section: Section) -> NDArray[Any]:
    run = page[..., section.offset : section.offset + section.nbytes]
    return run.view(section.dtype).reshape(*page.shape[:-1], *section.shape)
