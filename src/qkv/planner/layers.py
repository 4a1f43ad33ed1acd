"""What a model keeps between steps, layer by layer, before anyone decides how it is stored."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Reach = Literal["full", "sliding", "chunked", "cross"]
"""Which tokens a layer keeps: all; the last W; those of the current chunk; those of another input."""

RECURRENT_ITEMSIZE = 4
"""Bytes of a recurrent state's number: engines sum it up in float32, whatever the weights are."""
CONVOLUTION_ITEMSIZE = 2
"""Bytes of a short convolution's number: the model's own 16 bits."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that all keep the same numbers of the same tokens.

    Parameters
    ----------
    count : int
        How many layers.
    num_kv_heads : int
        G, key heads of one layer; 1 for a latent.
    key_dim, value_dim : int
        Numbers of one key and of one value. A latent (MLA) has a key alone: ``value_dim`` is 0.
    reach : {"full", "sliding", "chunked", "cross"}
    window : int, optional
        W of a sliding layer, the chunk of a chunked one.
    source_tokens : int, optional
        How many tokens a cross-attention layer keeps; as many as the context when left out.
    index_dim : int
        Numbers of the extra key by which sparse attention finds its tokens.

    Examples
    --------
    One of the 5 full layers of Gemma 3 4B, and one of the 29 that see 1,024 tokens:

    >>> full = LayerGroup(1, num_kv_heads=4, key_dim=256, value_dim=256)
    >>> local = LayerGroup(1, num_kv_heads=4, key_dim=256, value_dim=256, reach="sliding", window=1024)
    >>> full.numbers_per_token, full.kept(4096), local.kept(4096)
    (2048, 4096, 1024)
    """

    count: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    reach: Reach = "full"
    window: int | None = None
    source_tokens: int | None = None
    index_dim: int = 0

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are both worked out from one stored vector."""
        return self.value_dim == 0

    @property
    def numbers_per_token(self) -> int:
        """Numbers one layer keeps of one token."""
        return self.num_kv_heads * (self.key_dim + self.value_dim) + self.index_dim

    def kept(self, num_tokens: int) -> int:
        """Return how many tokens a layer holds once ``num_tokens`` have passed.

        A chunked layer holds fewer at times; this is its most.
        """
        if self.reach == "cross":
            return num_tokens if self.source_tokens is None else self.source_tokens
        return num_tokens if self.window is None else min(num_tokens, self.window)

    @property
    def without_window(self) -> "LayerGroup":
        """The same layers where every token is kept."""
        return self if self.window is None else replace(self, reach="full", window=None)


@dataclass(frozen=True)
class StateGroup:
    """Layers with a state of fixed size: recurrence, linear attention, short convolutions.

    Parameters
    ----------
    count : int
        How many layers.
    recurrent_numbers : int
        Numbers one layer sums up.
    channels, kernel : int
        Of a short convolution, which looks at a token and the ``kernel`` - 1 before it.
    """

    count: int
    recurrent_numbers: int
    channels: int
    kernel: int

    @property
    def bytes_per_layer(self) -> int:
        """Bytes of one layer's state of one sequence."""
        looked_back = self.channels * (self.kernel - 1)
        return RECURRENT_ITEMSIZE * self.recurrent_numbers + CONVOLUTION_ITEMSIZE * looked_back


@dataclass(frozen=True)
class ModelMemory:
    """What a model keeps between steps, and what its weights take.

    Parameters
    ----------
    name : str
    model_type : str
        As config.json spells it.
    layers : tuple of LayerGroup
        Layers with keys and values.
    states : tuple of StateGroup
        Layers with a state of fixed size.
    max_context : int, optional
        Tokens the model was made for, where that is known.
    num_query_heads : int
        H, for the arithmetic of attention.
    activation_numbers : int
        Numbers alive per token while a layer runs.
    vocab_size : int
        V.
    num_parameters, active_parameters : int, optional
        All weights, and those that work on each token.
    weight_bytes : int, optional
    notes : tuple of str
        What the reader of a plan should know, such as sizes the config leaves to the model's class.
    bounds : tuple of str
        Why the true figure may be smaller than the one given; empty where it is exact.
    config : mapping
        What config.json holds.
    folder : Path, optional
        Where the weights are, if they are on this machine.

    Examples
    --------
    >>> layers = (LayerGroup(32, num_kv_heads=8, key_dim=128, value_dim=128),)
    >>> ModelMemory("llama-3-8b", "llama", layers).numbers(4096) * 2  # bytes at 16 bits
    536870912
    """

    name: str
    model_type: str
    layers: tuple[LayerGroup, ...]
    states: tuple[StateGroup, ...] = ()
    max_context: int | None = None
    num_query_heads: int = 0
    activation_numbers: int = 0
    vocab_size: int = 0
    num_parameters: int | None = None
    active_parameters: int | None = None
    weight_bytes: int | None = None
    notes: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    folder: Path | None = field(default=None, compare=False)

    @property
    def num_layers(self) -> int:
        """Layers that keep keys and values."""
        return sum(group.count for group in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence that do not depend on its length."""
        return sum(state.count * state.bytes_per_layer for state in self.states)

    @property
    def has_windows(self) -> bool:
        """Whether some layers forget."""
        return any(group.window is not None for group in self.layers)

    def numbers(self, num_tokens: int) -> int:
        """Return how many numbers of keys and values one sequence of ``num_tokens`` keeps."""
        return sum(group.count * group.numbers_per_token * group.kept(num_tokens) for group in self.layers)


def gathered(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Put layers that are alike into one group, in the order in which they first come.

    Examples
    --------
    >>> one, other = LayerGroup(1, 2, 64, 64), LayerGroup(1, 2, 64, 64, "sliding", 128)
    >>> [(group.count, group.reach) for group in gathered([one, other, one])]
    [(2, 'full'), (1, 'sliding')]
    """
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        single = replace(layer, count=1)
        counts[single] = counts.get(single, 0) + layer.count
    return tuple(replace(single, count=count) for single, count in counts.items())
