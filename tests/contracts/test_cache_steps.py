"""What becomes of a cache of any policy when a step does not fit, does not end, is taken back or forked."""

import numpy as np
import pytest

from cache_cases import AS_MANY, CASES, GROUPED, LATENT, STEPS, Pages, Texts, each_kind, state_of
from qkv.cache import CacheShape, PagedCache, PagePool, Policy
from qkv.errors import CacheFull, OptionError, ShapeError, TrimError
from qkv.ops.backend import is_compiled
from slow_cache import Sizes


def test_every_element_stands_beside_every_other_part():
    """What the cases of this suite are: 8 elements, and what may stand beside each, with a page size."""
    asked = [Policy.parse(policy) for policy, _ in CASES]
    pairs = {(one.element, one.eviction and one.eviction.name, one.window is not None) for one in asked}
    assert len(pairs) == 5 * (2 + 7) + 1 * (2 + 7) + 2 * (2 + 3)
    assert {one.page for one in asked} == {1, 3, 4, 5, 7}


# A step that does not fit


@each_kind
def test_a_step_that_does_not_fit_leaves_the_cache_as_it_was_and_one_byte_more_is_enough(
    policy: str, sizes: Sizes
):
    texts = Texts(sizes)
    cache, free = texts.cache(policy, PagePool(10**9, Pages())), texts.cache(policy, PagePool())
    for counts in STEPS:
        before = free.pool.peak_nbytes = free.pool.nbytes
        expected, needed = texts.step(free, counts), free.pool.peak_nbytes
        if needed > before:
            cache.pool.budget_bytes = needed - 1
            state = state_of(cache)
            with pytest.raises(CacheFull, match="free or trim a sequence"):
                texts.append(cache, 0, cache.lengths, counts)
            assert state_of(cache) == state
            cache.check_integrity()
        cache.pool.budget_bytes = needed
        np.testing.assert_array_equal(texts.step(cache, counts), expected)
        cache.check_integrity()


@each_kind
def test_a_step_of_a_fork_fits_whole_or_not_at_all(policy: str, sizes: Sizes):
    """Forks share pages, and what a step must copy of them counts before it begins."""
    texts = Texts(sizes)
    expected = texts.cache(policy)
    outputs = [texts.step(expected, counts) for counts in STEPS[:3]]
    cache = texts.cache(policy, PagePool(10**9, Pages()))
    texts.step(cache, STEPS[0])
    fork = cache.fork()
    for counts, output in zip(STEPS[1:3], outputs[1:], strict=True):
        cache.pool.budget_bytes = cache.pool.nbytes
        np.testing.assert_array_equal(step_once_it_fits(texts, fork, counts), output)
    cache.pool.budget_bytes = 10**9
    np.testing.assert_array_equal(texts.step(cache, STEPS[1]), outputs[1])


def step_once_it_fits(texts: Texts, cache: PagedCache, counts: tuple[int, ...]) -> np.ndarray:
    """Run a step with more and more bytes at hand."""
    while True:
        state = state_of(cache)
        try:
            return texts.step(cache, counts)
        except CacheFull:
            assert state_of(cache) == state
            assert cache.pool.budget_bytes is not None
            cache.pool.budget_bytes += cache.layout.nbytes // 2 + 1


def test_a_budget_that_cannot_hold_one_step_is_one_clear_error():
    texts = Texts(GROUPED)
    cache = texts.cache("page=4", PagePool(1000))
    with pytest.raises(CacheFull) as error:
        texts.step(cache, (5, 5))
    # 2 texts x 2 layers x 2 heads x 2 pages of 4 x (6 + 10) x 4 bytes
    assert (error.value.asked_pages, error.value.page_nbytes, error.value.free_bytes) == (16, 256, 1000)
    assert cache.lengths == (0, 0) and cache.nbytes == 0


def test_a_layer_that_evicts_makes_room_for_the_next():
    """32 tokens of 3 layers come down to 8 each: never more than one layer's 32 beside the others' 8."""
    texts = Texts(Sizes(L=3, G=2, H=4, D=6, D_v=6), B=1)
    page = 4 * 12 * 4 + 4 * 8
    cache = texts.cache("snapkv=8,page=4", PagePool((2 * 2 * 2 + 8 * 2) * page))
    texts.step(cache, (32,))
    assert cache.nbytes == 3 * 2 * 2 * page


# A step that does not end


