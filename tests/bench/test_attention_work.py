"""What a call of attention costs, counted one by one."""

import numpy as np
import pytest

from qkv import causal_mask, window_mask
from qkv.bench.attention_work import AttentionCall, fold_groups

B, H, G, D = 2, 6, 3, 5


@pytest.mark.parametrize(("T", "S"), [(7, 7), (1, 11), (3, 13)])
def test_pairs_are_those_that_the_masks_leave(T, S):
    visible = np.asarray(causal_mask(T, S))
    assert AttentionCall(B, H, G, T, S, D).num_pairs == T * S
    assert AttentionCall(B, H, G, T, S, D, causal=True).num_pairs == visible.sum()
    windowed = AttentionCall(B, H, G, T, S, D, causal=True, window=4)
    assert windowed.num_pairs == np.asarray(window_mask(T, S, window=4)).sum()


def test_operations_and_bytes_of_a_call_by_hand():
    # 3 queries see 3 keys causally: 6 pairs; each takes 5 products twice, with an addition each.
    call = AttentionCall(B, H, G, 3, 3, D, causal=True)
    assert call.flops == 2 * 6 * 6 * (2 * 5 + 2 * 5)
    # q and output have 2 x 6 x 3 x 5 numbers, k and v 2 x 3 x 3 x 5.
    assert call.num_bytes == 4 * (2 * 180 + 2 * 90)
    assert call.kv_bytes == 4 * 2 * 90
    assert call.scores_bytes == 4 * 2 * 6 * 3 * 3


def test_a_window_reads_no_more_keys_than_it_shows():
    whole = AttentionCall(B, H, G, 1, 11, D, causal=True)
    windowed = AttentionCall(B, H, G, 1, 11, D, causal=True, window=4)
    assert whole.num_bytes - windowed.num_bytes == 4 * B * 2 * G * 7 * D


def test_arrays_are_of_the_calls_shape_and_the_same_each_time():
    call = AttentionCall(B, H, G, 3, 7, D)
    q, k, v = call.draw()
    assert (q.shape, k.shape, v.shape) == ((B, H, 3, D), (B, G, 7, D), (B, G, 7, D))
    assert {x.dtype for x in (q, k, v)} == {np.dtype(np.float32)}
    assert not np.array_equal(k, v)
    assert all(np.array_equal(*pair) for pair in zip(call.draw(), (q, k, v), strict=True))


def test_folded_queries_stand_with_the_key_head_that_they_share():
    q = np.arange(B * H * D, dtype=np.float32).reshape(B, H, 1, D)
    folded = fold_groups(q, G)
    assert folded.shape == (B, G, 2, D)
    assert np.array_equal(folded[1, 2, 0], q[1, 4, 0])
