"""One layer's attention in each of its variants, on the same text, each with a real memory of it.

A layer remembers tokens and reads them: reading gives each its output. Projections are left out, but for the
two maps of latent attention that stand between a latent and its heads. Beside each variant stands its formula
over the whole text, every score written down, with which it must agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qkv.bench.textbook import textbook
from qkv.cache import PagedCache
from qkv.cache.contiguous import CacheShape, grown_capacity
from qkv.lab.planned import planned_nbytes
from qkv.ops import causal_mask, softmax, window_mask
from qkv.ops.latent import AbsorbedWeights, attend_absorbed
from qkv.ops.linear import LinearState, attend_linear, feature_map
from qkv.ops.projection import project, split_heads
from qkv.planner import ModelMemory, StateGroup, plan

Floats = NDArray[np.float32]

TEXTBOOK, MHA, GQA, GQA8, MQA, MLA, WINDOW, LINEAR = (
    *("textbook", "mha", "gqa", "gqa8", "mqa"),
    *("mla", "window", "linear"),
)


@dataclass(frozen=True)
class Sizes:
    """What the variants have in common: H heads of D, and the window W.

    The latent takes 4 D numbers and its rotary part D / 2, the proportions of DeepSeek-V2's heads.
    """

    H: int
    D: int
    W: int

    @property
    def latent(self) -> int:
        """Numbers of a token's latent."""
        return 4 * self.D

    @property
    def rope(self) -> int:
        """Numbers of the part of a key that is rotated, which all heads share."""
        return self.D // 2


@dataclass(frozen=True, eq=False)
class Text:
    """What a layer's projections make of S tokens.

    Attributes
    ----------
    q, k, v : (1, H, S, D)
    q_rope : (1, H, S, rope)
        The rotated part of the queries that meet latents; the other part is ``q``.
    latents : (1, 1, S, latent + rope)
        Each followed by the rotated part of the key.
    """

    q: Floats
    k: Floats
    v: Floats
    q_rope: Floats
    latents: Floats

    @classmethod
    def draw(cls, sizes: Sizes, S: int, random: np.random.Generator) -> "Text":
        """Draw normal numbers."""
        q, k, v = random.standard_normal((3, 1, sizes.H, S, sizes.D), np.float32)
        q_rope = random.standard_normal((1, sizes.H, S, sizes.rope), np.float32)
        latents = random.standard_normal((1, 1, S, sizes.latent + sizes.rope), np.float32)
        return cls(q, k, v, q_rope, latents)

    def part(self, start: int, end: int) -> "Text":
        """Return some of its tokens."""
        arrays = self.q, self.k, self.v, self.q_rope, self.latents
        return Text(*(one[:, :, start:end] for one in arrays))

    @property
    def length(self) -> int:
        """S."""
        return self.k.shape[2]


class Layer(Protocol):
    """A layer's attention with what it remembers."""

    @property
    def nbytes(self) -> int:
        """What it remembers takes."""
        ...

    def remember(self, text: Text) -> None:
        """Take tokens in, whatever their outputs are."""
        ...

    def read(self, text: Text) -> Floats:
        """Take tokens in and return their outputs: ``(1, H, S, D)``."""
        ...


class Textbook:
    """All heads' keys and values in arrays, and every score of theirs written down."""

    def __init__(self, sizes: Sizes) -> None:
        self.kv = np.empty((2, 1, sizes.H, 0, sizes.D), np.float32)
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Of the slots in use."""
        return self.kv[:, :, :, : self.length].nbytes

    def remember(self, text: Text) -> None:
        """Put keys and values behind those that are there."""
        end = self.length + text.length
        if end > self.kv.shape[3]:
            grown = np.empty((*self.kv.shape[:3], grown_capacity(end), self.kv.shape[4]), np.float32)
            grown[:, :, :, : self.length] = self.kv[:, :, :, : self.length]
            self.kv = grown
        self.kv[:, :, :, self.length : end] = text.k, text.v
        self.length = end

    def read(self, text: Text) -> Floats:
        """Attend by the formula; a text of several tokens is taken to be the first."""
        self.remember(text)
        k, v = self.kv[:, :, :, : self.length]
        return textbook(text.q, k, v, causal=text.length > 1)


class Grouped:
    """H query heads on the first G key heads, in pages, under a policy; all of them for G = H."""

    def __init__(self, shape: CacheShape, policy: str = "") -> None:
        self.cache = PagedCache(shape, policy)

    @property
    def nbytes(self) -> int:
        """Of its pages."""
        return self.cache.nbytes

    def remember(self, text: Text) -> None:
        """Append keys and values; only the last token looks back on them."""
        self._append(text)
        self.cache.attend(0, text.q[:, :, -1:])

    def read(self, text: Text) -> Floats:
        """Append keys and values, and let every token look back."""
        self._append(text)
        return self.cache.attend(0, text.q)

    def _append(self, text: Text) -> None:
        G = self.cache.shape.num_kv_heads
        self.cache.append(0, text.k[:, :G], text.v[:, :G])


class Latent:
    """Latents in pages, attended to in the absorbed form, as qkv's models do."""

    def __init__(self, shape: CacheShape, weights: AbsorbedWeights, scale: float) -> None:
        self.cache, self.weights, self.scale = PagedCache(shape), weights, scale

    @property
    def nbytes(self) -> int:
        """Of its pages."""
        return self.cache.nbytes

    def remember(self, text: Text) -> None:
        """Append latents; only the last token looks back on them."""
        self._attend(text, text.length - 1)

    def read(self, text: Text) -> Floats:
        """Append latents, and let every token look back."""
        return self._attend(text, 0)

    def _attend(self, text: Text, first: int) -> Floats:
        def append_and_attend(q: Floats, keys: Floats, _: Floats) -> Floats:
            self.cache.append(0, keys, None)
            return self.cache.attend(0, q, scale=self.scale)

        queries = text.q[:, :, first:], text.q_rope[:, :, first:]
        return attend_absorbed(*queries, text.latents, self.weights, append_and_attend)