@each_kind
def test_an_interrupted_step_leaves_nothing_behind_unless_it_has_evicted(policy: str, sizes: Sizes):
    texts, lost = Texts(sizes), Texts(sizes, seed=1)
    for layers_done in range(sizes.L):
        for attends, count in ((False, 6), (True, 6), (True, 1)):
            if attends and layers_done == sizes.L - 1:
                continue  # then it does end
            cache, untouched = texts.cache(policy), texts.cache(policy)
            for counts in STEPS[:2]:
                for one in (cache, untouched):
                    texts.step(one, counts)
            for layer in range(layers_done + 1):
                (lost.layer if attends or layer < layers_done else lost.append)(
                    cache, layer, cache.lengths, (count, count)
                )
            assert cache.lengths == untouched.lengths
            if has_evicted(cache):
                check_refused_until_freed(texts, cache)
                continue
            for counts in STEPS[2:5]:
                np.testing.assert_array_equal(texts.step(cache, counts), texts.step(untouched, counts))
                assert cache.nbytes == cache.pool.nbytes == untouched.nbytes
                cache.check_integrity()


def has_evicted(cache: PagedCache) -> bool:
    """Whether an unfinished step has changed what is kept of earlier ones."""
    return any(max(one.evicted_at, one.scored_at) > one.length for one in cache.sequences)


def check_refused_until_freed(texts: Texts, cache: PagedCache) -> None:
    state = state_of(cache)
    with pytest.raises(TrimError, match="compute the text anew"):
        texts.append(cache, 0, cache.lengths, (1, 1))
    assert state_of(cache) == state
    cache.free()
    assert cache.pool.nbytes == 0
    fresh = texts.cache(str(cache.policy))
    np.testing.assert_array_equal(texts.step(cache, STEPS[0]), texts.step(fresh, STEPS[0]))


def test_a_first_step_that_was_interrupted_leaves_nothing_behind_even_if_it_has_evicted():
    texts = Texts(GROUPED)
    cache, untouched = texts.cache("h2o=7,page=3"), texts.cache("h2o=7,page=3")
    Texts(GROUPED, seed=1).layer(cache, 0, (0, 0), (20, 20))
    np.testing.assert_array_equal(texts.step(cache, (9, 9)), texts.step(untouched, (9, 9)))
    assert cache.nbytes == cache.pool.nbytes == untouched.nbytes


@pytest.mark.parametrize(
    "policy", ["page=3", "int8,page=5", "int4,page=4", "window=6,sinks=2,page=3", "tova=30,page=3"]
)
def test_an_interrupted_step_may_be_trimmed_away(policy: str):
    texts = Texts(GROUPED)
    cache, untouched = texts.cache(policy), texts.cache(policy)
    for one in (cache, untouched):
        texts.step(one, (9, 9))
    Texts(GROUPED, seed=1).layer(cache, 0, (9, 9), (11, 11))
    for one in (cache, untouched):
        one.trim(8)
    assert state_of(cache)[:2] == state_of(untouched)[:2]
    np.testing.assert_array_equal(texts.step(cache, (5, 5)), texts.step(untouched, (5, 5)))


# Trim


@each_kind
def test_a_cache_goes_back_where_it_can_and_is_then_as_if_the_rest_had_never_been(policy: str, sizes: Sizes):
    texts, lost = Texts(sizes), Texts(sizes, seed=1)
    kept = texts.cache(policy)
    texts.step(kept, (9, 9))
    for length in (9, 8, 5, 4, 1):
        cache = kept.fork()
        for count in (3, 1, 1):
            lost.step(cache, (count, count))
        if not may_go_back(cache, length):
            state = state_of(cache)
            with pytest.raises(TrimError, match=f"cannot go back from 14 to {length} tokens"):
                cache.trim(length)
            assert state_of(cache) == state
            continue
        cache.trim(length)
        never = texts.cache(policy)
        texts.step(never, (length, length))
        assert cache.lengths == (length, length) and cache.nbytes <= never.nbytes
        cache.check_integrity()
        for count in (4, 1):
            np.testing.assert_array_equal(
                texts.step(cache, (count, count)), texts.step(never, (count, count))
            )


