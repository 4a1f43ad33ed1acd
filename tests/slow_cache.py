"""The slow twin of `qkv.cache.PagedCache`: a list of tokens per key head, and attention by plain loops.

It knows what a policy says and nothing of pages in memory. Where a score decides which tokens stay, it is
told what was kept, and checks that against scores of its own, in float64.
"""

from dataclasses import dataclass

import numpy as np

import eviction_reference
import reference
from qkv.cache.elements import element_named
from qkv.cache.policy import Policy
from qkv.cache.retention import OBSERVED_QUERIES, AlwaysKept, always_kept, layer_budgets
from qkv.ops.rotary import Rotary


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
    """One token of one key head: its place in the text, and what queries of later pages and of its own see."""

    position: int
    stored: tuple[np.ndarray, np.ndarray]
    came: tuple[np.ndarray, np.ndarray]
    encoded: bool = False
    score: float = 0.0


class SlowCache:
    """What one sequence holds, layer by layer and head by head."""

    def __init__(self, sizes: Sizes, policy: Policy, rotary: Rotary | None = None) -> None:
        self.sizes, self.policy, self.rotary = sizes, policy, rotary
        self.element, self.P = element_named(policy.element), policy.page_size
        self.heads: list[list[list[Token]]] = [[[] for _ in range(sizes.G)] for _ in range(sizes.L)]
        self.lengths = [0] * sizes.L
        self.budgets = [None] * sizes.L
        if policy.eviction is not None:
            name, budget = policy.eviction.name, policy.eviction.budget
            self.budgets = layer_budgets(name, budget, sizes.L, policy.sinks)

    def positions(self, layer: int) -> list[list[int]]:
        """Where in the text each head's tokens stand."""
        return [[token.position for token in head] for head in self.heads[layer]]

    def append(self, layer: int, k: np.ndarray, v: np.ndarray | None) -> None:
        """Put keys ``(G, T, D)`` and values behind what each head holds."""
        for g, head in enumerate(self.heads[layer]):
            for t in range(k.shape[1]):
                came = self._pair(k[g, t], None if v is None else v[g, t])
                if not self.element.closes_pages:
                    came = self._round_trip([came])[0]
                head.append(Token(self.lengths[layer] + t, came, came))
            self._encode_full_pages(head)
        self.lengths[layer] += k.shape[1]

    def attend(self, layer: int, q: np.ndarray, window: int | None = None, **rules) -> np.ndarray:
        """Return what queries ``(H, T, D)`` get; remember the weights: each head's ``(H/G, T, S)``."""
        group, outputs, self.weights = self.sizes.H // self.sizes.G, [], []
        self.q = q
        for g, head in enumerate(self.heads[layer]):
            keys, values = (
                np.array([getattr(token, form)[side] for form in ("stored", "came") for token in head])
                for side in (0, 1)
            )
            mask = self._mask(layer, g, q.shape[1], window)
            queries = q[None, g * group : (g + 1) * group]
            output, weights, _ = reference.attend(
                queries, keys[None, None], values[None, None], mask=mask, **self._of_group(rules, g, group)
            )
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
        eviction, held = self.policy.eviction, len(self.heads[layer][0])
        if eviction is None:
            return False
        if eviction.name in ("streaming", "h2o", "tova", "knorm"):
            return held >= self.budgets[layer] + self.P
        return self.q.shape[1] > 1 and held > self.budgets[layer]

    def scores(self, layer: int) -> list:
        """What each head's tokens are worth, by loops and in float64."""
        name, recent, heads = self.policy.eviction.name, self.stays(layer).recent, self.heads[layer]
        T = self.q.shape[1]
        if name == "streaming":
            return [[token.position for token in head] for head in heads]
        if name == "h2o":
            age = self.policy.eviction.scoring.by_age
            return [
                [t.score / (self.lengths[layer] - t.position if age else 1) for t in head] for head in heads
            ]
        if name == "tova":
            last = np.concatenate([weights[:, -1] for weights in self.weights])
            return eviction_reference.last_query(last, len(heads))
        if name == "knorm":
            return eviction_reference.key_norms(np.array([[t.came[0] for t in head] for head in heads]))
        if name == "expected":
            return self._expected(layer)
        window = min(OBSERVED_QUERIES, recent, T)
        sums = [weights[:, T - window :].sum(axis=1) for weights in self.weights]
        return [eviction_reference.observed(some, 1, recent)[0] for some in sums]

    def stays(self, layer: int) -> AlwaysKept:
        """How many first and last tokens are kept whatever their score."""
        return always_kept(self.policy.eviction.name, self.budgets[layer], self.policy.sinks)

    def _pair(self, k: np.ndarray, v: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return k, k[: self.sizes.D_v] if self.sizes.shares_values else v

    def _round_trip(self, pairs: list) -> list:
        """Store the keys and values of tokens together, and read them again."""
        k, v = (np.array([pair[side] for pair in pairs], np.float32) for side in (0, 1))
        k, v = (
            codec.decode(codec.encode(x)) for codec, x in ((self.element.keys, k), (self.element.values, v))
        )
        return [self._pair(*rows) for rows in zip(k, v, strict=True)]

    def _encode_full_pages(self, head: list[Token]) -> None:
        if not self.element.closes_pages:
            return
        for start in range(0, len(head) // self.P * self.P, self.P):
            page = head[start : start + self.P]
            if not all(token.encoded for token in page):
                for token, stored in zip(page, self._round_trip([t.came for t in page]), strict=True):
                    token.stored, token.encoded = stored, True

    def _mask(self, layer: int, g: int, T: int, model_window: int | None) -> np.ndarray:
        """Which tokens, as they are stored and as they came, each query sees: ``(T, 2 S)``."""
        head = self.heads[layer][g]
        windows = [w for w in (self.policy.window_of(layer, g), model_window) if w is not None]
        exempt = self.policy.window_of(layer, g) is not None or self.policy.eviction is not None
        stored, came = np.zeros((2, T, len(head)), bool)
        for t in range(T):
            own = len(head) - T + t
            page_start = own // self.P * self.P if self.element.closes_pages else 0
            for s in range(own + 1):
                distance = own - s if self.policy.rerotate else head[own].position - head[s].position
                near = all(distance < window for window in windows)
                if near or (exempt and s < self.policy.sinks):
                    (came if s >= page_start else stored)[t, s] = True
        return np.concatenate([stored, came], axis=1)

    def _of_group(self, rules: dict, g: int, group: int) -> dict:
        sinks = rules.get("sinks")
        return rules if sinks is None else {**rules, "sinks": sinks[g * group : (g + 1) * group]}

    def _add_scores(self, layer: int) -> None:
        if self.policy.eviction is None or self.policy.eviction.name != "h2o":
            return
        decay, T = self.policy.eviction.scoring.decay, self.q.shape[1]
        for head, weights in zip(self.heads[layer], self.weights, strict=True):
            for s, token in enumerate(head):
                token.score *= decay**T
                token.score += sum(decay ** (T - 1 - t) * weights[:, t, s].mean() for t in range(T))

    def _check_kept(self, layer: int, kept: list[list[int]]) -> None:
        sinks, recent = self.stays(layer)
        for head, scores, positions in zip(self.heads[layer], self.scores(layer), kept, strict=True):
            held = [token.position for token in head]
            assert len(positions) == self.budgets[layer]
            assert positions == sorted(set(positions) & set(held))
            always = held[:sinks] + held[len(held) - recent :]
            assert set(always) <= set(positions)
            chosen = {place: score for place, score in zip(held, scores, strict=True) if place not in always}
            worst = min((chosen[place] for place in chosen if place in positions), default=np.inf)
            best = max((chosen[place] for place in chosen if place not in positions), default=-np.inf)
            assert worst >= best - 1e-5 * max(1.0, abs(best)), "a token was dropped for one of lower score"

    def _keep(self, head: list[Token], positions: set[int]) -> None:
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
        return eviction_reference.rotation(self.rotary.frequencies, 1.0, distance, self.sizes.D, False)

    def _expected(self, layer: int) -> np.ndarray:
        """Expected attention with the statistics of the step's queries, turned over the next 512 positions."""
        D, T, heads = self.sizes.D, self.q.shape[1], self.heads[layer]
        end = len(heads[0]) if self.policy.rerotate else self.lengths[layer]
        back = [self._turn(end - T + t).T for t in range(T)]
        q = np.array([[back[t] @ head[t] for t in range(T)] for head in self.q.astype(np.float64)])
        first = max(0, 4 - (self.lengths[layer] - T))
        q = q[:, first:] if first < T else q
        ahead = sum(self._turn(position) for position in range(end, end + 512)) / 512
        mean = np.array([ahead @ head.mean(axis=0) for head in q])
        spread = [np.cov(head.T, bias=True).reshape(D, D) for head in q]
        covariance = np.array([ahead @ some @ ahead.T for some in spread])
        k, v = (np.array([[t.came[side] for t in head] for head in heads]) for side in (0, 1))
        return eviction_reference.expected(mean, covariance, k, v, sinks=self.stays(layer).sinks)
