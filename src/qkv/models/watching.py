"""Look into a model while it reads: what each head attends to, and what changes if it may not.

A model sees attention through two calls of a cache, so a cache that looks on sees all of it, in any
family, and can change it: no model file knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.cache.contiguous import CacheShape, check_rows
from qkv.cache.protocol import LayerRules
from qkv.errors import PromptError, ShapeError
from qkv.models.model import Model
from qkv.ops import attend
from qkv.ops.dense import grouped_product
from qkv.shapes import Keys, Queries, TokenIds, Values

Floats = NDArray[np.floating]
Change = Callable[[int, Floats], Floats]
"""Takes a layer and its weights (B, H, T, T), and returns those to attend with in their place."""
Look = Callable[[int, Floats, Floats, Floats, LayerRules], Floats]
"""Takes a layer with its q (1, H, T, D), k and v (1, G, T, D) and rules, and returns what it attends to."""


@dataclass(frozen=True, eq=False)
class Watched:
    """What a model did with one text.

    Attributes
    ----------
    logits : (T, V)
    weights : (L, H, T, T)
        How each token's query shares its attention among the tokens up to its own; each row sums to
        1, or to less where a learned sink takes a part.
    q : (L, H, T, D)
        Queries, turned by their positions.
    k : (L, G, T, D)
        Keys, turned likewise.
    v : (L, G, T, D)
    """

    logits: Floats
    weights: Floats
    q: Floats
    k: Floats
    v: Floats


def watch(model: Model, ids: TokenIds, change: Change | None = None) -> Watched:
    """Run a model on one text and keep what its heads did, in O(L H T^2) memory.

    Parameters
    ----------
    model : Model
    ids : (T,) integers
    change : callable, optional
        What to attend with in place of a layer's weights: to leave a head out, to level it, to
        shuffle it. Later layers then see what comes of it.

    Returns
    -------
    Watched

    Raises
    ------
    PromptError
        If there is no token.
    ShapeError
        If the ids are a batch, or a change returns weights of another shape.

    Examples
    --------
    ::

        model = qkv.load()
        ids = model.tokenizer.encode("To be, or not to be")
        watch(model, ids).weights[0, 3]  # layer 0, head 3


        def without_head_3(layer, weights):
            weights[:, 3] = 0
            return weights


        watch(model, ids, without_head_3).logits
    """
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise ShapeError(f"expected the ids of one text, (T,), not {ids.shape}; watch one after the other")
    if not ids.size:
        raise PromptError("there is no token to watch; give at least one id")
    seen: list[tuple[Floats, Floats, Floats, Floats]] = []

    def look(layer: int, q: Floats, k: Floats, v: Floats, rules: LayerRules) -> Floats:
        output, weights = attend(q, k, v, causal=True, return_weights=True, **rules)
        seen.append((q[0], k[0], v[0], weights[0]))
        return output if change is None else grouped_product(_changed(change, layer, weights), v)

    logits = model.unembed(model.hidden(ids, PassingStep(model.cache_shape, look)))
    q, k, v, weights = (np.stack(arrays) for arrays in zip(*seen, strict=True))
    return Watched(np.asarray(logits), weights, q, k, v)


class PassingStep:
    """A cache for the only step of one text, which shows each layer's queries, keys and values and lets go.

    Parameters
    ----------
    shape : CacheShape
    look : callable
        Attends, and keeps what it wants to.
    """

    def __init__(self, shape: CacheShape, look: Look) -> None:
        self.shape, self.look = shape, look
        self._keys_and_values: tuple[Floats, Floats] | None = None

    @property
    def batch_size(self) -> int:
        """One."""
        return 1

    def positions(self, num_tokens: int) -> NDArray[np.int64]:
        """Return 0 to T - 1: there is nothing before."""
        return np.arange(num_tokens)[None]

    def append(self, layer: int, k: Keys, v: Values | None, lengths: Sequence[int] | None = None) -> None:
        """Take a layer's keys and values, (1, G, T, D) each, in place of the last layer's."""
        check_rows(self.shape, self.batch_size, k, v)
        assert lengths is None, "one text has no padding"
        self._keys_and_values = k, k[..., : self.shape.value_size] if v is None else v

    def attend(
        self, layer: int, q: Queries, lengths: Sequence[int] | None = None, **rules: Unpack[LayerRules]
    ) -> Floats:
        """Let the layer be looked at while it attends."""
        assert self._keys_and_values is not None, "a layer's keys come before its queries"
        return self.look(layer, q, *self._keys_and_values, rules)


def _changed(change: Change, layer: int, weights: Floats) -> Floats:
    changed = change(layer, weights.copy())
    if changed.shape != weights.shape:
        raise ShapeError(f"a change must return weights of shape {weights.shape}, not {changed.shape}")
    return changed
