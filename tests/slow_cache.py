"""The slow twin of `qkv.cache.PagedCache`: a list of tokens per key head, and attention by plain loops.

It knows what a policy says and nothing of pages in memory. Where a score decides which tokens stay, it is
told what was kept, and checks that against scores of its own, in float64.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import eviction_reference
import reference
from qkv.cache.elements import element_named
from qkv.cache.eviction import Eviction
from qkv.cache.policy import Policy
from qkv.cache.retention import OBSERVED_QUERIES, AlwaysKept, always_kept, layer_budgets
from qkv.ops.rotary import Rotary

Pair = tuple[np.ndarray, np.ndarray]
"""A key and its value."""


@dataclass(frozen=True)
class Sizes:
    """Of a model: L layers, G key heads, H query heads, keys of D numbers, values of D_v."""

    L: int
    G: int
    H: int
    D: int
    D_v: int
    shares_values: bool = False


@dataclass
class Token:
    """One token of one key head: where it stands, and what queries of later pages and of its own see."""

    position: int
    stored: Pair
    came: Pair
    encoded: bool = False
    score: float = 0.0


class SlowCache:
    """What one sequence holds, layer by layer and head by head."""

    def __init__(self, sizes: Sizes, policy: Policy, rotary: Rotary) -> None:
        self.sizes, self.policy, self.rotary = sizes, policy, rotary
        self.element, self.P = element_named(policy.element), policy.page_size
        self.heads: list[list[list[Token]]] = [[[] for _ in range(sizes.G)] for _ in range(sizes.L)]
        self.lengths = [0] * sizes.L
        self.q = np.zeros((sizes.H, 0, sizes.D))
        self.weights: list[np.ndarray] = []
        self.scale: float | None = None

    def positions(self, layer: int) -> list[list[int]]:
        """Where in the text each head's tokens stand."""
        return [[token.position for token in head] for head in self.heads[layer]]

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Put keys ``(G, T, D)`` and values behind what each head holds."""
        for head, keys, values in zip(self.heads[layer], k, v, strict=True):
            for t, came in enumerate(map(self._pair, keys, values)):
                if not self.element.closes_pages:
                    came = self._round_trip([came])[0]
                head.append(Token(self.lengths[layer] + t, came, came))
            self._encode_full_pages(head)
        self.lengths[layer] += k.shape[1]

    def attend(self, layer: int, q: np.ndarray, window: int | None = None, **rules: Any) -> np.ndarray:
        """Return what queries ``(H, T, D)`` get; remember the weights, ``(H/G, T, S)`` of each key head."""
        group, outputs = self.sizes.H // self.sizes.G, []
        self.q, self.weights, self.scale = q, [], rules.get("scale")
        for g, head in enumerate(self.heads[layer]):
            of_group = slice(g * group, (g + 1) * group)
            pairs = [token.stored for token in head] + [token.came for token in head]
            k, v = (np.array([pair[side] for pair in pairs])[None, None] for side in (0, 1))
            mask = self._mask(layer, g, q.shape[1], window)
            asked = {name: rule[of_group] if name == "sinks" else rule for name, rule in rules.items()}
            output, weights, _ = reference.attend(q[None, of_group], k, v, mask=mask, **asked)
            outputs.append(output[0])
            self.weights.append(weights[0, :, :, : len(head)] + weights[0, :, :, len(head) :])
        return np.concatenate(outputs)

    def finish(self, layer: int, kept: list[list[int]]) -> None:
        """End a layer's step: ``kept`` is what each head should hold now, by positions."""
        self._add_scores(layer)
        if self.must_evict(layer):
            self._check_kept(layer, kept)
            for head, positions in zip(self.heads[layer], kept, strict=True):
                self._keep(head, set(positions))
        assert self.positions(layer) == kept
        for head in self.heads[layer]:
            for token in head:
                token.came = token.stored if token.encoded else token.came

    def must_evict(self, layer: int) -> bool:
        """Whether the heads of a layer hold too much after a step."""
        if self.policy.eviction is None:
            return False
        held, budget = len(self.heads[layer][0]), self._budget(layer)
        if self._eviction.name in ("streaming", "h2o", "tova", "knorm"):
            return held >= budget + self.P
        return self.q.shape[1] > 1 and held > budget

    def scores(self, layer: int) -> Any:
        """What each head's tokens are worth, by loops and in float64."""
        name, recent, heads = self._eviction.name, self._stays(layer).recent, self.heads[layer]
        if name == "streaming":
            return self.positions(layer)
        if name == "h2o":
            end, by_age = self.lengths[layer], self._eviction.scoring.by_age
            return [[t.score / (end - t.position if by_age else 1) for t in head] for head in heads]
        if name == "tova":
            last = np.concatenate([weights[:, -1] for weights in self.weights])
            return eviction_reference.last_query(last, len(heads))
        if name == "knorm":
            return eviction_reference.key_norms(self._held(layer, side=0))
        if name == "expected":
            return self._expected(layer)
        window = min(OBSERVED_QUERIES, recent, self.q.shape[1])
        sums = [weights[:, weights.shape[1] - window :].sum(axis=1) for weights in self.weights]
        return [eviction_reference.observed(some, 1, recent)[0] for some in sums]

    @property
    def _eviction(self) -> Eviction:
        assert self.policy.eviction is not None
        return self.policy.eviction

    def _budget(self, layer: int) -> int:
        budgets = layer_budgets(self._eviction.name, self._eviction.budget, self.sizes.L, self.policy.sinks)
        return budgets[layer]

    def _stays(self, layer: int) -> AlwaysKept:
        return always_kept(self._eviction.name, self._budget(layer), self.policy.sinks)

    def _held(self, layer: int, side: int) -> np.ndarray:
        """Return the keys (0) or values (1) of every head as they came, if they still are that."""
        return np.array([[token.came[side] for token in head] for head in self.heads[layer]])

    def _pair(self, k: np.ndarray, v: np.ndarray) -> Pair:
        return k, k[: self.sizes.D_v] if self.sizes.shares_values else v

    def _round_trip(self, pairs: list[Pair]) -> list[Pair]:
        """Store the keys and values of tokens together, and read them again."""
        k, v = (np.array([pair[side] for pair in pairs], np.float32) for side in (0, 1))
        sides = (self.element.keys, k), (self.element.values, v)
        k, v = (codec.decode(codec.encode(x)) for codec, x in sides)
        return list(map(self._pair, k, v))

    def _encode_full_pages(self, head: list[Token]) -> None:
        for start in range(0, len(head) // self.P * self.P if self.element.closes_pages else 0, self.P):
            page = head[start : start + self.P]
            if not all(token.encoded for token in page):
                for token, stored in zip(page, self._round_trip([t.came for t in page]), strict=True):
                    token.stored, token.encoded = stored, True

    def _mask(self, layer: int, g: int, T: int, model_window: int | None) -> np.ndarray:
        """Which tokens, as they are stored and as they came, each query sees: ``(T, 2 S)``."""
        head, own_window = self.heads[layer][g], self.policy.window_of(layer, g)
        windows = [window for window in (own_window, model_window) if window is not None]
        exempt = self.policy.sinks if own_window is not None or self.policy.eviction is not None else 0
        stored, came = np.zeros((2, T, len(head)), bool)
        for t in range(T):
            own = len(head) - T + t
            page_start = own // self.P * self.P if self.element.closes_pages else 0
            for s in range(own + 1):
                distance = own - s if self.policy.rerotate else head[own].position - head[s].position
                if s < exempt or all(distance < window for window in windows):
                    (came if s >= page_start else stored)[t, s] = True
        return np.concatenate([stored, came], axis=1)

    def _add_scores(self, layer: int) -> None:
        if self.policy.eviction is None or self._eviction.name != "h2o":
            return
        decay, T = self._eviction.scoring.decay, self.q.shape[1]
        for head, weights in zip(self.heads[layer], self.weights, strict=True):
            for s, token in enumerate(head):
                token.score *= decay**T
                token.score += sum(decay ** (T - 1 - t) * weights[:, t, s].mean() for t in range(T))

    def _check_kept(self, layer: int, kept: list[list[int]]) -> None:
        sinks, recent = self._stays(layer)
        for head, scores, positions in zip(self.heads[layer], self.scores(layer), kept, strict=True):
            held = [token.position for token in head]
            always = held[:sinks] + held[len(held) - recent :]
            assert len(positions) == self._budget(layer)
            assert positions == sorted(set(positions) & set(held)) and set(always) <= set(positions)
            chosen = {place: score for place, score in zip(held, scores, strict=True) if place not in always}
            worst = min((chosen[place] for place in chosen if place in positions), default=math.inf)
            best = max((chosen[place] for place in chosen if place not in positions), default=-math.inf)
            assert worst >= best - 1e-5 * max(1.0, abs(best)), "a token was dropped for one of lower score"

    def _keep(self, head: list[Token], positions: set[int]) -> None:
        """Move the tokens at these positions together."""
        old_slots = [slot for slot, token in enumerate(head) if token.position in positions]
        kept = [head[slot] for slot in old_slots]
        for slot, (old_slot, token) in enumerate(zip(old_slots, kept, strict=True)):
            if self.policy.rerotate and slot != old_slot:
                k = self._turn(slot - old_slot) @ token.came[0]
                token.came = self._round_trip([(k, token.came[1])])[0]
            token.stored, token.encoded = token.came, False
        head[:] = kept
        self._encode_full_pages(head)

    def _turn(self, distance: int) -> np.ndarray:
        """Return the matrix by which a key is turned when it moves so far."""
        return eviction_reference.rotation(self.rotary.frequencies, 1.0, distance, self.sizes.D, False)

    def _expected(self, layer: int) -> np.ndarray:
        """Expected attention by the statistics of the step's queries, turned over the next 512 positions."""
        T, end = self.q.shape[1], self.lengths[layer]
        first = max(0, 4 - (end - T))  # the first of a text are left out, if any others are there
        end = len(self.heads[layer][0]) if self.policy.rerotate else end
        back = [self._turn(end - T + t).T for t in range(T)]
        q = np.array([[back[t] @ head[t] for t in range(T)] for head in self.q.astype(np.float64)])
        q = q[:, first:] if first < T else q
        ahead = np.mean([self._turn(position) for position in range(end, end + 512)], axis=0)
        mean = np.array([ahead @ head.mean(axis=0) for head in q])
        covariance = np.array([ahead @ np.cov(head.T, bias=True) @ ahead.T for head in q])
        k, v = (self._held(layer, side) for side in (0, 1))
        sinks = self._stays(layer).sinks
        return eviction_reference.expected(mean, covariance, k, v, scale=self.scale, sinks=sinks)
