"""Caches of several policies on one pool, in any order of steps: each holds its own tokens and no others'."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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

_rng = np.random.default_rng(0)
Q, K, V = (_rng.normal(size=(VOCABULARY, L, heads, D)).astype(np.float32) for heads in (H, G, G))


class Caches(RuleBasedStateMachine):
    """Caches of two rows each, and beside each the texts that it was given."""

    @initialize(budget=st.integers(2_000, 12_000))
    def begin(self, budget: int) -> None:
        self.pool = PagePool(budget, lambda nbytes: np.full(nbytes, 255, np.uint8))
        self.caches: list[tuple[PagedCache, list[list[int]]]] = []

    @precondition(lambda self: len(self.caches) < 5)
    @rule(policy=st.sampled_from(POLICIES))
    def make(self, policy: str) -> None:
        self.caches.append((PagedCache(CacheShape(L, G, D), policy, 2, pool=self.pool), [[], []]))

    @precondition(lambda self: self.caches)
    @rule(data=st.data(), which=st.integers(0, 4), interrupts=st.booleans())
    def step(self, data: st.DataObject, which: int, interrupts: bool) -> None:
        """Run some tokens of each row, or only a first layer."""
        cache, texts = self.caches[which % len(self.caches)]
        tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=7)
        new = [data.draw(tokens), data.draw(tokens)]
        try:
            self._run(cache, new, num_layers=1 if interrupts else L)
        except CacheFull:
            return
        except TrimError:  # an interrupted step has evicted
            cache.free()
            new, interrupts = [[], []], False
            texts[:] = [[], []]
        for text, some in zip(texts, new, strict=True):
            text += [] if interrupts else some

    @precondition(lambda self: self.caches)
    @rule(which=st.integers(0, 4), row=st.integers(0, 1), token=st.integers(0, VOCABULARY - 1))
    def step_of_one_row(self, which: int, row: int, token: int) -> None:
        cache, texts = self.caches[which % len(self.caches)]
        try:
            self._run(cache.rows([row]), [[token]])
        except (CacheFull, TrimError):
            return
        texts[row].append(token)

    @precondition(lambda self: 0 < len(self.caches) < 5)
    @rule(which=st.integers(0, 4))
    def fork(self, which: int) -> None:
        cache, texts = self.caches[which % len(self.caches)]
        before = self.pool.nbytes
        self.caches.append((cache.fork(), [list(text) for text in texts]))
        assert self.pool.nbytes == before

    @precondition(lambda self: self.caches)
    @rule(which=st.integers(0, 4), share=st.floats(0, 1))
    def trim(self, which: int, share: float) -> None:
        cache, texts = self.caches[which % len(self.caches)]
        length = round(share * cache.length)
        try:
            cache.trim(length)
        except TrimError:
            return
        for text in texts:
            del text[length:]

    @precondition(lambda self: self.caches)
    @rule(which=st.integers(0, 4))
    def free(self, which: int) -> None:
        cache, _ = self.caches.pop(which % len(self.caches))
        cache.free()
        assert cache.nbytes == 0 and cache.lengths == (0, 0)

    @invariant()
    def pages_and_counts_agree(self) -> None:
        for cache, texts in self.caches:
            cache.check_integrity()
            assert cache.lengths == tuple(map(len, texts))
        held = {i for cache, _ in self.caches for i in ids_of(cache)}
        assert self.pool.num_pages == len(held)
        assert self.pool.nbytes == self.pool.sizes(list(held)).sum() <= (self.pool.budget_bytes or 0)

    @invariant()
    def each_cache_holds_its_own_tokens(self) -> None:
        for cache, texts in self.caches:
            for row, text in enumerate(texts):
                check_contents(cache, row, text)

    def teardown(self) -> None:
        for cache, _ in getattr(self, "caches", []):
            cache.free()
        if hasattr(self, "pool"):
            assert (self.pool.nbytes, self.pool.num_pages) == (0, 0)
            self.pool.check_integrity()

    def _run(self, cache: PagedCache, new: list[list[int]], num_layers: int = L) -> None:
        T = max(map(len, new))
        padded = [some + [0] * (T - len(some)) for some in new]
        lengths = [len(some) for some in new]
        for layer in range(num_layers):
            q, k, v = (table[padded][:, :, layer].swapaxes(1, 2) for table in (Q, K, V))
            cache.append(layer, k, v, lengths)
            output = cache.attend(layer, q, lengths)
            assert all(np.isfinite(one[:, :count]).all() for one, count in zip(output, lengths, strict=True))


def ids_of(cache: PagedCache) -> list[int]:
    return [i for one in cache.sequences for table in one.tables for i in table.ids[table.present].tolist()]


def check_contents(cache: PagedCache, row: int, text: list[int]) -> None:
    """What is held of a text, as far as its steps have come to an end, is its keys and values."""
    one, element = cache.sequences[row], ELEMENTS[cache.policy.element]
    if one.unfinished:
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
TestCaches.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
