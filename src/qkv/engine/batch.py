"""One step of many requests as one row of tokens, with nothing between them.

A model runs ids ``(1, T)``, the tokens of one request behind those of another. What it does token by token
it does for all at once; where tokens meet, in attention, each segment goes to its own cache:

    request      a   b   c     d d d d d      T = 8
    positions   11  30   2     0 1 2 3 4
    attention   one call for   one call
                a, b and c     for d
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.cache import PagedCache, Policy
from qkv.cache.protocol import LayerRules
from qkv.shapes import Array, Keys, Queries, Values

if TYPE_CHECKING:
    from qkv.kernels.next_tokens import NextTokens


@dataclass(frozen=True)
class Segment:
    """The tokens of one text in a step.

    Attributes
    ----------
    ids : tuple of int
        At least one, behind what the cache holds.
    cache : PagedCache
        Of one sequence.
    """

    ids: tuple[int, ...]
    cache: PagedCache


class FlatBatch:
    """Hands each segment of a row of tokens to its own cache; to a model it is a cache of one sequence.

    Parameters
    ----------
    segments : sequence of Segment
        Of different texts.

    Attributes
    ----------
    ids : (1, T) int64
        What the model is to run: segments of one token first, those of the same policy together.
    spans : list of slice
        Where in that row each segment stands.

    Examples
    --------
    >>> from qkv.cache import CacheShape
    >>> cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=1, head_dim=2))
    >>> batch = FlatBatch([Segment((3, 5, 7), cache), Segment((9,), cache.beside())])
    >>> batch.ids, batch.spans, batch.positions(4)
    (array([[9, 3, 5, 7]]), [slice(1, 4, None), slice(0, 1, None)], array([[0, 0, 1, 2]]))
    """

    batch_size = 1

    def __init__(self, segments: Sequence[Segment]) -> None:
        groups = _grouped(segments)
        in_row = [place for group in groups for place in group]
        self._caches = [segments[place].cache for place in in_row]
        self._lengths = [len(segments[place].ids) for place in in_row]
        ends = accumulate(self._lengths)
        span_of = {
            place: slice(end - length, end)
            for place, length, end in zip(in_row, self._lengths, ends, strict=True)
        }
        self.spans = [span_of[place] for place in range(len(segments))]
        self.ids = np.array([[token_id for place in in_row for token_id in segments[place].ids]])
        self._parts = [
            _Part(
                _joined([segments[place].cache for place in group]),
                span_of[group[0]].start,
                span_of[group[-1]].stop,
            )
            for group in groups
        ]

    def positions(self, num_tokens: int) -> NDArray[np.int64]:
        """Return at which rotary position each token of the row stands: ``(1, T)``."""
        assert num_tokens == self.ids.shape[1], "the row is run whole"
        each = [cache.positions(count) for cache, count in zip(self._caches, self._lengths, strict=True)]
        return each[0] if len(each) == 1 else np.concatenate(each, axis=1)

    def at_once(
        self, num_tokens: int, windows: Sequence[int | None]
    ) -> "AbstractContextManager[NextTokens] | None":
        """Return a step in which each text has one token, if their caches can: see `qkv.cache.at_once`."""
        if len(self._parts) > 1 or num_tokens != len(self._lengths):
            return None
        return self._parts[0].cache.at_once(1, windows)

    def append(self, layer: int, k: Keys, v: Values | None, lengths: Sequence[int] | None = None) -> None:
        """Put each token's keys and values, ``(1, G, T, D)``, behind those that its own text has."""
        assert lengths is None, "no token of the row is padding"
        for part in self._parts:
            part.cache.append(layer, part.of(k), None if v is None else part.of(v))

    def attend(
        self,
        layer: int,
        q: Queries,
        lengths: Sequence[int] | None = None,
        **rules: Unpack[LayerRules],
    ) -> Array:
        """Let each token's query, ``(1, H, T, D)``, see its own text up to itself."""
        assert lengths is None, "no token of the row is padding"
        mixed = [part.in_row(part.cache.attend(layer, part.of(q), **rules)) for part in self._parts]
        return mixed[0] if len(mixed) == 1 else np.concatenate(mixed, axis=2)


@dataclass(frozen=True)
class _Part:
    """Tokens from ``start`` to before ``end`` of the row: many of one text, or one of each of several."""

    cache: PagedCache
    start: int
    end: int

    def of(self, x: Array) -> Array:
        """Return this part of ``(1, heads, T, D)`` as the cache takes it, ``(B, heads, T, D)``."""
        mine = x[:, :, self.start : self.end]
        return mine if self.cache.batch_size == 1 else np.swapaxes(mine, 0, 2)

    def in_row(self, x: Array) -> Array:
        """Return what the cache gave, ``(B, heads, T, D)``, as a part of the row."""
        return x if self.cache.batch_size == 1 else np.swapaxes(x, 0, 2)


def _grouped(segments: Sequence[Segment]) -> list[list[int]]:
    """Return the places of segments that attend together: those of one token by policy, others alone."""
    single: dict[Policy, list[int]] = {}
    longer: list[list[int]] = []
    for place, one in enumerate(segments):
        if len(one.ids) == 1:
            single.setdefault(one.cache.policy, []).append(place)
        else:
            longer.append([place])
    return [*single.values(), *longer]


def _joined(caches: Sequence[PagedCache]) -> PagedCache:
    return caches[0] if len(caches) == 1 else PagedCache.joined(caches)
