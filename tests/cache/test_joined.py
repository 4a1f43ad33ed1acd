"""Caches of several texts in one step: each gets, to the bit, what it gets by itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.cache import CacheShape, PagedCache, PagePool, PrefixIndex
from qkv.errors import OptionError
from qkv.ops.backend import is_compiled

L, G, H, D = 3, 2, 6, 4
SHAPE = CacheShape(num_layers=L, num_kv_heads=G, head_dim=D)
POLICIES = ["page=4", "int8,page=4", "fp16,page=4", "int4,page=4", "window=5,sinks=1,page=4", "h2o=7,page=4"]


def tokens(seed: int, T: int) -> list[np.ndarray]:
    """Queries, keys and values of T tokens in every layer: (L, heads, T, D)."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(L, heads, T, D)).astype(np.float32) for heads in (H, G, G)]


def step(cache: PagedCache, texts: list[list[np.ndarray]], window: int | None = None) -> np.ndarray:
    """Run the same number of tokens of each text through every layer: (L, B, H, T, D)."""
    outputs = []
    for layer in range(L):
        q, k, v = (np.stack([text[part][layer] for text in texts]) for part in range(3))
        cache.append(layer, k, v)
        outputs.append(cache.attend(layer, q, window=window))
    return np.array(outputs)


@pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")
@settings(max_examples=25)
@given(lengths=st.lists(st.integers(1, 21), min_size=2, max_size=4), num_steps=st.integers(1, 9))
@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_of_several_is_a_step_of_each(policy: str, lengths: list[int], num_steps: int):
    pool = PagePool()
    first = PagedCache(SHAPE, policy, pool=pool)
    beside = [first, *(first.beside() for _ in lengths[1:])]
    alone = [PagedCache(SHAPE, policy) for _ in lengths]
    for seed, (length, *caches) in enumerate(zip(lengths, beside, alone, strict=True)):
        for cache in caches:
            step(cache, [tokens(seed, length)])
    for number in range(num_steps):
        texts = [tokens(100 * number + row, 1) for row in range(len(lengths))]
        together = step(PagedCache.joined(beside), texts)
        for row, cache in enumerate(alone):
            np.testing.assert_array_equal(together[:, row], step(cache, [texts[row]])[:, 0])
    for cache, other in zip(beside, alone, strict=True):
        cache.check_integrity()
        assert (cache.length, cache.nbytes) == (other.length, other.nbytes)
        assert len(cache.drops[0]) == len(other.drops[0])


def test_a_fork_that_steps_beside_its_parent_writes_to_pages_of_its_own():
    parent = PagedCache(SHAPE, "page=4")
    step(parent, [tokens(0, 6)])
    child = parent.fork()
    step(PagedCache.joined([parent, child]), [tokens(1, 1), tokens(2, 1)])
    expected = PagedCache(SHAPE, "page=4")
    step(expected, [tokens(0, 6)])
    step(expected, [tokens(2, 1)])
    following = tokens(3, 1)
    np.testing.assert_array_equal(step(child, [following]), step(expected, [following]))
    assert parent.pool.num_pages == L * G * 3
    parent.free()
    child.free()
    assert parent.pool.num_pages == 0


def test_what_one_learns_of_the_models_windows_the_others_know():
    first = PagedCache(SHAPE, "page=4")
    others = [first.beside(), first.beside("int8,page=4"), first.beside(pool=PagePool())]
    unrelated = PagedCache(SHAPE, "page=4", pool=first.pool)
    step(PagedCache.joined([first, unrelated]), [tokens(0, 1), tokens(1, 1)], window=5)
    page = L * G * others[0].layout.nbytes
    for cache in (first, others[0], others[2], unrelated):
        assert cache.predict_nbytes(41) == 2 * page  # 11 pages of 4, of which 9 are behind the window
    assert others[1].predict_nbytes(41) < 2 * page
    assert others[2].pool is not first.pool and others[0].pool is first.pool


