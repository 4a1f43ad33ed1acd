"""One forward pass's tokens: which ids, at which positions, remembered where."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache import StepCache
from qkv.errors import PromptError, ShapeError
from qkv.ops import attend
from qkv.shapes import Array, Keys, Queries, TokenIds, Values, Visible


@dataclass(frozen=True)
class Step:
    """B rows of T new tokens, packed to the left, with the cache they continue, if any.

    Attributes
    ----------
    ids, positions : (B, T) integers
        0 where a row has no token.
    lengths : list of int, or None
        How many tokens each row really has; ``None`` when all have T.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: list[int] | None
    cache: StepCache | None
    _order: NDArray[np.int64] | None
    _single: bool

    @classmethod
    def of(cls, ids: TokenIds, cache: StepCache | None, mask: Visible | None) -> "Step":
        """Check the ids and give each its position: behind what the cache already holds.

        Parameters
        ----------
        ids : (T,) or (B, T) integers
        cache : StepCache, optional
        mask : (B, T) bool, optional
            ``True`` = a real token; padding may stand on the left or on the right.

        Raises
        ------
        PromptError
            If there is no token.
        ShapeError
            If the axes do not fit together, or ids are not integers.
        """
        ids = np.asarray(ids)
        single = ids.ndim == 1
        ids = ids[None] if single else ids
        _check_ids(ids, cache, mask)
        B, T = ids.shape
        positions = np.broadcast_to(np.arange(T), (B, T)) if cache is None else cache.positions(T)
        if mask is None or np.all(mask):
            return cls(ids, positions, None, cache, None, single)
        order = np.argsort(~np.asarray(mask), axis=1, kind="stable")
        lengths = np.sum(mask, axis=1)
        real = np.arange(T) < lengths[:, None]
        packed = np.where(real, np.take_along_axis(ids, order, axis=1), 0)
        return cls(packed, np.where(real, positions, 0), lengths.tolist(), cache, order, single)

    @property
    def longest(self) -> int:
        """Tokens of the longest row after this step, earlier ones included."""
        return int(self.positions.max()) + 1

    def attend(self, layer: int, q: Queries, k: Keys, v: Values, **options: Any) -> Array:
        """Let each token see itself and what came before: in this step, and in the cache if there is one.

        Without a cache this is the plain causal attention that the cached path must equal.
        """
        if self.cache is None:
            return attend(q, k, v, causal=True, q_lengths=self.lengths, kv_lengths=self.lengths, **options)
        self.cache.append(layer, k, v, self.lengths)
        return self.cache.attend(layer, q, self.lengths, **options)

    def unpack(self, x: Array) -> Array:
        """Put each token's result, ``(B, T, ...)``, back where its id stood; padding gets 0."""
        if self.lengths is not None and self._order is not None:
            real = np.arange(x.shape[1]) < np.asarray(self.lengths)[:, None]
            unpacked = np.zeros_like(x)
            np.put_along_axis(unpacked, self._order[..., None], np.where(real[..., None], x, 0), axis=1)
            x = unpacked
        return x[0] if self._single else x

    def last(self, x: Array) -> Array:
        """Return each row's last real token's vector: ``(B, T, E)`` to ``(B, 1, E)``; 0 where it has none."""
        if self.lengths is None:
            return x[:, -1:]
        lengths = np.asarray(self.lengths)[:, None, None]
        return np.where(lengths > 0, np.take_along_axis(x, np.maximum(lengths, 1) - 1, axis=1), 0)


def _check_ids(ids: NDArray, cache: StepCache | None, mask: Visible | None) -> None:
    if ids.ndim != 2 or (ids.size and ids.dtype.kind not in "iu"):
        raise ShapeError(f"ids must be (T,) or (B, T) integers, not {ids.shape} of {ids.dtype}")
    if ids.size == 0:
        raise PromptError("there is no token to run; give at least one id")
    if cache is not None and cache.batch_size != ids.shape[0]:
        raise ShapeError(f"the cache holds B = {cache.batch_size} sequences, ids have {ids.shape[0]}")
    if mask is not None and (np.shape(mask) != ids.shape or np.asarray(mask).dtype != bool):
        raise ShapeError(f"mask must be bool of the ids' shape {ids.shape}, True = a real token")
    if mask is not None and not np.all(np.any(mask, axis=1)) and cache is None:
        raise PromptError("every row of the batch needs at least one real token")