def may_go_back(cache: PagedCache, length: int) -> bool:
    """Whether all that a text of ``length`` tokens needs is held, worked out from the policy alone."""
    policy, P, held = cache.policy, cache.layout.P, cache.length
    if policy.eviction is not None:
        evicted_at = max(one.evicted_at for one in cache.sequences)
        return policy.eviction.name != "h2o" and length >= evicted_at
    if cache.sequences[0].closes_pages and length % P and length < held // P * P:
        return False
    sinks_end = -(-policy.sinks // P) * P
    gone = range(sinks_end, (held - (policy.window or held)) // P * P)
    return not any(
        position in gone for position in range(max(0, length + 1 - (policy.window or held)), length)
    )


def test_trimming_to_nothing_is_always_possible():
    texts = Texts(GROUPED)
    for policy in ("h2o=7,page=3", "int4,snapkv=7,page=4", "window=3,page=1"):
        cache = texts.cache(policy)
        texts.step(cache, (20, 20))
        cache.trim(0)
        assert (cache.lengths, cache.nbytes, cache.pool.nbytes, cache.drops) == ((0, 0), 0, 0, [[], []])
        fresh = texts.cache(policy)
        np.testing.assert_array_equal(texts.step(cache, (9, 9)), texts.step(fresh, (9, 9)))


def test_a_page_that_was_encoded_says_where_one_can_go_back_to():
    texts = Texts(GROUPED)
    cache = texts.cache("int4,page=4")
    texts.step(cache, (14, 14))
    with pytest.raises(TrimError, match="such as 8, or to 12 or more"):
        cache.trim(10)
    cache.trim(13)
    cache.trim(12)
    with pytest.raises(TrimError, match="such as 8, or to 12 or more"):
        cache.trim(9)
    cache.trim(8)
    assert cache.nbytes == 2 * 2 * 2 * 2 * cache.layout.nbytes


@pytest.mark.parametrize("length", [-1, 10])
def test_trim_refuses_a_length_that_is_not_held(length: int):
    texts = Texts(GROUPED)
    cache = texts.cache("int8")
    texts.step(cache, (9, 4))
    with pytest.raises(OptionError, match=rf"from 0 to 9, not {length}"):
        cache.trim(length)


def test_a_row_shorter_than_the_trimmed_length_keeps_all_it_has():
    texts = Texts(GROUPED)
    cache = texts.cache("int8,page=3")
    texts.step(cache, (9, 4))
    cache.trim(5)
    assert cache.lengths == (5, 4)


# Forks


@each_kind
def test_forks_share_pages_and_go_their_own_ways(policy: str, sizes: Sizes):
    texts, other = Texts(sizes), Texts(sizes, seed=1)
    alone, beside = texts.cache(policy), texts.cache(policy)
    expected = [texts.step(alone, counts) for counts in STEPS]
    for counts in STEPS[:2]:
        texts.step(beside, counts)
    expected_beside = [other.step(beside, counts) for counts in STEPS[2:]]

    cache = texts.cache(policy)
    for counts, output in zip(STEPS[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(texts.step(cache, counts), output)
    before = cache.pool.nbytes
    fork = cache.fork()
    assert (cache.pool.nbytes, cache.nbytes, fork.nbytes) == (before,) * 3
    for counts, output, output_beside in zip(STEPS[2:-1], expected[2:], expected_beside, strict=False):
        np.testing.assert_array_equal(other.step(fork, counts), output_beside)
        np.testing.assert_array_equal(texts.step(cache, counts), output)
        for one in (cache, fork):
            one.check_integrity()
    cache.free()
    np.testing.assert_array_equal(other.step(fork, STEPS[-1]), expected_beside[-1])
    fork.free()
    assert cache.pool.nbytes == cache.pool.num_pages == 0


@pytest.mark.parametrize(
    "policy", ["streaming=7,page=2", "h2o=7,page=3", "snapkv=7,page=4", "int4,snapkv=8,page=4"]
)
def test_a_shared_page_is_never_compacted_in_place(policy: str):
    texts = Texts(GROUPED)
    cache = texts.cache(policy)
    texts.step(cache, (6, 6))
    fork, state = cache.fork(), state_of(cache)[2]
    Texts(GROUPED, seed=1).step(fork, (13, 13))
    assert fork.drops[0] and state_of(cache)[2] == state


def test_rows_of_a_cache_step_by_themselves():
    texts = Texts(AS_MANY)
    for policy in ("int8,page=3", "tova=7,page=3", "window=5,page=2"):
        together, apart = texts.cache(policy), texts.cache(policy)
        for counts in ((9, 0), (0, 5), (1, 0), (0, 1)):
            expected = texts.step(together, counts)
            row = int(np.argmax(counts))
            q, k, v = (
                x[:, row : row + 1, :, apart.lengths[row] :][:, :, :, : max(counts)]
                for x in (texts.q, texts.k, texts.v)
            )
            one = apart.rows([row])
            for layer in range(AS_MANY.L):
                one.append(layer, k[layer], v[layer])
                rounding = 0 if is_compiled() else 1e-5  # NumPy alone promises no equal bits
                output = one.attend(layer, q[layer])[0]
                np.testing.assert_allclose(output, expected[layer, row], rtol=rounding, atol=rounding)
        assert together.lengths == apart.lengths == (10, 6)
        assert [len(some) for some in together.drops] == [len(some) for some in apart.drops]


# Pages come back


def test_a_window_holds_as_many_pages_however_long_the_text():
    texts, pages = Texts(GROUPED, B=1), Pages()
    cache = texts.cache("window=8,sinks=2,page=4", PagePool(new_page=pages))
    texts.step(cache, (20,))
    sizes = set()
    for _ in range(40):
        texts.step(cache, (1,))
        sizes.add(pages.nbytes // (2 * 2 * cache.layout.nbytes))
    assert sizes == {3, 4}  # the page of sinks, and 8 to 12 tokens, of which one is for going back


def test_what_an_eviction_drops_is_given_back():
    texts, pages = Texts(GROUPED, B=1), Pages()
    cache = texts.cache("tova=8,page=4", PagePool(new_page=pages))
    texts.step(cache, (40,))
    assert pages.nbytes == cache.pool.nbytes == 2 * 2 * 2 * cache.layout.nbytes
    assert len(pages.made) == 2 * 2 * 10
    assert (
        cache.pool.peak_nbytes == (2 * 10 + 2 * 2) * cache.layout.nbytes
    )  # one layer whole, and one that was cut


# Bad input


def test_queries_of_another_shape_are_refused():
    texts = Texts(AS_MANY)
    cache = texts.cache("")
    texts.append(cache, 0, (0, 0), (3, 3))
    q = texts.q[0, :, :, :3]
    for wrong in (q[:1], q[:, :2], q[..., :4], q[0]):
        with pytest.raises(
            ShapeError, match=r"takes q of shape \(B, H, T, D\) = \(2, a multiple of 3, T, 5\)"
        ):
            cache.attend(0, wrong)


@pytest.mark.parametrize("lengths", [[3], [4, 0], [-1, 2], [[1, 2]], [0.5, 2], [1.0, 2.0]], ids=str)
def test_lengths_that_do_not_fit_are_refused(lengths: list):
    texts = Texts(AS_MANY)
    cache = texts.cache("")
    with pytest.raises(ShapeError, match="lengths are 2 integers from 0 to 3"):
        cache.append(0, texts.k[0, :, :, :3], texts.v[0, :, :, :3], lengths)
    assert cache.nbytes == 0


def test_attending_twice_is_refused_where_pages_have_been_encoded_since():
    texts = Texts(GROUPED)
    cache = texts.cache("int4,page=4")
    texts.layer(cache, 0, (0, 0), (6, 6))
    with pytest.raises(OptionError, match="attend once in each layer after append"):
        cache.attend(0, texts.q[0, :, :, :6])


@pytest.mark.parametrize("rows", [[], [0, 1, 0], [0, -1], [-2], [1, 2]], ids=str)
def test_rows_are_some_and_each_once(rows: list[int]):
    with pytest.raises(OptionError, match="each once, not of"):
        Texts(GROUPED).cache("").rows(rows)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("latent", "latent is for models with latent attention"),
        ("expected=8", "expected must know how the model turns whole keys"),
        ("streaming=8,rerotate", "rerotate must know how the model turns whole keys"),
        ("heads=101,window=4", "this model takes 2 digits"),
    ],
)
def test_a_policy_that_the_model_cannot_have_is_refused(policy: str, message: str):
    with pytest.raises(OptionError, match=message):
        PagedCache(CacheShape(2, 2, 6), policy)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("int8,streaming=8,rerotate", "quantise int8 twice"),
        ("pyramidkv=8,rerotate", "as many tokens in each layer"),
    ],
)
def test_a_rotation_that_would_spoil_what_is_stored_is_refused(policy: str, message: str):
    with pytest.raises(OptionError, match=message):
        Texts(GROUPED).cache(policy)


def test_latent_models_may_say_so():
    assert Texts(LATENT).cache("latent,int8").nbytes == 0
    with pytest.raises(OptionError, match="batch_size must be at least 1, not 0"):
        PagedCache(CacheShape(1, 1, 2), batch_size=0)
