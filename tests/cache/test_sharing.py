"""Shared beginnings: what is computed behind a hit is, to the bit, what it would have been without."""

import numpy as np
import pytest

from qkv import load, new_cache
from qkv.cache import CacheShape, PagedCache, PagePool, PrefixIndex
from qkv.cache.elements import ELEMENTS
from qkv.errors import CacheFull, OptionError, ShapeError
from qkv.ops.backend import is_compiled
from tiny_deepseek import write_model as write_deepseek
from tiny_models import write_model

same_bits_only = pytest.mark.skipif(not is_compiled(), reason="NumPy alone promises no equal bits")

RNG = np.random.default_rng(0)
DONOR = RNG.integers(0, 101, 41)
TEXT = np.concatenate([DONOR[:23], RNG.integers(0, 101, 14)])
"""Begins with 23 tokens of the donor."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    kinds = {kind: load(write_model(folder / kind, kind)) for kind in ("llama", "mistral")}
    return kinds | {"deepseek": load(write_deepseek(folder / "deepseek"))}


@pytest.fixture
def model(models):
    return models["llama"]


def poisoned(nbytes: int) -> np.ndarray:
    """A page of NaN, in every float type."""
    return np.full(nbytes, 0xFF, np.uint8)


def pool_and_index(page: int, **options) -> tuple[PagePool, PrefixIndex]:
    pool = PagePool(new_page=poisoned, **options)
    return pool, PrefixIndex(pool, page)


def remembered(model, index, tokens, policy, **under) -> PagedCache:
    """Run a text and remember it."""
    cache = new_cache(model, policy, pool=index.pool)
    model.logits(np.asarray(tokens), cache)
    cache.remember_prefix(index, tokens, **under)
    return cache


def adopted(model, index, tokens, policy, **under) -> tuple[PagedCache, int]:
    cache = new_cache(model, policy, pool=index.pool)
    return cache, cache.adopt_prefix(index, tokens, **under)


def in_steps(model, cache, tokens, sizes=()) -> np.ndarray:
    """The logits of every token: in steps of the given sizes, then all that is left, then five one by one."""
    ids, logits = np.asarray(tokens), []
    for size in (*sizes, len(ids) - sum(sizes), 1, 1, 1, 1, 1):
        step, ids = ids[:size], ids[size:] if size < len(ids) else np.array([7])
        logits.append(model.logits(step, cache))
    return np.concatenate(logits)


def check_hit_is_miss(model, policy, page, expected, donor=DONOR, tokens=TEXT) -> None:
    _, index = pool_and_index(page)
    remembered(model, index, donor, policy)
    cache, num_tokens = adopted(model, index, tokens, policy)
    assert num_tokens == expected
    assert cache.lengths == (expected,)
    cache.check_integrity()
    hit = in_steps(model, cache, tokens[num_tokens:])
    other = new_cache(model, policy)
    miss = in_steps(model, other, tokens)[num_tokens:]
    np.testing.assert_array_equal(hit.view(np.uint32), miss.view(np.uint32))
    assert np.isfinite(hit).all()
    assert cache.nbytes == other.nbytes
    cache.check_integrity()
    index.check_integrity()


# A hit is a miss


@same_bits_only
@pytest.mark.parametrize("element", ELEMENTS)
def test_a_hit_gives_the_bits_of_a_miss_whatever_is_stored(model, element: str):
    """23 tokens are known: five full pages of 4 and 3 tokens, or five pages where they are encoded whole."""
    whole = ELEMENTS[element].closes_pages
    check_hit_is_miss(model, f"{element},page=4", 4, 20 if whole else 23)


@same_bits_only
@pytest.mark.parametrize(
    ("policy", "known"), [("page=4", 23), ("latent,int8,page=4", 23), ("int8-kivi,page=4", 20)]
)
def test_a_hit_gives_the_bits_of_a_miss_in_latent_pages(models, policy: str, known: int):
    check_hit_is_miss(models["deepseek"], policy, 4, known)


@same_bits_only
@pytest.mark.parametrize("policy", ["streaming=29", "tova=29,int8", "knorm=29", "streaming=29,rerotate"])
def test_a_hit_gives_the_bits_of_a_miss_where_tokens_are_evicted_later(model, policy: str):
    """Nothing leaves before 33 tokens, a page above the budget; the text has 37, and five more follow."""
    check_hit_is_miss(model, f"{policy},page=4", 4, 23, donor=DONOR[:31])


@same_bits_only
@pytest.mark.parametrize("policy", ["window=11,sinks=3", "heads=10,window=11", "window=11,int4"])
def test_a_hit_gives_the_bits_of_a_miss_behind_a_window(model, policy: str):
    """The donor is remembered as it comes, before its pages fall behind the window."""
    _, index = pool_and_index(4)
    donor = new_cache(model, f"{policy},page=4", pool=index.pool)
    for end in range(3, 42, 2):
        model.logits(DONOR[donor.length : end], donor)
        assert donor.remember_prefix(index, DONOR) == end // 4 * 4
    for length in (9, 23):  # within the window, and beyond it
        text = np.concatenate([DONOR[:length], RNG.integers(0, 101, 14)])
        cache, num_tokens = adopted(model, index, text, f"{policy},page=4")
        assert num_tokens == (length // 4 * 4 if "int4" in policy else length)
        hit = in_steps(model, cache, text[num_tokens:])
        other = new_cache(model, f"{policy},page=4")
        miss = in_steps(model, other, text, sizes=(5, 7))[num_tokens:]
        np.testing.assert_array_equal(hit.view(np.uint32), miss.view(np.uint32))
        assert cache.nbytes == other.nbytes
        cache.check_integrity()


@same_bits_only
def test_a_hit_gives_the_bits_of_a_miss_behind_a_models_own_window(models):
    model, (_, index) = models["mistral"], pool_and_index(2)
    donor = new_cache(model, "page=2", pool=index.pool)
    for end in range(3, 42, 3):
        model.logits(DONOR[donor.length : end], donor)
        donor.remember_prefix(index, DONOR)
    cache, num_tokens = adopted(model, index, TEXT, "page=2")
    assert num_tokens == 23
    hit = in_steps(model, cache, TEXT[23:])
    miss = in_steps(model, new_cache(model, "page=2"), TEXT)[23:]
    np.testing.assert_array_equal(hit.view(np.uint32), miss.view(np.uint32))


@same_bits_only
def test_rows_of_a_batch_each_begin_with_what_is_known_of_their_own_text(model):
    _, index = pool_and_index(4)
    remembered(model, index, DONOR, "page=4")
    texts = [TEXT, np.concatenate([DONOR[:6], TEXT[:31]]), TEXT[::-1]]
    cache = new_cache(model, "page=4", batch_size=3, pool=index.pool)
    starts = [cache.adopt_prefix(index, text, row) for row, text in enumerate(texts)]
    assert starts == list(cache.lengths) == [23, 6, 0]
    ids, mask = np.zeros((3, 37), int), np.zeros((3, 37), bool)
    for row, (text, start) in enumerate(zip(texts, starts, strict=True)):
        ids[row, start:], mask[row, start:] = text[start:], True
    logits = model.next_logits(ids, cache, mask=mask)
    alone = [model.next_logits(text) for text in texts]
    np.testing.assert_array_equal(logits, alone)


# What is found


def found(model, index, tokens, policy="page=4", **under) -> int:
    cache, num_tokens = adopted(model, index, tokens, policy, **under)
    cache.free()
    return num_tokens


def text(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


@pytest.mark.parametrize("hash", [hash, lambda chain: 0], ids=["a hash", "always 0"])
def test_only_the_same_beginning_is_found(model, hash):
    pool = PagePool()
    index = PrefixIndex(pool, 4, hash)
    remembered(model, index, text(1, 10), "page=4")
    assert found(model, index, [*text(1, 8), 9, 99]) == 8
    assert found(model, index, [9, 9, 9, 9, *text(5, 10)]) == 0
    assert found(model, index, text(1, 7)) == 6  # page by page it would be 4
    assert found(model, index, [1, 2, 3, 5, 6, 7]) == 3


def test_a_salt_is_no_adapter(model):
    _, index = pool_and_index(4)
    remembered(model, index, text(1, 10), "page=4", salt="x")
    assert found(model, index, text(1, 10), adapter="x") == 0
    assert found(model, index, text(1, 10)) == 0
    assert found(model, index, text(1, 10), salt="x") == 8


@pytest.mark.parametrize("other", ["fp16,page=4", "page=4,window=97", "page=4,streaming=97", "int8,page=4"])
def test_pages_of_another_policy_are_not_found(model, other: str):
    _, index = pool_and_index(4)
    remembered(model, index, text(1, 10), "page=4")
    assert found(model, index, text(1, 10), other) == 0
    assert found(model, index, text(1, 10), "page=4") == 8


def test_pages_of_another_model_or_shape_are_not_found():
    _, index = pool_and_index(4)
    k = np.ones((1, 2, 10, 6), np.float32)
    shape = CacheShape(num_layers=1, num_kv_heads=2, head_dim=6)

    def begin(shape: CacheShape, fingerprint: str) -> PagedCache:
        return PagedCache(shape, "page=4", pool=index.pool, fingerprint=fingerprint)

    donor = begin(shape, "a")
    donor.append(0, k, k)
    donor.attend(0, k)
    donor.remember_prefix(index, text(1, 10))
    assert begin(shape, "b").adopt_prefix(index, text(1, 10)) == 0
    assert begin(CacheShape(2, 2, 6), "a").adopt_prefix(index, text(1, 10)) == 0
    assert begin(CacheShape(1, 2, 6, value_dim=5), "a").adopt_prefix(index, text(1, 10)) == 0
    assert begin(shape, "a").adopt_prefix(index, text(1, 10)) == 8


@pytest.mark.parametrize(
    ("policy", "computed"), [("page=4", (1, 1, 1)), ("int4,page=4", (4, 1, 4))], ids=["tokens", "whole pages"]
)
def test_a_text_known_in_full_leaves_a_token_to_compute(model, policy: str, computed: tuple[int, ...]):
    for num_tokens, expected in zip((8, 9, 12), computed, strict=True):
        _, index = pool_and_index(4)
        tokens = DONOR[:num_tokens]
        first = new_cache(model, policy, pool=index.pool)
        logits = model.next_logits(tokens, first)
        first.remember_prefix(index, tokens)
        cache, known = adopted(model, index, tokens, policy)
        assert num_tokens - known == expected
        again = model.next_logits(tokens[known:], cache)
        np.testing.assert_allclose(again, logits, rtol=1e-5, atol=1e-5)
        if is_compiled():
            np.testing.assert_array_equal(again, logits)


def test_a_text_of_no_or_one_token_finds_nothing(model):
    _, index = pool_and_index(1)
    remembered(model, index, [5, 6], "page=1")
    assert found(model, index, [], "page=1") == 0
    assert found(model, index, [5], "page=1") == 0
    assert found(model, index, [5, 5], "page=1") == 1


@same_bits_only
def test_a_request_sees_nothing_of_the_one_before(model):
    """What the first wrote, freed and trimmed is NaN when the second takes its pages."""
    _, index = pool_and_index(4)
    first = remembered(model, index, text(1, 12), "page=4")
    for page in first.sequences[0].pages.ids[..., 2].ravel():
        index.pool.page(page)[:] = 0xFF  # all behind the eighth token
    first.trim(8)
    first.free()
    second = [1, 2, 3, 4, 20, 21]
    cache, num_tokens = adopted(model, index, second, "page=4")
    assert num_tokens == 4
    np.testing.assert_array_equal(
        model.logits(np.array(second[4:]), cache), model.logits(np.array(second))[4:]
    )


# What is remembered


def test_full_pages_are_remembered_and_known_ones_stay(model):
    _, index = pool_and_index(4)
    cache = new_cache(model, "page=4", pool=index.pool)
    known = []
    for end in (3, 4, 11, 12, 25):
        model.logits(DONOR[cache.length : end], cache)
        known.append(cache.remember_prefix(index, DONOR))
    assert known == [0, 4, 8, 12, 24]
    # Of what an empty cache would begin with: the last token is left to compute, and pages are whole.
    empty = cache.beside()
    assert [empty.known_prefix(index, DONOR[:end]) for end in (1, 5, 8, 9, 25)] == [0, 4, 4, 8, 24]
    assert empty.known_prefix(index, DONOR, salt="another") == 0 and not empty.length
    again = remembered(model, index, DONOR[:20], "page=4")
    assert again.remember_prefix(index, DONOR[:20]) == 24 - 4
    assert index.num_cached_tokens == 24
    again.free()
    cache.free()
    assert index.pool.nbytes == index.idle_bytes > 0
    index.clear()
    assert index.pool.nbytes == 0


def test_a_text_is_remembered_from_where_it_is_known_and_hashed_no_more_before_that():
    hashed: list[tuple] = []

    def note(some: tuple) -> int:
        hashed.append(some)
        return hash(some)

    def remember(one: PagedCache, tokens: list[int]) -> tuple[int, int]:
        hashed.clear()
        return one.remember_prefix(index, tokens), len(hashed)

    def run(one: PagedCache, num_tokens: int) -> None:
        k = np.ones((1, 2, num_tokens, 6), np.float32)
        one.append(0, k, k)
        one.attend(0, k)

    index = PrefixIndex(PagePool(), 4, note)
    cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=2, head_dim=6), "page=4", pool=index.pool)
    tokens = text(1, 60)
    for end, pages in ((47, 11), (51, 1), (52, 1), (53, 0), (55, 0)):
        run(cache, end - cache.length)
        known, calls = remember(cache, tokens)
        assert known == end // 4 * 4 and calls <= 1 + 2 * pages  # to look for each, and to add it
    assert remember(cache, tokens)[1] <= 1  # for the page under way
    other = cache.fork()
    cache.trim(30)
    run(cache, 6)
    assert remember(cache, [*tokens[:30], *text(101, 107)])[0] == 36
    assert index.num_cached_tokens == 52 + 4 * (9 - 7)  # 7 pages are known
    index.clear()
    assert remember(other, tokens)[0] == index.num_cached_tokens == 52
    index.check_integrity()


def test_what_was_dropped_is_not_remembered(model):
    """Behind a window of 5, 11 tokens have left page 0 of 4; the one after is whole, but stands on it."""
    _, index = pool_and_index(4)
    assert remembered(model, index, DONOR[:8], "window=5,page=4").remember_prefix(index, DONOR[:8]) == 8
    assert index.num_cached_tokens == 8
    _, index = pool_and_index(4)
    cache = new_cache(model, "window=5,page=4", pool=index.pool)
    model.logits(DONOR[:11], cache)
    assert cache.remember_prefix(index, DONOR[:11]) == 0
    pruned = new_cache(model, "heads=10,window=5,page=4", pool=index.pool)  # one head of each layer
    model.logits(DONOR[:11], pruned)
    assert pruned.remember_prefix(index, DONOR[:11]) == 0
    evicted = new_cache(model, "streaming=5,page=4", pool=index.pool)
    model.logits(DONOR[:9], evicted)
    assert evicted.remember_prefix(index, DONOR[:9]) == 0
    assert index.num_cached_tokens == 0


def test_a_step_under_way_is_not_remembered():
    _, index = pool_and_index(4)
    shape = CacheShape(num_layers=2, num_kv_heads=1, head_dim=3)
    cache = PagedCache(shape, "page=4", pool=index.pool)
    k = np.ones((1, 1, 6, 3), np.float32)
    for layer in (0, 1):
        cache.append(layer, k, k)
        cache.attend(layer, k)
    for layer in (0, 1):
        cache.append(layer, k, k)
        assert cache.remember_prefix(index, text(1, 12)) == 4
    begun = PagedCache(shape, "page=4", pool=index.pool)
    begun.append(0, k, k)
    assert begun.adopt_prefix(index, text(1, 12)) == 4
    begun.check_integrity()


# Whose pages they are


@same_bits_only
def test_shared_pages_are_written_to_by_nobody(model):
    """The donor and two adopters go different ways from within a shared page; each is as it is alone."""
    _, index = pool_and_index(4)
    donor = remembered(model, index, DONOR[:8], "page=4")
    shared = donor.sequences[0].pages.ids[..., :2].copy()
    before = [index.pool.page(page).copy() for page in shared.ravel()]
    caches = [donor, *(adopted(model, index, [*DONOR[:8], 1], "page=4")[0] for _ in range(2))]
    assert (index.pool.references(shared) == 4).all()
    assert donor.nbytes == caches[1].nbytes
    for cache, length in zip(caches, (6, 7, 8), strict=True):
        cache.trim(length)
        ids = RNG.integers(0, 101, 7)
        expected = model.logits(np.concatenate([DONOR[:length], ids]))[length:]
        np.testing.assert_array_equal(model.logits(ids, cache), expected)
        cache.check_integrity()
    for page, bytes_before in zip(shared.ravel(), before, strict=True):
        np.testing.assert_array_equal(index.pool.page(page), bytes_before)
    assert (index.pool.references(shared[..., 0]) == 4).all()
    assert (index.pool.references(shared[..., 1]) == 2).all()  # of the index, and of the one trimmed to 8


@same_bits_only
def test_an_eviction_leaves_shared_pages_to_the_others(model):
    policy, (_, index) = "streaming=9,page=4", pool_and_index(4)
    remembered(model, index, DONOR[:12], policy)
    first, second = (adopted(model, index, TEXT[:31], policy)[0] for _ in range(2))
    expected = new_cache(model, policy)
    whole = model.logits(TEXT[:31], expected)[12:]
    for cache in (first, second):
        assert cache.length == 12
        np.testing.assert_array_equal(model.logits(TEXT[12:31], cache), whole)
        assert cache.nbytes == expected.nbytes
        cache.check_integrity()
    third, num_tokens = adopted(model, index, TEXT[:31], policy)
    np.testing.assert_array_equal(model.logits(TEXT[num_tokens:31], third), whole)


def test_a_shared_page_takes_no_bytes_and_a_page_under_way_is_copied(model):
    pool, index = pool_and_index(4)
    donor = remembered(model, index, DONOR[:12], "page=4")
    one_page = donor.nbytes // 3
    before = pool.nbytes
    adopted(model, index, [*DONOR[:8], 99], "page=4")
    assert pool.nbytes == before
    adopted(model, index, [*DONOR[:7], 99], "page=4")
    assert pool.nbytes == before + one_page


@pytest.mark.parametrize("room", [0, 1])
def test_where_no_page_can_be_copied_the_full_ones_are_taken(model, room: int):
    """Two pages are known and used, and 3 tokens of a third; the budget has room for the copy, or not."""
    one_page = new_cache(model, "page=4").predict_nbytes(4)
    pool, index = pool_and_index(4, budget_bytes=(3 + room) * one_page)
    remembered(model, index, DONOR[:12], "page=4")
    cache, num_tokens = adopted(model, index, [*DONOR[:11], 99], "page=4")
    assert num_tokens == (11 if room else 8)
    ids = cache.sequences[0].pages.ids
    assert (pool.references(ids[..., :2]) == 3).all()
    cache.check_integrity()
    index.check_integrity()
    cache.free()
    assert pool.nbytes == 3 * one_page


def test_a_hit_needs_no_more_room_than_a_miss(model):
    """The budget is one page, which an idle one fills; a text shares 3 tokens of it, and needs it all."""
    one_page = new_cache(model, "page=4").predict_nbytes(4)
    pool, index = pool_and_index(4, budget_bytes=one_page)
    remembered(model, index, DONOR[:4], "page=4").free()
    tokens = np.array([*DONOR[:3], 99])
    cache, num_tokens = adopted(model, index, tokens, "page=4")
    assert num_tokens == 0
    logits = model.logits(tokens, cache)
    np.testing.assert_allclose(logits, model.logits(tokens), rtol=1e-5, atol=1e-5)
    assert pool.nbytes == one_page and index.num_cached_tokens == 0


def test_idle_beginnings_make_room_for_a_later_cache_the_longest_unused_first(model):
    one_page = new_cache(model, "page=4").predict_nbytes(4)
    pool, index = pool_and_index(4, budget_bytes=6 * one_page)
    others = [RNG.integers(0, 101, 8) for _ in range(3)]
    for tokens in others:
        remembered(model, index, tokens, "page=4").free()
    assert (pool.nbytes, pool.idle_bytes) == (6 * one_page, 6 * one_page)
    assert found(model, index, [*others[0], 1]) == 8  # used again, so the second is the longest unused
    later = new_cache(model, "page=4", pool=pool)
    model.logits(RNG.integers(0, 101, 7), later)
    assert [found(model, index, [*tokens, 1]) for tokens in others] == [8, 0, 8]
    in_use, _ = adopted(model, index, [*others[2], 1], "page=4")
    model.logits(RNG.integers(0, 101, 8), later)
    assert [found(model, index, [*tokens, 1]) for tokens in others] == [0, 0, 8]
    with pytest.raises(CacheFull):
        model.logits(RNG.integers(0, 101, 2), later)
    in_use.free()
    model.logits(RNG.integers(0, 101, 2), later)
    index.check_integrity()


# What is refused


@pytest.mark.parametrize("policy", ["h2o=7", "h2o=7:sum", "snapkv=7", "pyramidkv=29", "expected=7"])
def test_evictions_that_go_by_a_whole_text_share_no_beginning(model, policy: str):
    _, index = pool_and_index(16)
    cache = new_cache(model, policy, pool=index.pool)
    with pytest.raises(OptionError, match="goes by all the queries of a text"):
        cache.adopt_prefix(index, TEXT)
    model.logits(TEXT[:5], cache)
    with pytest.raises(OptionError, match="goes by all the queries of a text"):
        cache.remember_prefix(index, TEXT)


def test_an_index_of_other_pages_is_refused(model):
    cache = new_cache(model, "page=4")
    with pytest.raises(OptionError, match="another pool"):
        cache.adopt_prefix(PrefixIndex(PagePool(), 4), TEXT)
    with pytest.raises(OptionError, match=r"page_size=4\)"):
        cache.remember_prefix(PrefixIndex(cache.pool, 5), TEXT)


def test_only_an_empty_sequence_takes_a_beginning(model):
    _, index = pool_and_index(4)
    cache = remembered(model, index, DONOR[:9], "page=4")
    with pytest.raises(OptionError, match="not one of 9 tokens"):
        cache.adopt_prefix(index, DONOR)
    assert cache.length == 9
    cache.trim(0)
    assert cache.adopt_prefix(index, DONOR) == 8


@pytest.mark.parametrize("tokens", [DONOR[:8], [DONOR]], ids=["fewer", "a batch"])
def test_the_tokens_are_those_that_were_run(model, tokens):
    _, index = pool_and_index(4)
    cache = new_cache(model, "page=4", pool=index.pool)
    model.logits(DONOR[:9], cache)
    with pytest.raises(ShapeError):
        cache.remember_prefix(index, tokens)
    assert index.num_cached_tokens == 0
