"""What every cache promises: it gives back what was put in, and shows nothing else."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from qkv.cache import ContiguousCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import OptionError, ShapeError

L, G, H, D = 3, 2, 6, 5
SHAPE = CacheShape(num_layers=L, num_kv_heads=G, head_dim=D)
MAKERS: dict[str, Callable[[], ContiguousCache]] = {
    "contiguous, B = 1": partial(ContiguousCache, SHAPE, 1),
    "contiguous, B = 3": partial(ContiguousCache, SHAPE, 3),
}


@pytest.fixture(params=MAKERS)
def new_cache(request: pytest.FixtureRequest) -> Callable[[], ContiguousCache]:
    return MAKERS[request.param]


@pytest.fixture
def cache(new_cache: Callable[[], ContiguousCache]) -> ContiguousCache:
    return new_cache()


class Texts:
    """Random queries, keys and values of every layer: the whole of B texts of S tokens."""

    def __init__(self, B: int, S: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.q = rng.normal(size=(L, B, H, S, D)).astype(np.float32)
        self.k, self.v = rng.normal(size=(2, L, B, G, S, D)).astype(np.float32)

    def step(self, cache: ContiguousCache, tokens: slice, **options) -> np.ndarray:
        """Put the same tokens of each row into every layer, and attend there: (L, B, H, T, D)."""
        outputs = []
        for layer in range(L):
            cache.append(layer, self.k[layer, :, :, tokens], self.v[layer, :, :, tokens])
            outputs.append(cache.attend(layer, self.q[layer, :, :, tokens], **options))
        return np.array(outputs)

    def step_rows(self, cache: ContiguousCache, starts: list[int], counts: list[int]) -> np.ndarray:
        """Put tokens ``starts[b] .. starts[b] + counts[b]`` of row b in, packed left; NaN elsewhere."""
        T = max(counts)
        q, k, v = (np.full((L, len(counts), heads, T, D), np.nan, np.float32) for heads in (H, G, G))
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            for new, whole in ((q, self.q), (k, self.k), (v, self.v)):
                new[:, row, :, :count] = whole[:, row, :, start : start + count]
        lengths = None if set(counts) == {T} else counts
        outputs = []
        for layer in range(L):
            cache.append(layer, k[layer], v[layer], lengths)
            outputs.append(cache.attend(layer, q[layer], lengths))
        return np.array(outputs)

    def attended(self, layer: int, row: int, end: int, **options) -> np.ndarray:
        """What the plain loops give for one row of ``end`` tokens: (H, end, D)."""
        q, k, v = (whole[layer, row : row + 1, :, :end] for whole in (self.q, self.k, self.v))
        return reference.attend(q, k, v, causal=True, **options)[0][0]


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# What was put in is what is seen


@settings(deadline=None, max_examples=12)
@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=5))
@pytest.mark.parametrize("name", MAKERS)
def test_chunks_of_any_size_are_seen_as_one_text(name: str, chunks: list[int]):
    cache = MAKERS[name]()
    S = sum(chunks)
    texts = Texts(cache.batch_size, S)
    ends = list(accumulate(chunks))
    outputs = [texts.step(cache, slice(end - chunk, end)) for chunk, end in zip(chunks, ends, strict=True)]
    whole = np.concatenate(outputs, axis=3)
    for layer in range(L):
        for row in range(cache.batch_size):
            close(whole[layer, row], texts.attended(layer, row, S))


def test_seven_tokens_in_chunks_see_one_to_seven_tokens(cache: ContiguousCache):
    """Scores are all 0 and the values 1 to 7, so each output is the mean of what is visible."""
    outputs, lengths = [], []
    for chunk in ([1, 2, 3], [4, 5, 6], [7]):
        shape = (cache.batch_size, G, len(chunk), D)
        values = np.broadcast_to(np.array(chunk, np.float32)[:, None], shape)
        q = np.ones((cache.batch_size, H, len(chunk), D), np.float32)
        for layer in range(L):
            cache.append(layer, np.zeros(shape, np.float32), values)
            attended = cache.attend(layer, q)[-1, -1, :, -1]
            outputs.extend(attended if layer == 1 else [])
        lengths.append(cache.length)
    np.testing.assert_allclose(outputs, [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], rtol=1e-6)
    assert lengths == [3, 6, 7]


@settings(deadline=None, max_examples=25)
@given(
    steps=st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=4).filter(
        lambda s: any(map(any, s))
    )
)
def test_rows_of_any_lengths_are_seen_as_they_are_alone(steps: list[tuple[int, int, int]]):
    cache = MAKERS["contiguous, B = 3"]()
    texts, held = Texts(3, 17), [0, 0, 0]
    for counts in filter(any, steps):
        outputs = texts.step_rows(cache, held, list(counts))
        for row, count in enumerate(counts):
            expected = texts.attended(1, row, held[row] + count)[:, held[row] :]
            close(outputs[1, row, :, :count], expected)
            held[row] += count
        assert cache.lengths == tuple(held)


def test_the_next_token_of_a_short_row_goes_right_behind_its_last():
    """Rows of 8 and 5 tokens; then only the short one goes on, and its sixth token is at position 5."""
    cache, texts = MAKERS["contiguous, B = 3"](), Texts(3, 11)
    texts.step_rows(cache, [0, 0, 0], [8, 5, 2])
    for held in (5, 6, 7):
        outputs = texts.step_rows(cache, [8, held, 2], [0, 1, 0])
        close(outputs[2, 1, :, 0], texts.attended(2, 1, held + 1)[:, held])
        assert cache.lengths == (8, held + 1, 2)
    outputs = texts.step_rows(cache, [8, 8, 2], [1, 1, 1])
    close(outputs[2, 0, :, 0], texts.attended(2, 0, 9)[:, 8])
    close(outputs[2, 2, :, 0], texts.attended(2, 2, 3)[:, 2])


@pytest.mark.parametrize(
    "options",
    [{"window": 3}, {"scale": 0.3}, {"softcap": 0.7}, {"sinks": [0.1, 2.0, -1.0, 0.5, 0.0, 3.0]}],
    ids=str,
)
def test_attend_takes_the_further_rules_of_attention(cache: ContiguousCache, options: dict):
    texts = Texts(cache.batch_size, 11)
    texts.step(cache, slice(0, 7), **options)
    outputs = texts.step(cache, slice(7, 11), **options)
    for row in range(cache.batch_size):
        close(outputs[1, row], texts.attended(1, row, 11, **options)[:, 7:])


def test_attend_can_return_the_weights(cache: ContiguousCache):
    texts = Texts(cache.batch_size, 7)
    texts.step(cache, slice(0, 5))
    cache.append(0, texts.k[0, :, :, 5:], texts.v[0, :, :, 5:])
    _, weights = cache.attend(0, texts.q[0, :, :, 5:], return_weights=True)
    assert weights.shape == (cache.batch_size, H, 2, 7)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(weights[:, :, 0, 6], 0)


def test_slots_that_were_never_written_have_no_weight(cache: ContiguousCache):
    """Three tokens with score -1 and value 1 give 1; thirteen blank slots beside them would give 0.08."""
    ones = np.ones((cache.batch_size, G, 3, D), np.float32)
    q = np.full((cache.batch_size, H, 3, D), -(D**-0.5), np.float32)  # scores of -1
    for layer in range(L):
        cache.append(layer, ones, ones)
    np.testing.assert_allclose(cache.attend(0, q)[:, :, -1], 1.0, rtol=1e-6)


def test_a_token_whose_key_is_all_zeros_counts_as_a_token(cache: ContiguousCache):
    zeros = np.zeros((cache.batch_size, G, 1, D), np.float32)
    for layer in range(L):
        cache.append(layer, zeros, zeros)
        cache.attend(layer, np.zeros((cache.batch_size, H, 1, D), np.float32))
    assert cache.length == 1
    assert cache.lengths == (1,) * cache.batch_size


def test_what_was_appended_may_change_afterwards(cache: ContiguousCache):
    texts, kept = Texts(cache.batch_size, 7), Texts(cache.batch_size, 7)
    texts.step(cache, slice(0, 6))
    texts.k[:, :, :, :6] = np.nan
    texts.v[:, :, :, :6] = np.nan
    outputs = texts.step(cache, slice(6, 7))
    for row in range(cache.batch_size):
        close(outputs[0, row, :, 0], kept.attended(0, row, 7)[:, 6])


def test_appending_writes_nothing_into_its_arguments(cache: ContiguousCache):
    texts = Texts(cache.batch_size, 7)
    for array in (texts.q, texts.k, texts.v):
        array.flags.writeable = False
    texts.step(cache, slice(0, 7))


# A step that does not end


def test_a_token_counts_once_every_layer_has_it(cache: ContiguousCache):
    texts = Texts(cache.batch_size, 5)
    for layer in range(L):
        assert cache.length == 0
        cache.append(layer, texts.k[layer], texts.v[layer])
        assert cache.length == 0
        cache.attend(layer, texts.q[layer])
    assert cache.length == 5


@pytest.mark.parametrize("held", [0, 4])
@pytest.mark.parametrize("layers_done", [1, 2, 3])
def test_an_interrupted_step_leaves_nothing_behind(
    new_cache: Callable[[], ContiguousCache], held: int, layers_done: int
):
    cache, untouched = new_cache(), new_cache()
    texts, lost = Texts(cache.batch_size, 9), Texts(cache.batch_size, 23, seed=1)
    for one in (cache, untouched):
        texts.step(one, slice(0, held))
    for layer in range(layers_done):
        cache.append(layer, lost.k[layer], lost.v[layer])
    assert cache.lengths == untouched.lengths == (held,) * cache.batch_size
    for tokens in (slice(held, 7), slice(7, 9)):
        np.testing.assert_array_equal(texts.step(cache, tokens), texts.step(untouched, tokens))


def test_an_interrupted_step_may_be_trimmed_away(cache: ContiguousCache):
    texts = Texts(cache.batch_size, 9)
    texts.step(cache, slice(0, 6))
    cache.append(0, texts.k[0], texts.v[0])
    cache.trim(4)
    outputs = texts.step(cache, slice(4, 9))
    for row in range(cache.batch_size):
        close(outputs[0, row], texts.attended(0, row, 9)[:, 4:])


# Trim


@pytest.mark.parametrize("length", [0, 1, 4, 7])
def test_a_trimmed_cache_goes_on_as_if_the_rest_had_never_been(cache: ContiguousCache, length: int):
    texts, lost = Texts(cache.batch_size, 11), Texts(cache.batch_size, 7, seed=1)
    texts.step(cache, slice(0, length))
    lost.step(cache, slice(0, 7 - length))
    cache.trim(length)
    assert cache.lengths == (length,) * cache.batch_size
    outputs = texts.step(cache, slice(length, 11))
    for row in range(cache.batch_size):
        close(outputs[2, row], texts.attended(2, row, 11)[:, length:])


def test_a_row_shorter_than_the_trimmed_length_keeps_all_it_has():
    cache, texts = MAKERS["contiguous, B = 3"](), Texts(3, 13)
    texts.step_rows(cache, [0, 0, 0], [8, 5, 2])
    cache.trim(5)
    assert cache.lengths == (5, 5, 2)
    outputs = texts.step_rows(cache, [5, 5, 2], [1, 1, 1])
    for row, held in enumerate([5, 5, 2]):
        close(outputs[0, row, :, 0], texts.attended(0, row, held + 1)[:, held])


@pytest.mark.parametrize("length", [-1, 8, "3", 1.5, True, None])
def test_trim_refuses_a_length_that_is_not_held(cache: ContiguousCache, length: Any):
    Texts(cache.batch_size, 7).step(cache, slice(0, 7))
    with pytest.raises(OptionError, match=f"a length to trim to must be .*from 0 to 7, not {length!r}"):
        cache.trim(length)
    assert cache.length == 7


# Bytes


def test_bytes_are_what_was_predicted(new_cache: Callable[[], ContiguousCache]):
    cache = new_cache()
    assert cache.nbytes == cache.predict_nbytes(0)
    texts = Texts(cache.batch_size, 131)
    for end, chunk in [(1, 1), (2, 1), (15, 13), (16, 1), (17, 1), (31, 14), (33, 2), (47, 14), (131, 84)]:
        texts.step(cache, slice(end - chunk, end))
        assert cache.nbytes == cache.predict_nbytes(end)
        assert cache.nbytes >= cache.batch_size * end * SHAPE.bytes_per_token


def test_bytes_follow_the_longest_row():
    cache = MAKERS["contiguous, B = 3"]()
    Texts(3, 41).step_rows(cache, [0, 0, 0], [3, 41, 19])
    assert cache.nbytes == cache.predict_nbytes(41)


def test_an_empty_cache_holds_no_token(cache: ContiguousCache):
    assert (cache.length, cache.lengths) == (0, (0,) * cache.batch_size)


# Types and shapes


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
def test_every_float_type_is_stored_and_attended_as_it_is(dtype: type):
    cache = ContiguousCache(CacheShape(1, G, D, dtype), 3)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(3, heads, 7, D)).astype(dtype) for heads in (H, G, G))
    cache.append(0, k, v)
    outputs = cache.attend(0, q)
    assert outputs.dtype == dtype
    assert cache.nbytes == cache.predict_nbytes(7)
    expected, _, _ = reference.attend(q, k, v, causal=True)
    unit = {8: 2.0**-52, 4: 2.0**-23}.get(np.dtype(dtype).itemsize, float(ml_dtypes.finfo(dtype).eps))
    np.testing.assert_allclose(outputs.astype(np.float64), expected, rtol=0, atol=8 * unit)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_keys_of_another_shape_are_refused(cache: ContiguousCache, axis: int):
    right = np.ones((cache.batch_size, G, 3, D), np.float32)
    wrong = np.ones([n + (index == axis) for index, n in enumerate(right.shape)], np.float32)
    for k, v in ((wrong, wrong), (right, wrong), (wrong, right), (right, right[:, :, :2])):
        with pytest.raises(ShapeError, match=r"\(B, G, T, D\)"):
            cache.append(0, k, v)
    assert cache.length == 0


@pytest.mark.parametrize("count", [-1, 4, 0.5, 1.0])
def test_lengths_that_do_not_fit_are_refused(cache: ContiguousCache, count: float):
    k = np.ones((cache.batch_size, G, 3, D), np.float32)
    for lengths in ([count] * cache.batch_size, [1] * (cache.batch_size + 1)):
        with pytest.raises(ShapeError, match=rf"lengths are {cache.batch_size} integers from 0 to 3, not"):
            cache.append(0, k, k, lengths)  # type: ignore[arg-type]
    assert cache.nbytes == 0


def test_a_cache_of_no_sequence_is_refused(new_cache: Callable[[], ContiguousCache]):
    with pytest.raises(OptionError, match="batch_size must be at least 1, not 0"):
        type(new_cache())(SHAPE, 0)
