"""What a model needs of a cache, whatever keeps it."""

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict, Unpack

from qkv.shapes import Array, Keys, Queries, Values


class LayerRules(TypedDict, total=False):
    """A model's own rules for one layer, as for `qkv.attend`."""

    window: int | None
    scale: float | None
    softcap: float | None
    sinks: Any


class Cache(Protocol):
    """Keys and values of B sequences; a step appends to each layer and then attends in it."""

    @property
    def batch_size(self) -> int:
        """B."""
        ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence that have passed through every layer."""
        ...

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        ...

    @property
    def next_positions(self) -> tuple[int, ...]:
        """At which rotary position each sequence's next token stands."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        ...

    def predict_nbytes(self, num_tokens: int) -> int:
        """Return what ``nbytes`` will be once the longest sequence has ``num_tokens``."""
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

    def trim(self, length: int) -> None:
        """Forget every token from position ``length`` on."""
        ...
