"""The kernels give the same bits however the work is cut, and what the plain loops give."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from attention_paths import bits, normal
from qkv.kernels import attention
from qkv.kernels.attention import ROWS, attend
from qkv.kernels.attention_words import BLOCK_KEYS, STRETCH_KEYS
from qkv.kernels.host import HOST_TILE, Tile, set_num_threads

TILES = [ROWS, HOST_TILE, Tile(8, 2, 16), Tile(6, 2, 8), Tile(4, 3, 4), Tile(1, 1, 4)]


def inputs(B, H, G, T, S, D, D_v):
    sizes = (B, H, T, D), (B, G, S, D), (B, G, S, D_v)
    return [normal(seed, *size, dtype=np.float32) for seed, size in enumerate(sizes)]


def same(one, other):
    return all((bits(x) == bits(y)).all() for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("splits_keys", [False, True])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_no_bit_depends_on_how_the_work_is_cut(tile, splits_keys, num_workers):
    q, k, v = inputs(1, 6, 2, 7, 2 * STRETCH_KEYS + 131, 13, 11)
    rules = {"scale": 0.3, "offsets": k.shape[2] - 7, "right": 0, "sinks": normal(9, 6, dtype=np.float32)}
    expected = attend(q, k, v, **rules)
    assert same(
        attend(q, k, v, **rules, tile=tile, splits_keys=splits_keys, num_workers=num_workers), expected
    )


@given(data=st.data())
def test_a_query_gets_the_same_bits_alone_and_among_others(data):
    S = data.draw(st.sampled_from([1, BLOCK_KEYS - 1, 3 * BLOCK_KEYS, STRETCH_KEYS + 5]))
    T = data.draw(st.integers(1, min(S, 70)))
    q, k, v = inputs(2, 4, 2, T, S, 8, 16)
    window = data.draw(st.sampled_from([None, 5, 90]))
    rules = {"scale": 0.5, "left": window, "right": 0}
    together = attend(q, k, v, offsets=S - T, **rules)
    t = data.draw(st.integers(0, T - 1))
    seen = S - T + t + 1
    alone = attend(q[1:, :, t : t + 1], k[1:, :, :seen], v[1:, :, :seen], offsets=seen - 1, **rules)
    assert same((together[0][1:, :, t : t + 1], together[1][1:, :, t : t + 1]), alone)


@pytest.mark.parametrize("S", [0, 1, 63, 64, 65, 1023, 1024, 1025, 2100])
def test_texts_that_end_at_and_beside_a_block_or_stretch_are_whole(S):
    q, k, v = inputs(1, 2, 1, 3, S, 5, 7)
    output, lse = attend(q, k, v, scale=0.4)
    expected = reference.attend(q, k, v, scale=0.4)
    np.testing.assert_allclose(output, expected[0], atol=2e-6)
    np.testing.assert_allclose(lse, expected[2], atol=1e-5)


def test_a_window_far_into_a_text_is_all_that_is_read():
    q, k, v = inputs(1, 4, 2, 1, 5 * STRETCH_KEYS, 8, 8)
    k[:, :, : 5 * STRETCH_KEYS - 200] = np.nan
    v[:, :, : 5 * STRETCH_KEYS - 200] = np.nan
    rules = {"scale": 0.3, "offsets": 5 * STRETCH_KEYS - 1, "left": 99, "right": 0}
    output, _ = attend(q, k, v, **rules)
    part = slice(5 * STRETCH_KEYS - 100, None)
    np.testing.assert_allclose(
        output, reference.attend(q, k[:, :, part], v[:, :, part], scale=0.3)[0], atol=1e-6
    )


def units_in_the_last_place(got, exact):
    return np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))


def test_exp_is_within_two_units_in_the_last_place_over_its_range():
    # One query, two keys, the first of which has score 0 and value 0: the other's value comes out as
    # e/(1+e), and the denominator as log(1+e), both of e = exp(score).
    scores = np.linspace(-86.9, 0.0, 20011, dtype=np.float32)
    q = scores.reshape(1, 1, -1, 1)
    k = np.array([0.0, 1.0], np.float32).reshape(1, 1, 2, 1)
    output, _ = attend(q, k, k, scale=1.0)
    exact = np.exp(scores.astype(np.float64))
    expected = exact / (1 + exact)
    assert units_in_the_last_place(output.ravel(), expected).max() <= 3.5  # exp's 2, sum's and quotient's 0.5
    assert attend(q[:, :, -1:], k, k, scale=1.0)[1].item() == pytest.approx(math.log(2), abs=1e-7)


def test_scores_too_low_for_float32_count_for_nothing():
    q = np.full((1, 1, 1, 1), -1000.0, np.float32)
    k = np.array([0.0, 1.0], np.float32).reshape(1, 1, 2, 1)
    assert attend(q, k, k, scale=1.0)[0].item() == 0.0


def test_a_call_that_is_found_again_runs_on_as_many_threads_as_there_are_by_then(monkeypatch):
    q, k, v = inputs(1, 4, 2, 97, 101, 64, 64)
    started = []
    monkeypatch.setattr(attention, "launch", lambda worker, call, count: started.append(count))
    try:
        for threads in (1, 2, 1):
            set_num_threads(threads)
            attend(q, k, v, scale=0.3)
    finally:
        set_num_threads(None)
    assert started == [1, 2, 1]
