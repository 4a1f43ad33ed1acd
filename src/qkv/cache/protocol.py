"""What a model needs of a cache, whatever keeps it."""

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.shapes import Array, Keys, Queries, Values


class LayerRules(TypedDict, total=False):
    """A model's own rules for one layer, as for `qkv.attend`."""

    window: int | None
    scale: float | None
    softcap: float | None
    sinks: Any


class StepCache(Protocol):
    """All that a model sees of a cache: a step's tokens are appended to each layer, then attend in it."""

    @property
    def batch_size(self) -> int:
        """B."""
        ...

    def positions(self, num_tokens: int) -> NDArray[np.int64]:
        """Return at which rotary positions the next T tokens of each row stand: ``(B, T)``."""
        ...

    def append(self, layer: int, k: Keys, v: Values | None, lengths: Sequence[int] | None = None) -> None:
        """Put one step's keys and values behind those that every layer has."""
        ...

    def attend(
        self,
        layer: int,
        q: Queries,
        lengths: Sequence[int] | None = None,
        **rules: Unpack[LayerRules],
    ) -> Array:
        """Let the step's queries see what is held."""
        ...


class Cache(StepCache, Protocol):
    """Keys and values of B sequences."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence that have passed through every layer."""
        ...

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        ...

    def predict_nbytes(self, num_tokens: int) -> int:
        """Return what ``nbytes`` will be once the longest sequence has ``num_tokens``."""
        ...

    def trim(self, length: int) -> None:
        """Forget every token from position ``length`` on."""
        ...
