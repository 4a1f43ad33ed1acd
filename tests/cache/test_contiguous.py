"""The contiguous cache's own promises: how it grows, and that spare slots are never read."""

import numpy as np
import pytest

from qkv.cache.contiguous import CacheShape, ContiguousCache, grown_capacity

SHAPE = CacheShape(num_layers=2, num_kv_heads=3, head_dim=5)


def tokens(B: int, T: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(B, 3, T, 5)).astype(np.float32)


def append(cache: ContiguousCache, T: int, lengths: list[int] | None = None) -> None:
    for layer in range(2):
        cache.append(layer, tokens(cache.batch_size, T), tokens(cache.batch_size, T, 1), lengths)
        cache.attend(layer, tokens(cache.batch_size, T, 2), lengths)


def array_bytes(cache: ContiguousCache) -> int:
    return sum(layer.k.nbytes + layer.v.nbytes for layer in cache._layers)


def test_a_token_costs_a_key_and_a_value_in_every_layer_and_key_head():
    # Llama 2 7B: 2 x 32 layers x 32 heads x 128 numbers x 2 bytes; Llama 3 70B has 8 key heads, 80 layers.
    assert CacheShape(32, 32, 128, np.float16).bytes_per_token == 524_288
    assert CacheShape(80, 8, 128, np.float16).bytes_per_token == 327_680
    assert CacheShape(2, 3, 5).bytes_per_token == 240


def test_the_predicted_bytes_of_a_few_tokens_worked_out_by_hand():
    # 17 tokens need two times 16 slots; each slot of each of 3 sequences takes 240 bytes.
    cache = ContiguousCache(SHAPE, 3)
    assert [cache.predict_nbytes(n) for n in (0, 1, 16, 17)] == [0, 3 * 16 * 240, 3 * 16 * 240, 3 * 32 * 240]


def test_capacity_is_the_first_power_of_two_times_sixteen_that_suffices():
    for num_tokens in range(1, 300):
        capacity = grown_capacity(num_tokens)
        assert capacity == 16 * 2 ** max(0, int(np.ceil(np.log2(num_tokens / 16))))


def test_capacity_reached_in_steps_is_capacity_reached_at_once():
    capacity = 0
    for num_tokens in range(300):
        capacity = grown_capacity(num_tokens, capacity)
        assert capacity == grown_capacity(num_tokens)


@pytest.mark.parametrize("B", [1, 3])
def test_bytes_are_those_of_the_arrays_and_those_predicted(B: int):
    cache = ContiguousCache(SHAPE, B)
    for num_tokens in range(1, 140):
        append(cache, 1)
        assert cache.nbytes == array_bytes(cache) == cache.predict_nbytes(num_tokens)


def test_a_text_of_many_tokens_is_copied_a_few_times_only():
    cache = ContiguousCache(SHAPE)
    allocations, stored = 0, None
    for _ in range(1000):
        append(cache, 1)
        allocations += cache._layers[0].k is not stored
        stored = cache._layers[0].k
    # 16, 32, 64, ..., 1024 slots
    assert allocations == 7


def test_a_cache_that_was_trimmed_uses_its_slots_again():
    cache = ContiguousCache(SHAPE)
    append(cache, 100)
    stored, nbytes = cache._layers[0].k, cache.nbytes
    cache.trim(10)
    append(cache, 90)
    assert cache._layers[0].k is stored
    assert cache.nbytes == nbytes


def test_growing_keeps_every_bit_of_what_is_held():
    cache = ContiguousCache(SHAPE, 3)
    k, v = tokens(3, 97), tokens(3, 97, 1)
    for start, end in [(0, 13), (13, 14), (14, 40), (40, 97)]:
        for layer in range(2):
            cache.append(layer, k[:, :, start:end], v[:, :, start:end])
            cache.attend(layer, k[:, :, start:end])
    for layer in cache._layers:
        np.testing.assert_array_equal(layer.k[:, :, :97], k)
        np.testing.assert_array_equal(layer.v[:, :, :97], v)


@pytest.mark.parametrize("spare", [np.nan, np.inf, -np.inf, 3e38])
def test_spare_slots_change_no_bit(spare: float):
    zero, dirty = ContiguousCache(SHAPE, 3), ContiguousCache(SHAPE, 3)
    q = np.random.default_rng(2).normal(size=(3, 6, 1, 5)).astype(np.float32)
    outputs = []
    for cache, fill in ((zero, 0.0), (dirty, spare)):
        append(cache, 11, [11, 3, 7])
        for layer in cache._layers:
            for row, length in enumerate(layer.lengths):
                layer.k[row, :, length:], layer.v[row, :, length:] = fill, fill
        steps = []
        for _ in range(9):
            append(cache, 1)
            steps.append([cache.attend(layer, q) for layer in range(2)])
        outputs.append(steps)
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("spare", [np.nan, np.inf])
def test_what_was_trimmed_away_changes_no_bit(spare: float):
    never, trimmed = ContiguousCache(SHAPE), ContiguousCache(SHAPE)
    q = np.random.default_rng(2).normal(size=(1, 6, 1, 5)).astype(np.float32)
    append(never, 5)
    append(trimmed, 5)
    for layer in range(2):
        lost = np.full((1, 3, 8, 5), spare, np.float32)
        trimmed.append(layer, lost, lost)
    trimmed.trim(5)
    for cache in (never, trimmed):
        append(cache, 1)
    np.testing.assert_array_equal(trimmed.attend(1, q), never.attend(1, q))
