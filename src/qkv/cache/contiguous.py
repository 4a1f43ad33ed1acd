"""The plain KV cache: one long run of slots per layer, doubled when full.

A step appends its keys and values layer by layer and attends with its queries. Doubling copies
each token at most once more on average; appending by concatenation would copy the whole cache
at every token, O(S^2) bytes over a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qkv.arguments import whole_number
from qkv.errors import OptionError, ShapeError
from qkv.ops import attend
from qkv.shapes import Array, Keys, Queries, Values

FIRST_CAPACITY = 16
"""Slots allocated by the first append, at least."""


@dataclass(frozen=True)
class CacheShape:
    """What one token costs: L layers x G key heads x (D of the key + D of the value).

    Attributes
    ----------
    value_dim : int, optional
        The values' D, where it is not the keys'.
    shares_values : bool
        Whether a value is the first numbers of its key, and so takes no bytes (latent attention).

    Raises
    ------
    OptionError
        If values are to be part of keys that are shorter.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: DTypeLike = np.float32
    value_dim: int | None = None
    shares_values: bool = False

    def __post_init__(self) -> None:
        if self.shares_values and self.value_size > self.head_dim:
            raise OptionError(
                f"values of {self.value_size} numbers cannot be the beginning of keys of {self.head_dim}; "
                f"try value_dim={self.head_dim} or less"
            )

    @property
    def value_size(self) -> int:
        """The values' D, the keys' unless said otherwise."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers.

        Examples
        --------
        LLaMA 3 8B in float16: 2 x 32 layers x 8 key heads x 128 numbers x 2 bytes.

        >>> CacheShape(32, 8, 128, np.float16).bytes_per_token
        131072

        DeepSeek-V2 in float16: 60 layers x 1 key of 512 + 64 numbers, which holds the value, x 2 bytes.

        >>> CacheShape(60, 1, 576, np.float16, value_dim=512, shares_values=True).bytes_per_token
        69120
        """
        numbers = self.head_dim + (0 if self.shares_values else self.value_size)
        return self.num_layers * self.num_kv_heads * numbers * np.dtype(self.dtype).itemsize


def grown_capacity(num_tokens: int, capacity: int = 0) -> int:
    """Return the slots a run of ``capacity`` has after growing to hold ``num_tokens``.

    Examples
    --------
    >>> [grown_capacity(n) for n in (0, 1, 16, 17, 100)]
    [0, 16, 16, 32, 128]
    """
    while capacity < num_tokens:
        capacity = max(FIRST_CAPACITY, 2 * capacity)
    return capacity


def check_rows(shape: CacheShape, batch_size: int, k: Keys, v: Values | None) -> None:
    """Raise `ShapeError` unless keys and values are of the cache's shape."""
    shares = shape.shares_values
    leading = (batch_size, shape.num_kv_heads, k.shape[-2])
    k_shape, v_shape = (*leading, shape.head_dim), (*leading, shape.value_size)
    got = tuple(k.shape), None if v is None else tuple(v.shape)
    if got != (k_shape, v_shape) and not (shares and got == (k_shape, None)):
        wanted = k_shape if k_shape == v_shape else f"{k_shape} and {v_shape}"
        raise ShapeError(
            f"the cache takes k and v of shape (B, G, T, D) = {wanted}, not {got[0]} and {got[1]}"
        )
    if shares and v is not None and v.size and not np.may_share_memory(k, v):
        raise ShapeError(
            f"the cache's values are the first {v_shape[-1]} numbers of its keys, not an array of their "
            f"own; pass k[..., :{v_shape[-1]}] or None"
        )


def real_counts(batch_size: int, T: int, lengths: Sequence[int] | None) -> NDArray[np.int64]:
    """Return how many leading tokens of each row of T are real; all, where that is not said.

    Raises
    ------
    ShapeError
        If these are not integers from 0 to T, one for each row.

    Examples
    --------
    >>> real_counts(2, 7, [3, 7]), real_counts(2, 7, None)
    (array([3, 7]), array([7, 7]))
    """
    if lengths is None:
        return np.full(batch_size, T)
    new = np.asarray(lengths)
    if new.shape != (batch_size,) or new.dtype.kind not in "iu" or not ((new >= 0) & (new <= T)).all():
        raise ShapeError(f"lengths are {batch_size} integers from 0 to {T}, not {lengths}")
    return new.astype(np.int64)


