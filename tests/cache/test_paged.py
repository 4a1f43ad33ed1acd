"""Known faults of caches, as small cases with the right answer worked out by hand."""

from typing import Any

import numpy as np
import pytest

from cache_cases import BACKENDS, GROUPED, Texts, state_of
from qkv import use_backend
from qkv.cache import CacheShape, PagedCache, PagePool, Policy, closing, keeping, paged, tables
from qkv.cache.elements import ELEMENTS
from qkv.cache.prediction import predicted_nbytes
from qkv.cache.windows import NO_WINDOW
from qkv.errors import TrimError

ELEMENT_POLICIES = [*ELEMENTS, *(f"{name},page=2" for name in ELEMENTS), "window=100", "streaming=100"]
BROKEN_OFF = ["page=4", "int8,page=4", "int4,page=4", "window=3,sinks=1,page=2", "streaming=9,page=4"]


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest):
    with use_backend(request.param):
        yield


def poisoned_pool() -> PagePool:
    return PagePool(new_page=lambda nbytes: np.full(nbytes, 255, np.uint8))


def one_head(policy: str, num_layers: int = 1) -> PagedCache:
    """A cache of one key head of size 2, its pages full of NaN."""
    return PagedCache(CacheShape(num_layers, 1, 2), policy, pool=poisoned_pool())


def read(cache: PagedCache, values: Any) -> list[float]:
    """Run tokens of these values through every layer, with scores of 0; return what the last layer gives."""
    v = np.repeat(np.asarray(values, np.float32), 2).reshape(1, 1, -1, 2)
    output = np.zeros(0)
    for layer in range(cache.shape.num_layers):
        cache.append(layer, np.zeros_like(v), v)
        output = cache.attend(layer, np.ones_like(v))
    return output[0, 0, :, 0].tolist()


# Chunks behind what is there


@pytest.mark.parametrize("policy", ELEMENT_POLICIES)
def test_seven_tokens_in_chunks_see_one_to_seven_tokens(policy: str):
    """Scores are all 0 and the values 1 to 7, so each output is the mean of what is visible."""
    cache, outputs, seen = one_head(policy), [], []
    for chunk in ([1, 2, 3], [4, 5, 6], [7]):
        seen.append(cache.positions(len(chunk)).tolist()[0])
        outputs += read(cache, chunk)
        seen.append(cache.length)
    error = {"int4": 0.04, "int8-kivi": 0.02}.get(Policy.parse(policy).element, 1e-6)
    np.testing.assert_allclose(outputs, [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], atol=error)
    assert seen == [[0, 1, 2], 3, [3, 4, 5], 6, [6], 7]


# A window at its edge


@pytest.mark.parametrize("page", [1, 3, 8, 16])
def test_a_window_of_eight_sees_the_last_eight_before_at_and_past_its_edge(page: int):
    cache = one_head(f"window=8,page={page}")
    outputs = read(cache, [10.0, 10.1, 10.2, 10.3, 10.4, 10.5])[-1:]
    for value in (10.6, 10.7, 10.8, 10.9):
        outputs += read(cache, [value])
    means = [10.25, 10.3, 10.35, 10.45, 10.55]  # of 10.0-10.5, 10.0-10.6, 10.0-10.7, 10.1-10.8, 10.2-10.9
    np.testing.assert_allclose(outputs, means, rtol=1e-6)


@pytest.mark.parametrize("page", [1, 3, 8, 16])
def test_a_prompt_longer_than_the_window_is_seen_whole_as_it_passes_and_its_end_is_kept(page: int):
    cache = one_head(f"window=8,page={page}")
    outputs = read(cache, range(12))
    np.testing.assert_allclose(outputs, [np.mean(range(max(0, t - 7), t + 1)) for t in range(12)], rtol=1e-6)
    there = np.flatnonzero(cache.sequences[0].pages.present[0, 0]) * page
    assert there[0] <= 4 and there[0] + page > 4 and cache.nbytes == len(there) * cache.layout.nbytes
    np.testing.assert_allclose(read(cache, [12]), [np.mean(range(5, 13))], rtol=1e-6)


