"""Attention on pages is attention on arrays, to the bit, and hides what it should, whatever lies there."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from attention_paths import normal
from paged_arrays import Stored, same, store, visible
from qkv.cache.layout import PageLayout
from qkv.kernels.attention import ROWS, attend
from qkv.kernels.attention_words import EARLIER_PAGES, OWN_PAGE_ONLY, STRETCH_KEYS
from qkv.kernels.host import HOST_TILE, Tile
from qkv.kernels.paged_attention import Reach, attend_pages, sum_columns
from qkv.ops import merge_attended

TILES = [ROWS, HOST_TILE, Tile(8, 2, 16), Tile(6, 2, 8), Tile(4, 3, 4), Tile(1, 1, 4)]
PAGE_SIZES = [1, 3, 16, 37, 64, 100]


def paged(P: int, k: np.ndarray, v: np.ndarray) -> Stored:
    """Keys and values in pages of float32; the slots behind the last hold NaN."""
    return store(PageLayout("float32", P, k.shape[3], v.shape[3]), k, v)


def attended(q: np.ndarray, stored: Stored, reach: Reach, **rules: Any) -> tuple[np.ndarray, np.ndarray]:
    """Attend to pages, whose memory is held meanwhile."""
    return attend_pages(q, stored.pages, reach, **rules)


def summed(q: np.ndarray, stored: Stored, reach: Reach, lse: np.ndarray, **rules: Any) -> np.ndarray:
    return sum_columns(q, stored.pages, reach, lse, **rules)


def inputs(B: int, H: int, G: int, T: int, S: int, D: int, D_v: int) -> list[np.ndarray]:
    sizes = (B, H, T, D), (B, G, S, D), (B, G, S, D_v)
    return [normal(seed, *size, dtype=np.float32) for seed, size in enumerate(sizes)]


def everywhere(number: int, B: int = 1, G: int = 2) -> np.ndarray:
    return np.full((B, G), number)


# As on arrays


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("splits_keys", [False, True])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_no_bit_depends_on_pages_or_on_how_the_work_is_cut(tile: Any, splits_keys: bool, num_workers: int):
    S = 2 * STRETCH_KEYS + 131
    q, k, v = inputs(1, 6, 2, 2, S, 13, 11)
    rules = {"scale": 0.3, "sinks": normal(9, 6, dtype=np.float32)}
    expected = attend(q, k, v, **rules, offsets=S - 2, right=0)
    cut = {"tile": tile, "splits_keys": splits_keys, "num_workers": num_workers}
    for P in (16, 37):
        got = attended(q, paged(P, k, v), Reach(everywhere(S - 2), everywhere(S)), **rules, **cut)
        assert same(got, expected)


@pytest.mark.parametrize("P", PAGE_SIZES)
@pytest.mark.parametrize("rules", [{}, {"softcap": 0.7}, {"scale": -0.2}, {"scale": 0.0}], ids=str)
def test_rows_of_any_lengths_have_the_bits_of_arrays(P: int, rules: dict):
    q, k, v = inputs(3, 4, 2, 5, 131, 10, 7)
    rules = {"scale": 0.4} | rules
    held, new = np.array([131, 64, 5]), [5, 1, 0]
    expected = attend(
        q, k, v, **rules, right=0, offsets=(held - new).tolist(), q_lengths=new, kv_lengths=held.tolist()
    )
    lengths = np.repeat(held[:, None], 2, axis=1)
    reach = Reach(lengths - np.array(new)[:, None], lengths, q_lengths=new)
    assert same(attended(q, paged(P, k, v), reach, **rules), expected)


@pytest.mark.parametrize("window", [1, 5, 90, 1000])
@pytest.mark.parametrize("P", PAGE_SIZES)
def test_a_window_over_pages_has_the_bits_of_one_over_arrays(P: int, window: int):
    q, k, v = inputs(1, 4, 2, 7, 300, 8, 8)
    expected = attend(q, k, v, scale=0.3, offsets=293, left=window - 1, right=0)
    reach = Reach(everywhere(293), everywhere(300), left=everywhere(window - 1))
    stored = paged(P, k, v)
    assert same(attended(q, stored, reach, scale=0.3), expected)
    behind = max(0, 294 - window) // P  # pages of which no query sees a key
    stored.pages.table[:, :, :behind] = 0
    assert same(attended(q, stored, reach, scale=0.3), expected)


# What a query sees, by plain loops


def check(q: np.ndarray, stored: Stored, reach: Reach, P: int) -> None:
    """Compare output, lse and sums with plain loops on what is visible, and ways to cut with each other."""
    (B, H, T, _), (_, G, S, _) = q.shape, stored.k.shape
    seen = visible(reach, T, S, P)
    mask = np.repeat(seen, H // G, axis=1)
    output, weights, lse = reference.attend(q, stored.k, stored.v, mask=mask, scale=0.4)
    results = [attended(q, stored, reach, scale=0.4, tile=tile) for tile in tiles_for(H // G * T)]
    np.testing.assert_allclose(results[0][0], output, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(results[0][1], lse, rtol=1e-5, atol=2e-6)
    assert all(same(one, results[0]) for one in results)
    factors = normal(7, B, T, dtype=np.float32)
    sums = summed(q, stored, reach, results[0][1], scale=0.4, factors=factors)
    weighed = (weights * factors[:, None, :, None]).sum(axis=2).reshape(B, G, H // G, S).sum(axis=2)
    held = int(reach.kv_lengths.max())
    np.testing.assert_allclose(sums, weighed[:, :, :held], rtol=1e-5, atol=1e-5)
    unseen = np.logical_not(seen.any(axis=2))[:, :, :held]
    assert not sums[unseen].any()


def tiles_for(num_queries: int) -> list:
    return [None, HOST_TILE, Tile(4, 3, 4)] + ([ROWS] if num_queries <= 8 else [])


@settings(max_examples=60)
@given(data=st.data())
def test_queries_see_what_windows_first_keys_pages_and_positions_show_them(data):
    B, G, group, T = 2, 2, data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([1, 2, 9]))
    S, P = data.draw(st.sampled_from([9, 30, 70, 131])), data.draw(st.sampled_from([1, 3, 16, 64]))
    counts = st.integers(T, S)
    held = np.array([[data.draw(counts) for _ in range(G)] for _ in range(B)])
    q_lengths = data.draw(st.sampled_from([None, [T, 0], [1, T]]))
    new = np.full(B, T) if q_lengths is None else np.array(q_lengths)
    windows = st.sampled_from([0, 2, 20, 1 << 40])
    left = np.array([[data.draw(windows) for _ in range(G)] for _ in range(B)])
    gaps = np.random.default_rng(data.draw(st.integers(0, 9))).integers(1, 4, (B, G, S))
    reach = Reach(
        held - new[:, None],
        held,
        left=data.draw(st.sampled_from([None, left])),
        first_keys=data.draw(st.sampled_from([0, np.array([[2, 0], [0, 70]])])),
        q_lengths=q_lengths,
        sees=data.draw(st.sampled_from([0, EARLIER_PAGES, OWN_PAGE_ONLY])),
        positions=data.draw(st.sampled_from([None, np.cumsum(gaps, axis=2).astype(np.int32)])),
    )
    q, k, v = inputs(B, G * group, G, T, S, 5, 6)
    check(q, paged(P, k, v), reach, P)


def test_first_keys_of_another_page_are_not_seen_where_only_the_own_page_is():
    """Pages of 4, a query at key 9, a window of 2, 3 first keys: 0-2 in earlier pages, 8-9 in its own."""
    q, k, v = inputs(1, 1, 1, 1, 10, 5, 5)
    stored, one = paged(4, k, v), np.ones((1, 1), np.int64)
    rules = {"left": one, "first_keys": 3}
    for sees, keys in ((0, [0, 1, 2, 8, 9]), (EARLIER_PAGES, [0, 1, 2]), (OWN_PAGE_ONLY, [8, 9])):
        got = attended(q, stored, Reach(9 * one, 10 * one, sees=sees, **rules), scale=0.5)
        expected = reference.attend(q, k[:, :, keys], v[:, :, keys], scale=0.5)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(got[1], expected[2], rtol=1e-5)


@pytest.mark.parametrize("P", [3, 16, 64])
@pytest.mark.parametrize("first_keys", [0, 5])
def test_earlier_pages_and_the_own_page_are_together_all_pages(P: int, first_keys: int):
    q, k, v = inputs(2, 6, 2, 9, 150, 8, 8)
    stored, held = paged(P, k, v), everywhere(150, B=2)
    parts = []
    for sees in (EARLIER_PAGES, OWN_PAGE_ONLY, 0):
        reach = Reach(held - 9, held, left=everywhere(40, B=2), first_keys=first_keys, sees=sees)
        parts.append(attended(q, stored, reach, scale=0.4))
    for merged, whole in zip(merge_attended(*parts[0], *parts[1]), parts[2], strict=True):
        np.testing.assert_allclose(merged, whole, rtol=1e-5, atol=1e-6)


def test_calls_that_differ_in_what_is_held_alone_do_not_take_each_others_place():
    """What is written down once for all calls of a kind is not of the first of them."""
    q, k, v = inputs(2, 4, 2, 1, 50, 8, 8)
    stored, expected, got = paged(16, k, v), [], []
    for held in ([50, 31], [17, 50], [50, 31]):
        lengths = np.repeat(np.array(held)[:, None], 2, axis=1)
        got.append(attended(q, stored, Reach(lengths - 1, lengths), scale=0.3))
        offsets = [count - 1 for count in held]
        expected.append(attend(q, k, v, scale=0.3, right=0, offsets=offsets, kv_lengths=held))
    assert all(map(same, got, expected))
    assert not same(got[0], got[1])


# What is hidden changes no bit


def test_keys_that_no_query_sees_change_no_bit_even_between_those_that_are_seen():
    """Behind the first keys and before the window, in the same block and in blocks between, all is NaN."""
    for T, S, P in ((1, 60, 16), (3, 200, 7), (9, 200, 64), (2, STRETCH_KEYS + 300, 100)):
        q, k, v = inputs(1, 4, 2, T, S, 8, 8)
        reach = Reach(everywhere(S - T), everywhere(S), left=everywhere(19), first_keys=3)
        clean = paged(P, k, v)
        hidden = slice(3, S - T - 19)
        k[:, :, hidden] = v[:, :, hidden] = np.nan
        dirty = paged(P, k, v)
        expected = attended(q, clean, reach, scale=0.3)
        assert same(attended(q, dirty, reach, scale=0.3), expected)
        assert np.isfinite(expected[0]).all()
        sums = [summed(q, one, reach, expected[1], scale=0.3) for one in (clean, dirty)]
        assert same(sums[:1], sums[1:])


def test_a_nan_that_some_queries_see_reaches_only_them():
    q, k, v = inputs(1, 2, 2, 6, 50, 8, 8)
    reach = Reach(everywhere(44), everywhere(50), left=everywhere(3))
    expected = attended(q, paged(16, k, v), reach, scale=0.3)
    k[:, :, 45] = v[:, :, 45] = np.nan  # seen by the queries at 45 to 48
    got = attended(q, paged(16, k, v), reach, scale=0.3)
    assert np.isnan(got[0][:, :, 1:5]).all()
    for part in (slice(0, 1), slice(5, 6)):
        assert same([got[0][:, :, part]], [expected[0][:, :, part]])


def test_nothing_held_gives_zeros():
    q, k, v = inputs(1, 4, 2, 3, 0, 5, 7)
    output, lse = attended(q, paged(4, k, v), Reach(everywhere(0), everywhere(0)), scale=0.3)
    assert not output.any() and (lse == -np.inf).all() and output.shape == (1, 4, 3, 7)
    reach = Reach(everywhere(0), everywhere(0))
    assert summed(q, paged(4, k, v), reach, lse, scale=0.3).shape == (1, 2, 0)


# Sums


@pytest.mark.parametrize("num_threads", [1, 2])
def test_sums_of_what_each_key_gets_are_those_of_the_dense_weights(num_threads: int):
    from qkv.kernels.host import set_num_threads

    S, T = STRETCH_KEYS + 200, 3
    q, k, v = inputs(1, 4, 2, T, S, 6, 6)
    stored, reach = paged(32, k, v), Reach(everywhere(S - T), everywhere(S))
    set_num_threads(num_threads)
    try:
        _, lse = attended(q, stored, reach, scale=0.4)
        sums = summed(q, stored, reach, lse, scale=0.4)
    finally:
        set_num_threads(None)
    scores = 0.4 * np.einsum("bhtd,bhsd->bhts", q.astype(np.float64), np.repeat(k, 2, axis=1))
    scores = np.where(np.arange(S) <= S - T + np.arange(T)[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(
        sums, weights.sum(axis=2).reshape(1, 2, 2, S).sum(axis=2), rtol=1e-5, atol=1e-9
    )
    np.testing.assert_allclose(sums.sum(axis=-1), 2 * T, rtol=1e-5)


def test_a_query_of_factor_0_counts_for_nothing_whatever_it_sees():
    """Of four queries at 16 to 19 with a window of 3 only the last counts, and keys that only others see."""
    q, k, v = inputs(1, 2, 2, 4, 20, 5, 5)
    reach = Reach(everywhere(16), everywhere(20), left=everywhere(2))
    last = np.array([[0, 0, 0, 1]], np.float32)
    stored = paged(4, k, v)
    _, lse = attended(q, stored, reach, scale=0.4)
    k[:, :, 14:16] = np.nan
    sums = summed(q, paged(4, k, v), reach, lse, scale=0.4, factors=last)
    reach = Reach(everywhere(19), everywhere(20), left=everywhere(2))
    alone = summed(q[:, :, 3:], stored, reach, lse[:, :, 3:], scale=0.4)
    assert same([sums], [alone]) and not sums[:, :, :17].any()
