"""Linear attention against loops over pairs, and its state, which must not grow."""

import math

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ShapeError
from qkv.ops import linear
from qkv.ops.linear import LinearState, attend_linear, feature_map

B, H, T, D, WIDE = 2, 3, 137, 5, 7
"""T is more than two chunks."""


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


Q, K, V = normal(B, H, T, D), normal(B, H, T, D)[::-1], normal(B, H, T, WIDE)


def phi(x):
    return x + 1 if x > 0 else math.exp(x)


def by_pairs(q, k, v):
    """The quadratic form: every pair of one head by itself, a weight for each, no state."""
    output = np.zeros(v.shape)
    for t in range(len(q)):
        weights = [sum(phi(a) * phi(b) for a, b in zip(q[t], k[s], strict=True)) for s in range(t + 1)]
        output[t] = sum(weight * v[s] for s, weight in enumerate(weights)) / sum(weights)
    return output


def test_the_state_gives_what_all_pairs_give():
    output, _ = attend_linear(Q, K, V)
    assert output.shape == (B, H, T, WIDE)
    for b, h in np.ndindex(B, H):
        np.testing.assert_allclose(output[b, h], by_pairs(Q[b, h], K[b, h], V[b, h]), atol=1e-12)


def test_two_tokens_by_hand():
    # phi gives keys (1/2, 2) and (1, 3), and the second query (2, 1). Weights 3 and 5; values 8 and 16.
    k = np.array([[math.log(0.5), 1.0], [0.0, 2.0]])
    q = np.array([[0.0, 0.0], [1.0, 0.0]])
    output, state = attend_linear(q, k, np.array([[8.0], [16.0]]))
    assert output.ravel().tolist() == [8.0, (3 * 8 + 5 * 16) / 8]
    assert state.k.tolist() == [1.5, 5.0] and state.kv.ravel().tolist() == [4 + 16, 16 + 48]


@given(cut=st.integers(0, T), other=st.integers(0, T))
def test_a_text_in_pieces_gives_what_it_gives_whole(cut, other):
    whole, last = attend_linear(Q, K, V)
    state, outputs = None, []
    for piece in np.split(np.arange(T), sorted((cut, other))):
        output, state = attend_linear(Q[:, :, piece], K[:, :, piece], V[:, :, piece], state)
        outputs.append(output)
    assert state is not None
    np.testing.assert_allclose(np.concatenate(outputs, axis=2), whole, atol=1e-12)
    np.testing.assert_allclose(state.kv, last.kv, atol=1e-11)


def test_nothing_of_the_future_is_seen():
    k, v = K.copy(), V.copy()
    k[:, :, 71:], v[:, :, 71:] = 9.0, 99.0
    changed, as_it_was = attend_linear(Q, k, v)[0], attend_linear(Q, K, V)[0]
    np.testing.assert_array_equal(changed[:, :, :71], as_it_was[:, :, :71])
    assert (changed[:, :, 71:] != as_it_was[:, :, 71:]).all()


def test_the_state_takes_the_same_bytes_after_any_number_of_tokens():
    x = normal(1, H, T, D).astype(np.float32)
    sizes = {attend_linear(x[:, :, :n], x[:, :, :n], x[:, :, :n])[1].nbytes for n in (1, 64, T)}
    assert sizes == {4 * H * (D * D + D)}


def test_the_state_that_comes_in_stays_as_it_is():
    _, state = attend_linear(Q[:, :, :3], K[:, :, :3], V[:, :, :3])
    kv, k = state.kv.copy(), state.k.copy()
    attend_linear(Q, K, V, state)
    assert (state.kv == kv).all() and (state.k == k).all()


def test_float16_is_summed_in_float32_and_comes_back_as_float16():
    q, k = (300 * np.abs(x).astype(np.float16) for x in (Q, K))  # phi(q) . phi(k) is beyond 65504
    v = V.astype(np.float16)
    output, state = attend_linear(q, k, v)
    assert (output.dtype, state.kv.dtype, state.k.dtype) == (np.float16, np.float32, np.float32)
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    expected, _ = attend_linear(q64, k64, v64)
    np.testing.assert_allclose(output.astype(np.float64), expected, rtol=2e-3, atol=1e-3)


def test_a_query_whose_weights_are_all_0_gets_0():
    q = np.full((1, 1, 2, D), -1e30, np.float32)
    output, _ = attend_linear(q, q, np.ones((1, 1, 2, WIDE), np.float32))
    assert (output == 0).all()


def test_no_token_at_all_leaves_no_trace():
    output, state = attend_linear(Q[:, :, :0], K[:, :, :0], V[:, :, :0])
    assert output.shape == (B, H, 0, WIDE) and not state.kv.any() and not state.k.any()


def test_a_head_may_stand_alone():
    alone = attend_linear(Q[1, 2], K[1, 2], V[1, 2])[0]
    np.testing.assert_allclose(alone, attend_linear(Q, K, V)[0][1, 2], atol=1e-12)


def test_the_map_is_positive_continuous_and_never_overflows():
    x = np.linspace(-20, 20, 401)
    np.testing.assert_allclose(feature_map(x), [phi(one) for one in x], rtol=1e-15)
    assert (feature_map(x) > 0).all() and feature_map(np.array([1e4]))[0] == 10001


def test_arrays_of_another_library_come_back_as_such():
    q, k, v = (array_api_strict.asarray(x) for x in (Q, K, V))
    output, state = attend_linear(q, k, v)
    assert type(output) is type(state.kv) is type(q)
    np.testing.assert_allclose(np.asarray(output), attend_linear(Q, K, V)[0], atol=1e-12)


def test_keys_of_fewer_heads_and_states_of_others_are_refused():
    with pytest.raises(ShapeError, match="repeat keys"):
        attend_linear(Q, K[:, :1], V[:, :1])
    with pytest.raises(ShapeError, match="as many heads and tokens"):
        attend_linear(Q, K, V[:, :, 1:])
    with pytest.raises(ShapeError, match=r"expected a state .* \(2, 3, 5, 7\)"):
        attend_linear(Q, K, V, LinearState(np.zeros((B, H, D, D)), np.zeros((B, H, D))))
    with pytest.raises(TypeError, match="q must be float64"):
        attend_linear(Q.astype(int), K, V)


def test_these_texts_are_longer_than_a_chunk():
    assert 2 * linear.CHUNK < T