@pytest.mark.parametrize(
    "policy", ["window=5,sinks=2,page=2", "int4,window=5,page=2", "window=5,heads=1/0,page=2"]
)
def test_a_window_looks_at_few_pages_of_its_table_however_long_the_text(
    policy: str, monkeypatch: pytest.MonkeyPatch
):
    """Of the hundreds that there were: one to write to, and those that have just fallen behind."""
    marked: list[int] = []

    def note(first: Any, end: Any) -> tables.Marked:
        some = between(first, end)
        marked.append(some.where.size)
        return some

    between = tables.between
    for module in (tables, keeping, closing):
        monkeypatch.setattr(module, "between", note)
    cache = one_head(policy, num_layers=2)
    read(cache, range(400))
    for value in range(8):
        marked.clear()
        read(cache, [value])
        assert marked and max(marked) <= 2 * 2  # of each layer two
        cache.check_integrity()


def test_a_windowed_text_goes_back_as_far_as_what_it_needs_is_there():
    """Window 8, 20 tokens: 12 to 19 are there. Length 20 needs 13-19 and 19 needs 12-18; 18 needs 11."""
    cache = one_head("window=8,page=1")
    read(cache, range(20))
    assert np.flatnonzero(cache.sequences[0].pages.present[0, 0]).tolist() == [*range(12, 20)]
    for length in (18, 15):
        with pytest.raises(TrimError, match="would be seen again, and is gone; compute the text anew"):
            cache.trim(length)
    cache.trim(20)
    assert cache.fork().length == 20
    cache.trim(19)
    np.testing.assert_allclose(read(cache, [99]), [(sum(range(12, 19)) + 99) / 8], rtol=1e-6)


def test_one_layer_that_cannot_go_back_keeps_all_from_it():
    cache = one_head("window=8,heads=1/0,page=1", num_layers=2)
    read(cache, range(20))
    state = state_of(cache)
    with pytest.raises(TrimError):
        cache.trim(15)
    assert state_of(cache) == state
    assert cache.sequences[0].tokens.tolist() == [20, 20]
    np.testing.assert_allclose(read(cache, [20]), [np.mean(range(13, 21))], rtol=1e-6)
    cache.trim(0)
    np.testing.assert_allclose(read(cache, [5]), [5])


# Forks


def test_a_fork_takes_a_page_when_it_writes_and_outlives_its_parent():
    """Pages of 4, a parent of 6 tokens: 2 pages, 2 after the fork, 3 once both have written."""
    parent = one_head("page=4")
    pool, beginning = parent.pool, [1, 2, 3, 4, 5, 6]
    read(parent, beginning)
    assert pool.num_pages == 2
    child = parent.fork()
    assert pool.num_pages == 2
    read(parent, [7])
    read(child, [8])
    assert pool.num_pages == 3
    assert pool.references(parent.sequences[0].pages.ids[0, 0, :2]).tolist() == [2, 1]
    parent.free()
    assert pool.num_pages == 2
    fresh = one_head("page=4")
    read(fresh, [*beginning, 8])
    assert read(child, [9, 10, 11]) == read(fresh, [9, 10, 11])
    child.free()
    assert pool.num_pages == 0


# Rows of a batch


def test_the_next_token_of_a_short_row_goes_right_behind_its_last():
    """Rows of 8 and 5 tokens; then only the short one goes on, and its sixth token is at position 5."""
    texts = Texts(GROUPED)
    for policy in ("page=3", "int4,page=4", "window=4,page=2"):
        cache = texts.cache(policy)
        texts.step(cache, (8, 5))
        assert cache.positions(2).tolist() == [[8, 9], [5, 6]]
        short, alone = cache.rows([1]), PagedCache(cache.shape, policy)
        of_row = Texts(GROUPED, B=1)
        of_row.q, of_row.k, of_row.v = (x[:, 1:] for x in (texts.q, texts.k, texts.v))
        of_row.step(alone, (5,))
        for length in (6, 7, 8):
            np.testing.assert_array_equal(of_row.step(short, (1,)), of_row.step(alone, (1,)))
            assert (short.batch_size, short.lengths) == (1, (length,))
            assert short.positions(1).tolist() == [[length]]
            assert cache.lengths == (8, length)


