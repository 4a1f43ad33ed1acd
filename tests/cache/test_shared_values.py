"""A cache whose values are the first numbers of its keys: stored once, seen as both."""

import numpy as np
import pytest

import reference
from qkv import attend
from qkv.cache.contiguous import CacheShape, ContiguousCache
from qkv.errors import OptionError, ShapeError

B, H, D, VALUE_SIZE = 3, 5, 7, 5
SHARED = CacheShape(num_layers=2, num_kv_heads=1, head_dim=D, value_dim=VALUE_SIZE, shares_values=True)
APART = CacheShape(num_layers=2, num_kv_heads=1, head_dim=D, value_dim=VALUE_SIZE)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def step(cache: ContiguousCache, k: np.ndarray, lengths: list[int] | None = None) -> None:
    for layer in range(2):
        cache.append(layer, k, None, lengths)
        cache.attend(layer, k, lengths)


# What a token costs


def test_a_shared_value_costs_nothing_beside_its_key():
    assert SHARED.bytes_per_token == 2 * 7 * 4
    assert APART.bytes_per_token == 2 * (7 + 5) * 4
    # DeepSeek-V2-Lite: 27 layers of 512 + 64 numbers; its 16 heads of 128 as multi-head attention.
    assert CacheShape(27, 1, 576, np.float16, 512, shares_values=True).bytes_per_token == 31_104
    assert CacheShape(27, 16, 128, np.float16).bytes_per_token == 221_184


def test_values_may_be_the_whole_key():
    assert CacheShape(2, 1, 7, shares_values=True).bytes_per_token == CacheShape(1, 1, 7).bytes_per_token


def test_values_longer_than_the_keys_they_are_part_of_are_refused():
    with pytest.raises(OptionError, match=r"8 numbers .* keys of 7; try value_dim=7 or less"):
        CacheShape(2, 1, 7, value_dim=8, shares_values=True)
    assert CacheShape(2, 1, 7, value_dim=8).value_size == 8


@pytest.mark.parametrize("shape", [SHARED, APART], ids=["shared", "apart"])
def test_bytes_are_those_predicted_and_those_of_the_arrays(shape: CacheShape):
    cache, k = ContiguousCache(shape, B), normal(B, 1, 1, D)
    for num_tokens in range(1, 70):
        for layer in range(2):
            cache.append(layer, k, k[..., :VALUE_SIZE])
            cache.attend(layer, k)
        arrays = sum(layer.k.nbytes for layer in cache._layers)
        arrays += 0 if shape.shares_values else sum(layer.v.nbytes for layer in cache._layers)
        assert cache.nbytes == arrays == cache.predict_nbytes(num_tokens)


def test_values_are_a_view_of_the_keys_however_the_cache_grows():
    cache = ContiguousCache(SHARED, B)
    for num_tokens in (1, 16, 1, 40, 3):
        step(cache, normal(B, 1, num_tokens, D))
        for layer in cache._layers:
            assert layer.v.base is layer.k
            np.testing.assert_array_equal(layer.v[:, :, : cache.length], layer.k[:, :, : cache.length, :5])


# What is attended to


def test_two_tokens_worked_out_by_hand():
    """Scores of 0 and ln 3 weigh 1/4 and 3/4; the third number of a key is no value."""
    cache = ContiguousCache(CacheShape(1, 1, 3, value_dim=2, shares_values=True))
    cache.append(0, np.array([[[[4, 8, 0], [8, -8, np.log(3)]]]], np.float32), None)
    output = cache.attend(0, np.array([[[[0, 0, 1]], [[0, 0, 0]]]], np.float32), scale=1.0)
    np.testing.assert_allclose(output, [[[[7, -4]], [[6, 0]]]], rtol=1e-6)


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 7], [7, 1, 1, 2]], ids=str)
def test_keys_are_seen_as_keys_and_their_beginnings_as_values(chunks: list[int]):
    q, k = normal(B, H, 11, D), normal(B, 1, 11, D, seed=1)
    cache, outputs, start = ContiguousCache(SHARED, B), [], 0
    for chunk in chunks:
        step(cache, k[:, :, start : start + chunk])
        outputs.append(cache.attend(1, q[:, :, start : start + chunk], scale=0.3))
        start += chunk
    expected, _, _ = reference.attend(q, k, k[..., :VALUE_SIZE], causal=True, scale=0.3)
    np.testing.assert_allclose(np.concatenate(outputs, axis=2), expected, rtol=1e-5, atol=1e-5)


