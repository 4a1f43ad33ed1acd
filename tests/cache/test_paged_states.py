"""Caches of several policies on one pool, in any order of steps: each holds its own tokens and no others'."""

from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_cases import positions
from qkv.cache import CacheShape, PagedCache, PagePool
from qkv.cache.elements import ELEMENTS
from qkv.cache.evicting import decoded_rows
from qkv.errors import CacheFull, TrimError

L, G, H, D, VOCABULARY = 2, 2, 4, 4, 23
POLICIES = [
    "page=3",
    "int8,page=2",
    "fp8-e4m3,window=5,sinks=2,page=2",
    "int4,page=4",
    "int8-kivi,window=6,page=3",
    "window=4,heads=10/01,page=2",
    "streaming=6,page=3",
    "bf16,h2o=5,page=2",
    "int8,tova=5,page=1",
    "snapkv=6,page=4",
    "int4,pyramidkv=6,page=3",
]
TOLERANCE = {"int4": 0.6, "int8-kivi": 0.05}
"""Of elements that encode pages together, and anew when tokens are evicted."""

ENDS = ("behind the last layer", "behind the first layer", "within the last layer")
"""Where a step may end; but for the first it is broken off."""

PLACES, TOKEN = st.integers(0, 3), st.integers(0, VOCABULARY - 1)
TOKENS = st.lists(TOKEN, max_size=7)

_rng = np.random.default_rng(0)
Q, K, V = (_rng.normal(size=(VOCABULARY, L, heads, D)).astype(np.float32) for heads in (H, G, G))


class Caches(RuleBasedStateMachine):
    """Four places for caches of two rows each, and beside each the texts that it was given."""

    @initialize(budget=st.integers(3_000, 15_000), policies=st.tuples(*[st.sampled_from(POLICIES)] * 4))
    def begin(self, budget: int, policies: tuple[str, ...]) -> None:
        self.pool = PagePool(budget, lambda nbytes: np.full(nbytes, 255, np.uint8))
        self.caches = [self._new(policy) for policy in policies]
        self.texts: list[list[list[int]]] = [[[], []] for _ in policies]

    @rule(place=PLACES, policy=st.sampled_from(POLICIES))
    def make(self, place: int, policy: str) -> None:
        self.caches[place].free()
        self.caches[place], self.texts[place] = self._new(policy), [[], []]

    @rule(place=PLACES, new=st.tuples(TOKENS, TOKENS), ends=st.sampled_from(ENDS))
    def step(self, place: int, new: tuple[list[int], list[int]], ends: str) -> None:
        """Run some tokens of each row, or break off on the way."""
        try:
            self._run(self.caches[place], new, ends)
        except CacheFull:
            return
        except TrimError:  # a step that was interrupted before has evicted
            self.free(place)
            return
        for text, some in zip(self.texts[place], new, strict=True):
            text += some if ends == "behind the last layer" else []

    @rule(place=PLACES, row=st.integers(0, 1), token=TOKEN)
    def step_of_one_row(self, place: int, row: int, token: int) -> None:
        try:
            self._run(self.caches[place].rows([row]), ([token],))
        except (CacheFull, TrimError):
            return
        self.texts[place][row].append(token)

    @rule(place=PLACES, other=PLACES, new=st.tuples(TOKENS, TOKENS), beside=st.tuples(TOKENS, TOKENS))
    def fork(self, place: int, other: int, new: tuple, beside: tuple) -> None:
        """Fork into another place, and go on with both."""
        if place != other:
            self.free(other)
            before = self.pool.nbytes
            self.caches[other] = self.caches[place].fork()
            self.texts[other] = [list(text) for text in self.texts[place]]
            assert self.pool.nbytes == before
            self.step(place, new, ENDS[0])
            self.step(other, beside, ENDS[0])

    @rule(place=PLACES, share=st.floats(0, 1))
    def trim(self, place: int, share: float) -> None:
        length = round(share * self.caches[place].length)
        try:
            self.caches[place].trim(length)
        except TrimError:
            return
        for text in self.texts[place]:
            del text[length:]

    @rule(place=PLACES)
    def free(self, place: int) -> None:
        self.caches[place].free()
        self.texts[place] = [[], []]
        assert self.caches[place].nbytes == 0

    @invariant()
    def pages_and_counts_agree(self) -> None:
        for cache, texts in zip(self.caches, self.texts, strict=True):
            cache.check_integrity()
            assert cache.lengths == tuple(map(len, texts))
        held = {i for cache in self.caches for i in ids_of(cache)}
        assert self.pool.num_pages == len(held)
        assert self.pool.nbytes == self.pool.sizes(list(held)).sum() <= (self.pool.budget_bytes or 0)

    @invariant()
    def each_cache_holds_its_own_tokens(self) -> None:
        for cache, texts in zip(self.caches, self.texts, strict=True):
            for row, text in enumerate(texts):
                check_contents(cache, row, text)

    def teardown(self) -> None:
        for place in range(4) if hasattr(self, "pool") else ():
            self.free(place)
        assert not hasattr(self, "pool") or (self.pool.nbytes, self.pool.num_pages) == (0, 0)

    def _new(self, policy: str) -> PagedCache:
        return PagedCache(CacheShape(L, G, D), policy, 2, pool=self.pool)

    def _run(self, cache: PagedCache, new: Sequence[list[int]], ends: str = ENDS[0]) -> None:
        T = max(map(len, new))
        padded = [some + [0] * (T - len(some)) for some in new]
        lengths = [len(some) for some in new]
        for layer in range(1 if ends == "behind the first layer" else L):
            q, k, v = (table[padded][:, :, layer].swapaxes(1, 2) for table in (Q, K, V))
            cache.append(layer, k, v, lengths)
            if layer == L - 1 and ends == "within the last layer":
                return  # stored, and not attended
            output = cache.attend(layer, q, lengths)
            assert all(np.isfinite(one[:, :count]).all() for one, count in zip(output, lengths, strict=True))


def ids_of(cache: PagedCache) -> list[int]:
    return [i for one in cache.sequences for table in one.tables for i in table.ids[table.present].tolist()]


def check_contents(cache: PagedCache, row: int, text: list[int]) -> None:
    """What is held of a text, as far as its steps have come to an end, is its keys and values."""
    one, element = cache.sequences[row], ELEMENTS[cache.policy.element]
    if one.is_unfinished():
        return
    for layer in range(L):
        k, v = decoded_rows(one, layer)
        for g, places in enumerate(positions(cache, row, layer)):
            there = {
                *np.flatnonzero(one.pages.present[layer, g]),
                *np.flatnonzero(one.filling.present[layer, g]),
            }
            slots = [slot for slot in range(len(places)) if slot // cache.layout.P in there]
            tokens = [text[places[slot]] for slot in slots]
            for got, table, codec in ((k, K, element.keys), (v, V, element.values)):
                expected = table[tokens, layer, g].reshape(-1, D)
                if element.closes_pages:
                    np.testing.assert_allclose(got[g, slots], expected, atol=TOLERANCE[element.name])
                else:
                    np.testing.assert_array_equal(got[g, slots], codec.decode(codec.encode(expected)))


TestCaches = Caches.TestCase
TestCaches.settings = settings(max_examples=25, stateful_step_count=30)