class Linear:
    """One state for all tokens."""

    def __init__(self) -> None:
        self.state: LinearState | None = None

    @property
    def nbytes(self) -> int:
        """Of the state."""
        return 0 if self.state is None else self.state.nbytes

    def remember(self, text: Text) -> None:
        """Add tokens to the state."""
        self.read(text)

    def read(self, text: Text) -> Floats:
        """Add tokens to the state, and let every token look back."""
        output, self.state = attend_linear(text.q, text.k, text.v, self.state)
        return output


@dataclass(frozen=True)
class Variant:
    """One variant: its layer, its formula, and its plan.

    Attributes
    ----------
    start : callable
        Gives a layer that remembers nothing yet.
    formula : callable
        From a text to its outputs, nothing remembered.
    planned : callable
        From a number of tokens to the bytes the planner says they take.
    """

    start: Callable[[], Layer]
    formula: Callable[[Text], Floats]
    planned: Callable[[int], int]


def own_variants(sizes: Sizes, random: np.random.Generator) -> dict[str, Variant]:
    """Return every variant by name."""
    H, D, W = sizes.H, sizes.D, sizes.W
    all_heads = CacheShape(1, H, D)
    formula = partial(by_formula, G=H)
    return {
        TEXTBOOK: Variant(partial(Textbook, sizes), formula, partial(planned_nbytes, all_heads)),
        **{name: grouped(H, G, D) for name, G in ((MHA, H), (GQA, H // 4), (GQA8, H // 8), (MQA, 1))},
        MLA: latent(sizes, random),
        WINDOW: Variant(
            partial(Grouped, all_heads, f"window={W}"),
            partial(by_formula, G=H, W=W),
            partial(planned_nbytes, all_heads, policy=f"window={W}"),
        ),
        LINEAR: Variant(Linear, by_pairs, partial(planned_state, H, D)),
    }


def grouped(H: int, G: int, D: int) -> Variant:
    """Return attention of H query heads on G key heads."""
    shape = CacheShape(1, G, D)
    return Variant(partial(Grouped, shape), partial(by_formula, G=G), partial(planned_nbytes, shape))


def latent(sizes: Sizes, random: np.random.Generator) -> Variant:
    """Return latent attention, its two maps drawn."""
    H, D, latent = sizes.H, sizes.D, sizes.latent
    w_kv = random.standard_normal((2 * H * D, latent), np.float32) * np.float32(latent**-0.5)
    shape = CacheShape(1, 1, latent + sizes.rope, value_dim=latent, shares_values=True)
    weights, scale = AbsorbedWeights.of(w_kv, H, D).prepared(), (D + sizes.rope) ** -0.5
    return Variant(
        partial(Latent, shape, weights, scale), partial(by_heads, w_kv), partial(planned_nbytes, shape)
    )


def planned_state(H: int, D: int, num_tokens: int) -> int:
    """Return what the planner says a linear state takes."""
    state = StateGroup(1, recurrent_numbers=H * (D * D + D), channels=0, kernel=1)
    return plan(ModelMemory("linear", "", (), (state,)), context=num_tokens).bytes


def by_formula(text: Text, *, G: int, W: int | None = None) -> Floats:
    """Return softmax attention of a text to itself, all scores written down."""
    k, v = (np.repeat(one[:, :G], text.q.shape[1] // G, axis=1) for one in (text.k, text.v))
    return softmax_mean(text.q, k, v, W)


def by_heads(w_kv: Floats, text: Text) -> Floats:
    """Return latent attention with every head's keys and values made from the latents."""
    (_, H, S, D), rope = text.q.shape, text.q_rope.shape[-1]
    up = split_heads(project(text.latents[:, 0, :, :-rope], w_kv), H)  # 1 H S 2D
    k_rope = np.broadcast_to(text.latents[..., -rope:], (1, H, S, rope))
    q, k = (np.concatenate(two, axis=-1) for two in ((text.q, text.q_rope), (up[..., :D], k_rope)))
    return softmax_mean(q, k, up[..., D:])


def softmax_mean(q: Floats, k: Floats, v: Floats, W: int | None = None) -> Floats:
    """Return ``softmax(q k^T / sqrt(D)) v``, each token seeing itself and those before, W in all."""
    S = k.shape[2]
    visible = causal_mask(S) if W is None else window_mask(S, window=W)
    scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    return softmax(np.where(visible, scores, np.float32(-np.inf))) @ v


def by_pairs(text: Text) -> Floats:
    """Return linear attention in its quadratic form, a weight for every pair."""
    weights = np.tril(feature_map(text.q) @ feature_map(text.k).swapaxes(-1, -2))
    return weights / weights.sum(axis=-1, keepdims=True) @ text.v


def farthest(variants: Mapping[str, Variant], text: Text) -> float:
    """Return how far any variant lies from its formula at most: read whole, and its last token alone."""
    return max(apart(one, text) for one in variants.values())


def apart(variant: Variant, text: Text) -> float:
    """Return how far a layer's outputs lie from the formula's at most."""
    expected = variant.formula(text)
    whole, stepping = variant.start(), variant.start()
    stepping.remember(text.part(0, text.length - 1))
    last: Any = stepping.read(text.part(text.length - 1, text.length))
    errors = whole.read(text) - expected, last - expected[:, :, -1:]
    return max(float(np.abs(one).max()) for one in errors)