def test_bits_are_those_of_values_stored_apart():
    shared, apart = ContiguousCache(SHARED, B), ContiguousCache(APART, B)
    q, k = normal(B, H, 13, D), normal(B, 1, 13, D, seed=1)
    for layer in range(2):
        shared.append(layer, k, None)
        apart.append(layer, k, np.ascontiguousarray(k[..., :VALUE_SIZE]))
    np.testing.assert_array_equal(shared.attend(1, q), apart.attend(1, q))
    np.testing.assert_array_equal(shared.attend(1, q), attend(q, k, k[..., :VALUE_SIZE], causal=True))


def test_spare_slots_and_padding_change_no_bit():
    q, k = normal(B, H, 1, D), normal(B, 1, 11, D, seed=1)
    outputs = []
    for fill in (0.0, np.nan):
        cache, padded = ContiguousCache(SHARED, B), k.copy()
        padded[1, :, 3:] = fill
        step(cache, padded, [11, 3, 7])
        for layer in cache._layers:
            for row, length in enumerate(layer.lengths):
                layer.k[row, :, length:] = fill
        step(cache, k[:, :, :1])
        outputs.append(cache.attend(0, q))
    np.testing.assert_array_equal(*outputs)
    assert np.isfinite(outputs).all()


def test_a_trimmed_cache_goes_on_as_if_the_rest_had_never_been():
    never, trimmed = ContiguousCache(SHARED, B), ContiguousCache(SHARED, B)
    k, q = normal(B, 1, 20, D), normal(B, H, 1, D, seed=1)
    step(never, k[:, :, :5])
    step(trimmed, k)
    trimmed.trim(5)
    for cache in (never, trimmed):
        step(cache, k[:, :, -1:])
    np.testing.assert_array_equal(trimmed.attend(1, q), never.attend(1, q))


# What may be given


def test_values_may_be_given_as_the_view_they_are():
    given, left_out = ContiguousCache(SHARED, B), ContiguousCache(SHARED, B)
    k, q = normal(B, 1, 3, D), normal(B, H, 3, D, seed=1)
    given.append(0, k, k[..., :VALUE_SIZE])
    left_out.append(0, k, None)
    np.testing.assert_array_equal(given.attend(0, q), left_out.attend(0, q))


def test_values_of_their_own_are_refused_and_not_dropped():
    cache, k = ContiguousCache(SHARED, B), normal(B, 1, 3, D)
    with pytest.raises(ShapeError, match=r"the first 5 numbers of its keys, .* pass k\[\.\.\., :5\] or None"):
        cache.append(0, k, normal(B, 1, 3, VALUE_SIZE))
    assert cache.length == 0


@pytest.mark.parametrize("value_size", [4, 6, 7])
def test_values_of_another_size_are_refused(value_size: int):
    k = normal(B, 1, 3, D)
    for shape in (SHARED, APART):
        with pytest.raises(ShapeError, match=r"\(3, 1, 3, 7\) and \(3, 1, 3, 5\), not"):
            ContiguousCache(shape, B).append(0, k, k[..., :value_size])


def test_values_may_only_be_left_out_where_keys_hold_them():
    with pytest.raises(ShapeError, match=r"not \(3, 1, 3, 7\) and None"):
        ContiguousCache(APART, B).append(0, normal(B, 1, 3, D), None)


def test_values_apart_may_have_a_size_of_their_own():
    cache = ContiguousCache(APART, B)
    q, k, v = normal(B, H, 7, D), normal(B, 1, 7, D, seed=1), normal(B, 1, 7, VALUE_SIZE, seed=2)
    for layer in range(2):
        cache.append(layer, k, v)
    expected, _, _ = reference.attend(q, k, v, causal=True)
    np.testing.assert_allclose(cache.attend(1, q), expected, rtol=1e-5, atol=1e-5)