def test_a_row_that_is_cancelled_between_chunks_of_a_prompt_takes_nothing_from_the_others():
    texts = Texts(GROUPED)
    cache, alone = texts.cache("page=3"), texts.cache("page=3")
    expected = [texts.step(alone, counts) for counts in ((5, 5), (4, 4), (1, 1))]
    texts.step(cache, (5, 5))
    cache.rows([0]).free()
    assert cache.lengths == (0, 5)
    for output, count in zip(expected[1:], (4, 1), strict=True):
        np.testing.assert_array_equal(texts.step(cache, (0, count))[:, 1], output[:, 1])
    assert cache.nbytes == cache.pool.nbytes


# A step that is broken off in the last layer


@pytest.mark.parametrize("held", [3, 4], ids="held={}".format)
@pytest.mark.parametrize("policy", [*BROKEN_OFF, "streaming=9,sinks=1,rerotate,page=4"])
def test_a_step_that_only_the_last_layer_did_not_attend_is_begun_anew(policy: str, held: int):
    """Its token is stored in every layer; before that 3 tokens fill a part of a page, or 4 a page of 4."""
    texts = Texts(GROUPED)
    broken_off, untouched = texts.cache(policy), texts.cache(policy)
    for cache in (broken_off, untouched):
        texts.step(cache, (held, held - 1))
    lost = Texts(GROUPED, seed=1)
    lost.layer(broken_off, 0, (held, held), (1, 1))
    lost.append(broken_off, 1, (held, held), (1, 1))
    assert broken_off.lengths == untouched.lengths == (held, held - 1)
    assert broken_off.positions(2).tolist() == untouched.positions(2).tolist()
    broken_off.check_integrity()
    for counts in ((1, 1), (3, 1), (1, 1)):
        np.testing.assert_array_equal(texts.step(broken_off, counts), texts.step(untouched, counts))
        assert broken_off.lengths == untouched.lengths
        broken_off.check_integrity()


@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("policy", BROKEN_OFF)
def test_a_layer_that_is_given_its_token_twice_keeps_the_second(policy: str, again: int):
    """Four tokens fill a page, so that the fifth, which begins one, needs one in either layer."""
    texts, lost = Texts(GROUPED), Texts(GROUPED, seed=1)
    twice, once = texts.cache(policy), texts.cache(policy)
    for cache in (twice, once):
        texts.step(cache, (4, 4))
    outputs = []
    for layer in range(2):
        if layer == again:
            lost.append(twice, layer, (4, 4), (1, 1))
        outputs.append([texts.layer(cache, layer, (4, 4), (1, 1)) for cache in (twice, once)])
    for got, expected in outputs:
        np.testing.assert_array_equal(got, expected)
    assert twice.lengths == (5, 5)
    twice.check_integrity()


def test_a_step_of_which_only_the_tidying_was_broken_off_counts_and_the_next_one_tidies_up(
    monkeypatch: pytest.MonkeyPatch,
):
    def interrupt(one: Any) -> None:
        raise KeyboardInterrupt

    broken_off, untouched = one_head("int4,page=4"), one_head("int4,page=4")
    for cache in (broken_off, untouched):
        read(cache, [1, 2, 3])
    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(paged, "drop_all_filled", interrupt)
        read(broken_off, [4])
    read(untouched, [4])
    assert broken_off.length == 4 and broken_off.nbytes > untouched.nbytes
    assert read(broken_off, [5]) == read(untouched, [5])
    assert broken_off.nbytes == untouched.nbytes