@pytest.mark.parametrize("case", ["none", "twice", "policy", "pool", "shape"])
def test_caches_that_do_not_go_together_are_refused(case: str):
    first = PagedCache(SHAPE, "page=4")
    caches = {
        "none": [],
        "twice": [first, first],
        "policy": [first, first.beside("int8,page=4")],
        "pool": [first, PagedCache(SHAPE, "page=4")],
        "shape": [first, PagedCache(CacheShape(L, G, D + 2), "page=4", pool=first.pool)],
    }[case]
    with pytest.raises(OptionError, match="policy and pool, each once"):
        PagedCache.joined(caches)


@settings(max_examples=60)
@given(chunks=st.lists(st.integers(1, 9), min_size=1, max_size=5), forks=st.booleans())
@pytest.mark.parametrize("policy", [*POLICIES, "int8-kivi,page=4", "streaming=7,sinks=2,page=4"])
def test_a_step_takes_no_more_than_was_said_and_all_of_it_where_nothing_goes(
    policy: str, chunks: list[int], forks: bool
):
    pool = PagePool()
    cache = PagedCache(SHAPE, policy, pool=pool)
    for seed, chunk in enumerate(chunks):
        kept = cache.fork() if forks else None
        said, before = cache.step_nbytes(chunk), pool.nbytes
        pool.peak_nbytes = before
        step(cache, [tokens(seed, chunk)])
        assert pool.peak_nbytes - before <= said
        if policy in ("page=4", "int8,page=4", "fp16,page=4"):
            assert pool.nbytes - before == said
        if kept is not None:
            kept.free()


@pytest.mark.parametrize("policy", POLICIES[:5])
def test_a_step_that_was_broken_off_is_begun_anew_beside_others(policy: str):
    first = PagedCache(SHAPE, policy)
    caches, alone = [first, first.beside()], [PagedCache(SHAPE, policy) for _ in range(2)]
    for seed, pair in enumerate(zip(caches, alone, strict=True)):
        for cache in pair:
            step(cache, [tokens(seed, 3 + seed)])
    joined = PagedCache.joined(caches)
    lost = tokens(9, 1)
    k, v = (np.stack([lost[part][0]] * 2) for part in (1, 2))
    joined.append(0, k, v)
    texts = [tokens(20, 1), tokens(21, 1)]
    together = step(PagedCache.joined(caches), texts)
    for row, cache in enumerate(alone):
        np.testing.assert_array_equal(together[:, row], step(cache, [texts[row]])[:, 0])


@pytest.mark.parametrize("policy", POLICIES[:3])
def test_a_layer_may_be_appended_to_before_the_first_one(policy: str):
    """It then takes the pages that it needs itself."""
    cache, (q, k, v) = PagedCache(SHAPE, policy), tokens(0, 1)
    other = PagedCache(SHAPE, policy)
    for layer in (0, 2):
        other.append(layer, k[layer][None], v[layer][None])
    cache.append(2, k[2][None], v[2][None])
    np.testing.assert_array_equal(cache.attend(2, q[2][None]), other.attend(2, q[2][None]))
    assert cache.pool.num_pages == G


def test_a_text_that_begins_with_known_pages_holds_those_alone_that_it_sees():
    """Of 20 tokens in pages of 4 the next one sees 5 with its own: the last two pages stay."""
    pool = PagePool()
    index = PrefixIndex(pool, page_size=4)
    ids, first = list(range(21)), PagedCache(SHAPE, "window=5,page=4", pool=pool)
    for chunk in range(5):
        step(first, [tokens(chunk, 4)])
        first.remember_prefix(index, ids)
    second = first.beside()
    assert second.adopt_prefix(index, ids) == 20
    assert second.nbytes == second.predict_nbytes(20) == 2 * L * G * second.layout.nbytes
    texts = [tokens(9, 1)]
    np.testing.assert_array_equal(step(second, texts), step(first, texts))
