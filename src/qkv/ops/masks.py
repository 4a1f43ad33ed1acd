"""Who may see whom: causal masks, windows, lengths, and their intersection.

Every rule is a statement about the distance between a key's position and the query's own
position. Query ``t`` stands at key position ``t + offset``. Bottom-right alignment puts the
last query on the last key (``offset = S - T``, what a cache needs); top-left puts the first
query on the first key (``offset = 0``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from array_api_compat import device

from qkv.arguments import as_whole, check_array, shown, whole_number
from qkv.errors import OptionError, ShapeError
from qkv.ops.arrays import array_namespace, dtype_name
from qkv.shapes import Array, Visible

Causal: TypeAlias = bool | Literal["top_left"]
Window: TypeAlias = int | tuple[int | None, int | None] | None

BEYOND_ANY_TEXT = 2**31
"""Keys that no text has: positions are counted in 32 bits where an array library does so."""


def causal_mask(num_queries: int, num_keys: int | None = None, *, xp: Any = np) -> Array:
    """Return the mask under which a query sees its own key and all earlier ones.

    Parameters
    ----------
    num_queries : int
        T, the number of rows.
    num_keys : int, optional
        S, the number of columns; T when left out. The last query sees the last key.
    xp : module
        The array library to build the mask in.

    Returns
    -------
    Array
        ``(T, S)`` booleans, ``True`` = may attend.

    Raises
    ------
    OptionError
        If a number is negative or not whole.

    Examples
    --------
    >>> causal_mask(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    >>> causal_mask(2, 5).astype(int)
    array([[1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]])
    """
    num_queries, num_keys = _sizes(num_queries, num_keys)
    queries = xp.arange(num_queries)[:, None]
    keys = xp.arange(num_keys)[None, :]
    return keys <= queries + (num_keys - num_queries)


def window_mask(num_queries: int, num_keys: int | None = None, *, window: Window, xp: Any = np) -> Array:
    """Return the mask of a sliding window, as `attend` understands ``window``.

    Parameters
    ----------
    num_queries, num_keys : int
        T rows and S columns; S is T when left out. The last query stands on the last key.
    window : int or (int or None, int or None)
        ``W``: the query's own key and the W-1 before it (the Mistral and Hugging Face meaning).
        ``(left, right)``: so many keys before and after the query's own, which is always seen
        (the FlashAttention meaning); ``None`` on a side is no limit there.
    xp : module
        The array library to build the mask in.

    Returns
    -------
    Array
        ``(T, S)`` booleans, ``True`` = may attend.

    Raises
    ------
    OptionError
        If ``window`` is 0 or negative, or a number of positions is negative or not whole.

    Examples
    --------
    >>> window_mask(4, window=2).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    num_queries, num_keys = _sizes(num_queries, num_keys)
    left, right = window_reach(window)
    own = xp.arange(num_queries)[:, None] + (num_keys - num_queries)
    return _within(xp.arange(num_keys)[None, :] - own, left, right)


def window_reach(window: Window) -> tuple[int | None, int | None]:
    """Return how many keys before and after its own a query may see; ``None`` is no limit.

    Examples
    --------
    >>> window_reach(3), window_reach((4, None)), window_reach(None)
    ((2, 0), (4, None), (None, None))
    """
    if window is None:
        return None, None
    if (size := as_whole(window)) is not None:
        if size < 1:
            raise OptionError(f"window must be at least 1, not {window}; None means no window")
        return _reach(size - 1, window), 0
    if isinstance(window, str) or not (isinstance(window, Sequence) and len(window) == 2):
        raise OptionError(f"window must be an integer, (left, right) or None, not {shown(window)}")
    left, right = window
    return _reach(left, window), _reach(right, window)


def _reach(side: int | None, window: Window) -> int | None:
    """Return how many keys one side of a window has; ``None`` if it has all of any text."""
    if side is None:
        return None
    reach = as_whole(side)
    if reach is None or reach < 0:
        raise OptionError(
            f"window=(left, right) must be whole numbers that are not negative, not {shown(window)}; "
            "None is no limit, as in (None, None)"
        )
    return reach if reach < BEYOND_ANY_TEXT else None


def _sizes(num_queries: int, num_keys: int | None) -> tuple[int, int]:
    T = whole_number("num_queries", num_queries)
    return T, T if num_keys is None else whole_number("num_keys", num_keys)


@dataclass(frozen=True)
class Visibility:
    """Which keys each query may see: mask, causal order, window and lengths, intersected.

    Built once per call of `attend`; `tile` gives any rectangle of it, so that the tiled path
    never holds all T x S of it.
    """

    mask: Visible | None
    left: int | None
    right: int | None
    offsets: int | tuple[int, ...]
    """Key position of query 0; one per row of the batch where lengths are given."""
    q_lengths: tuple[int, ...] | None
    kv_lengths: tuple[int, ...] | None
    like: Array
    """Says which array library and device the tiles are made in."""

    @classmethod
    def of(
        cls,
        q: Array,
        k: Array,
        *,
        mask: Visible | None,
        causal: Causal,
        window: Window,
        q_lengths: Sequence[int] | None,
        kv_lengths: Sequence[int] | None,
    ) -> "Visibility":
        """Check the rules against ``q`` (B, H, T, D) and ``k`` (B, G, S, D) and combine them."""
        if not isinstance(causal, int | str | np.bool_) or causal not in (True, False, "top_left"):
            raise OptionError(f"causal must be True, False or 'top_left', not {shown(causal)}")
        (B, _, T, _), S = q.shape, k.shape[2]
        left, right = window_reach(window)
        if causal:
            right = 0 if right is None else min(right, 0)
        q_rows = _checked_lengths("q_lengths", q_lengths, B, T)
        kv_rows = _checked_lengths("kv_lengths", kv_lengths, B, S)
        offsets = 0 if causal == "top_left" else _bottom_right(B, T, S, q_rows, kv_rows)
        return cls(mask, left, right, offsets, q_rows, kv_rows, like=q)

    def tile(self, queries: slice, keys: slice) -> Visible | None:
        """Return the rectangle ``queries`` x ``keys`` as booleans; ``None`` if all of it is visible."""
        visible = None if self.mask is None else slice_broadcast(self.mask, queries, keys)
        if not self._all_in_reach(queries, keys):
            visible = _both(visible, _within(self.distance(queries, keys), self.left, self.right))
        if self.q_lengths is not None:
            visible = _both(visible, self._positions(queries)[:, None] < self._rows(self.q_lengths))
        if self.kv_lengths is not None:
            visible = _both(visible, self._positions(keys) < self._rows(self.kv_lengths))
        return visible

    def distance(self, queries: slice, keys: slice) -> Array:
        """Return key position minus the query's own position: 0 on the diagonal, negative before it."""
        offsets = self.offsets if isinstance(self.offsets, int) else self._rows(self.offsets)
        return self._positions(keys) - (self._positions(queries)[:, None] + offsets)

    def reachable_keys(self, queries: slice, num_keys: int) -> range:
        """Return a range outside which no query of ``queries`` sees a key, by order and lengths alone."""
        first, last = self._offset_range()
        start, stop = 0, num_keys if self.kv_lengths is None else max(self.kv_lengths, default=0)
        if self.left is not None:
            start = max(start, queries.start + first - self.left)
        if self.right is not None:
            stop = min(stop, queries.stop + last + self.right)
        return range(start, max(start, stop))

    def _all_in_reach(self, queries: slice, keys: slice) -> bool:
        """Whether order and window hide nothing of a rectangle, as for the single query of a decode step."""
        first, last = self._offset_range()
        furthest_before = keys.start - (queries.stop - 1 + last)
        furthest_after = keys.stop - 1 - (queries.start + first)
        left_reaches = self.left is None or furthest_before >= -self.left
        return left_reaches and (self.right is None or furthest_after <= self.right)

    def _offset_range(self) -> tuple[int, int]:
        if isinstance(self.offsets, int):
            return self.offsets, self.offsets
        return min(self.offsets, default=0), max(self.offsets, default=0)

    def _positions(self, span: slice) -> Array:
        return array_namespace(self.like).arange(span.start, span.stop, device=device(self.like))

    def _rows(self, numbers: tuple[int, ...]) -> Array:
        """Return one number per row of the batch as ``(B, 1, 1, 1)``."""
        xp = array_namespace(self.like)
        row = xp.asarray(numbers, dtype=xp.int32, device=device(self.like))
        return xp.reshape(row, (len(numbers), 1, 1, 1))


def check_mask(mask: Visible, shape: tuple[int, int, int, int]) -> Visible:
    """Return ``mask`` if it is boolean and broadcasts to ``(B, H, T, S)`` without ambiguity."""
    check_array("mask", mask, "that broadcasts to (B, H, T, S)")
    if dtype_name(mask) != "bool":
        raise TypeError(
            f"mask must be bool with True = may attend, not {dtype_name(mask)}; "
            f"scores to be added go to bias=, a 0/1 mask becomes bool with .astype(bool)"
        )
    return check_broadcast("mask", mask, shape)


def check_broadcast(name: str, array: Array, shape: tuple[int, int, int, int]) -> Array:
    """Return ``array`` if it broadcasts to ``(B, H, T, S)``; three axes are refused as ambiguous."""
    if array.ndim == 3:
        raise ShapeError(
            f"{name} of shape {tuple(array.shape)} is ambiguous: its first axis could be B or H; "
            f"write {name}[:, None] for one per sequence or {name}[None] for one per head"
        )
    wanted = shape[max(0, 4 - array.ndim) :]
    fits = array.ndim <= 4 and all(n in (1, full) for n, full in zip(array.shape, wanted, strict=True))
    if not fits:
        raise ShapeError(
            f"{name} must broadcast to (B, H, T, S) = {tuple(shape)}, but has shape {tuple(array.shape)}"
        )
    return array


def _within(distance: Array, left: int | None, right: int | None) -> Array:
    xp = array_namespace(distance)
    visible = xp.ones(distance.shape, dtype=xp.bool, device=device(distance))
    if left is not None:
        visible = visible & (distance >= -left)
    if right is not None:
        visible = visible & (distance <= right)
    return visible


def _both(one: Array | None, other: Array) -> Array:
    return other if one is None else one & other


def _bottom_right(
    B: int, T: int, S: int, q_rows: tuple[int, ...] | None, kv_rows: tuple[int, ...] | None
) -> int | tuple[int, ...]:
    if q_rows is None and kv_rows is None:
        return S - T
    lengths = zip(q_rows or (T,) * B, kv_rows or (S,) * B, strict=True)
    return tuple(keys - queries for queries, keys in lengths)


def _checked_lengths(
    name: str, lengths: Sequence[int] | None, B: int, longest: int
) -> tuple[int, ...] | None:
    if lengths is None:
        return None
    rows = tuple(map(as_whole, lengths)) if isinstance(lengths, Iterable) else ()
    if len(rows) != B or not all(length is not None and 0 <= length <= longest for length in rows):
        raise ShapeError(f"{name} must be B = {B} integers from 0 to {longest}, not {shown(lengths)}")
    return cast(tuple[int, ...], rows)


def slice_broadcast(array: Array, queries: slice, keys: slice) -> Array:
    """Slice the last two axes of a broadcastable array, leaving axes of size 1 whole."""
    if array.ndim > 0 and array.shape[-1] != 1:
        array = array[..., keys]
    if array.ndim > 1 and array.shape[-2] != 1:
        array = array[..., queries, :]
    return array