@pytest.mark.parametrize("policy", ["h2o=9,page=4", "h2o=9:sum,bf16,page=4"])
def test_scores_that_no_query_has_added_to_let_a_step_begin_anew(policy: str):
    texts = Texts(GROUPED)
    broken_off, untouched = texts.cache(policy), texts.cache(policy)
    for cache in (broken_off, untouched):
        texts.step(cache, (5, 4))
    Texts(GROUPED, seed=1).append(broken_off, 0, (5, 4), (1, 1))
    for counts in ((1, 1), (7, 1), (1, 1)):
        np.testing.assert_array_equal(texts.step(broken_off, counts), texts.step(untouched, counts))
    lengths = broken_off.lengths
    texts.append(broken_off, 0, lengths, (1, 1))
    broken_off.trim(max(lengths))
    texts.layer(broken_off, 0, lengths, (1, 1))
    with pytest.raises(TrimError, match="part of the others' scores"):
        texts.append(broken_off, 0, lengths, (1, 1))
    with pytest.raises(TrimError, match="part of the others' scores"):
        broken_off.trim(max(lengths))


# Nothing of another text


@pytest.mark.parametrize("policy", ELEMENT_POLICIES)
def test_what_was_trimmed_away_is_of_no_text_any_more(policy: str):
    fresh, used = one_head(policy), one_head(policy)
    read(used, range(1, 13))
    used.trim(4)
    read(fresh, range(1, 5))
    assert read(used, [20, 21]) == read(fresh, [20, 21])


@pytest.mark.parametrize("policy", ELEMENT_POLICIES)
def test_slots_that_were_never_written_have_no_weight(policy: str):
    """Three tokens with score -1 and value 1 give 1; thirteen blank slots beside them would give 0.08."""
    cache, ones = one_head(policy), np.ones((1, 1, 3, 2), np.float32)
    cache.append(0, ones, ones)
    q = np.full((1, 1, 3, 2), -(2**-0.5), np.float32)  # scores of -1
    np.testing.assert_allclose(cache.attend(0, q), 1.0, rtol=1e-3)


@pytest.mark.parametrize("policy", ELEMENT_POLICIES)
def test_a_token_whose_key_is_all_zeros_counts_as_a_token(policy: str):
    cache = one_head(policy)
    assert read(cache, [0.0]) == [0.0]
    assert (cache.length, cache.lengths) == (1, (1,))
    assert read(cache, [4.0]) == [2.0]


@pytest.mark.parametrize(
    "policy", ["page=3", "int8,page=3", "int4,page=4", "window=5,sinks=2", "h2o=6,page=2"]
)
def test_sixteen_texts_side_by_side_are_each_as_alone(policy: str):
    texts = Texts(GROUPED, B=16, S=20)
    cache, counts = texts.cache(policy, poisoned_pool()), tuple(range(3, 19))
    together = [texts.step(cache, step) for step in (counts, (1,) * 16)]
    for row in (0, 7, 15):
        alone = Texts(GROUPED, B=1)
        alone.q, alone.k, alone.v = (x[:, row : row + 1] for x in (texts.q, texts.k, texts.v))
        solo = PagedCache(cache.shape, policy, pool=poisoned_pool())
        for output, count in zip(together, (counts[row], 1), strict=True):
            expected = alone.step(solo, (count,))[:, 0]
            np.testing.assert_allclose(output[:, row, :, :count], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("element", ["float32", "int8", "int4", "int8-kivi"])
@pytest.mark.parametrize("num_tokens", [0, 1, 31, 32, 33, 101])
def test_bytes_without_windows_are_those_with_windows_that_hide_nothing(element: str, num_tokens: int):
    shape, policy = CacheShape(num_layers=3, num_kv_heads=2, head_dim=4), Policy.parse(element)
    wide = np.full(3, NO_WINDOW)
    assert predicted_nbytes(shape, policy, num_tokens) == predicted_nbytes(
        shape, policy, num_tokens, model_windows=wide
    )


def test_a_fork_that_is_given_nothing_still_shares_its_page_under_way():
    parent, fresh = one_head("page=3"), one_head("page=3")
    read(parent, [1, 2, 3, 4])
    child, nothing = parent.fork(), np.ones((1, 1, 0, parent.shape.head_dim), np.float32)
    child.append(0, nothing, nothing)
    child.check_integrity()
    read(child, [9])
    read(fresh, [1, 2, 3, 4])
    assert read(parent, [5]) == read(fresh, [5])