class ContiguousCache:
    """Keys and values of B sequences, each with its own length.

    Parameters
    ----------
    shape : CacheShape
        Of the model; see its ``cache_shape``.
    batch_size : int
        B, how many sequences step together.

    Examples
    --------
    >>> cache = ContiguousCache(CacheShape(num_layers=1, num_kv_heads=2, head_dim=4))
    >>> k = v = np.ones((1, 2, 3, 4), np.float32)
    >>> cache.append(0, k, v)
    >>> cache.attend(0, np.ones((1, 6, 3, 4), np.float32)).shape
    (1, 6, 3, 4)
    >>> cache.length, cache.nbytes == cache.predict_nbytes(3)
    (3, True)
    """

    def __init__(self, shape: CacheShape, batch_size: int = 1) -> None:
        whole_number("batch_size", batch_size, least=1)
        self.shape = shape
        self.batch_size = batch_size
        self._layers = [_Layer.empty(shape, batch_size) for _ in range(shape.num_layers)]
        self._lengths = np.zeros(batch_size, np.int64)  # of finished steps

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence that have passed through every layer."""
        return tuple(self._lengths.tolist())

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, spare slots included."""
        return sum(layer.nbytes for layer in self._layers)

    def predict_nbytes(self, num_tokens: int) -> int:
        """Return what ``nbytes`` will be once the longest sequence has ``num_tokens``.

        Counts from the shape alone: B x slots x `CacheShape.bytes_per_token`.
        """
        return self.batch_size * grown_capacity(num_tokens) * self.shape.bytes_per_token

    def positions(self, num_tokens: int) -> NDArray[np.int64]:
        """Return where the next T tokens of each sequence stand, ``(B, T)``: behind what it has."""
        return self._lengths[:, None] + np.arange(num_tokens)

    def append(self, layer: int, k: Keys, v: Values | None, lengths: Sequence[int] | None = None) -> None:
        """Put one step's keys and values behind those that every layer has.

        Its tokens count when its queries have attended in the last layer. A step that was broken off before
        leaves nothing behind: the next one writes over it.

        Parameters
        ----------
        layer : int
        k : (B, G, T, D)
        v : (B, G, T, D) or None
            The values' D may be another. Where values are the first numbers of the keys: ``None``, or
            that view of ``k``, which is not stored.
        lengths : B integers, optional
            How many leading positions of each row are real; the rest is not stored.

        Raises
        ------
        ShapeError
            If the arrays are not of the cache's shape, or ``lengths`` not of theirs.
        """
        check_rows(self.shape, self.batch_size, k, v)
        new = real_counts(self.batch_size, k.shape[2], lengths)
        self._layers[layer].append(self._lengths, new, k, v)

    def attend(self, layer: int, q: Queries, lengths: Sequence[int] | None = None, **options: Any) -> Array:
        """Let the step's queries see every token so far: causal, the last query on the last key.

        Parameters
        ----------
        layer : int
        q : (B, H, T, D)
        lengths : B integers, optional
            As given to `append`.
        **options
            Further rules of `qkv.attend`: window, scale, softcap, sinks, ...

        Returns
        -------
        (B, H, T, D)
            With the values' D.
        """
        store = self._layers[layer]
        S = int(store.lengths.max())
        ragged = lengths is not None or bool((store.lengths != S).any())
        rows = {"q_lengths": lengths, "kv_lengths": store.lengths.tolist()} if ragged else {}
        output = attend(q, store.k[:, :, :S], store.v[:, :, :S], causal=True, **rows, **options)
        if store is self._layers[-1]:
            self._lengths = store.lengths
        return output

    def trim(self, length: int) -> None:
        """Forget every token from position ``length`` on; sequences shorter than that keep all.

        The slots stay allocated for what comes next, so ``nbytes`` stays as it is.

        Raises
        ------
        OptionError
            If ``length`` is negative or beyond what is held.
        """
        whole_number("a length to trim to", length, most=self.length)
        self._lengths = np.minimum(self._lengths, length)
        for layer in self._layers:
            layer.lengths = self._lengths


class _Layer:
    """One layer's slots: k and v are ``(B, G, capacity, D)``, of which ``lengths`` are in use.

    Where values are the first numbers of the keys, v is a view of k.
    """

    def __init__(self, k: NDArray, v: NDArray, lengths: NDArray[np.int64], shares_values: bool) -> None:
        self.k, self.v, self.lengths, self.shares_values = k, v, lengths, shares_values

    @classmethod
    def empty(cls, shape: CacheShape, batch_size: int) -> "_Layer":
        k, v = (
            np.empty((batch_size, shape.num_kv_heads, 0, size), shape.dtype)
            for size in (shape.head_dim, shape.value_size)
        )
        return cls(k, v, np.zeros(batch_size, np.int64), shape.shares_values)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + (0 if self.shares_values else self.v.nbytes)

    def append(self, starts: NDArray, new: NDArray, k: Keys, v: Values | None) -> None:
        self._reserve(int((starts + new).max()))
        for row, (start, count) in enumerate(zip(starts, new, strict=True)):
            self.k[row, :, start : start + count] = k[row, :, :count]
            if v is not None and not self.shares_values:
                self.v[row, :, start : start + count] = v[row, :, :count]
        self.lengths = starts + new

    def _reserve(self, num_tokens: int) -> None:
        capacity = self.k.shape[2]
        grown = grown_capacity(num_tokens, capacity)
        if grown > capacity:
            value_size = self.v.shape[3]
            self.k = _grow(self.k, grown)
            self.v = self.k[..., :value_size] if self.shares_values else _grow(self.v, grown)


def _grow(slots: NDArray, capacity: int) -> NDArray:
    B, G, S, D = slots.shape
    grown = np.empty((B, G, capacity, D), slots.dtype)
    grown[:, :, :S] = slots
    return grown
