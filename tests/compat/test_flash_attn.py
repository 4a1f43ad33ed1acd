import math

import numpy as np
import pytest

import reference
from qkv.compat import flash_attn, flash_attn_varlen
from qkv.errors import OptionError, ShapeError


def zero_problem(T, S):
    """Zero queries and keys weigh all visible values 1, 2, 3, ... alike: outputs are plain means."""
    return np.zeros((1, T, 1, 1)), np.zeros((1, S, 1, 1)), np.arange(1.0, S + 1.0).reshape(1, S, 1, 1)


def random_problem(B=2, H=6, G=3, T=5, S=7, D=11, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) for shape in ((B, T, H, D), (B, S, G, D), (B, S, G, 13)))


def expected_by_loops(q, k, v, **options):
    heads_first = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    out, _, lse = reference.attend(*heads_first, **options)
    return out.transpose(0, 2, 1, 3), lse


@pytest.mark.parametrize(
    ("T", "S", "means"), [(2, 5, [2.5, 3]), (5, 2, [0, 0, 0, 1, 1.5]), (1, 4, [2.5])], ids=str
)
def test_causal_puts_the_last_query_on_the_last_key(T, S, means):
    out = flash_attn(*zero_problem(T, S), causal=True)
    np.testing.assert_allclose(np.ravel(out), means, rtol=1e-12)


@pytest.mark.parametrize(
    ("window_size", "causal", "means"),
    [
        ((-1, -1), False, [3, 3]),
        ((1, 0), False, [3.5, 4.5]),
        ((1, -1), False, [4, 4.5]),
        ((0, 0), False, [4, 5]),
        ((-1, 0), False, [2.5, 3]),
        ((2, 1), False, [3.5, 4]),
        ((1, -1), True, [3.5, 4.5]),
        ((1, 7), True, [3.5, 4.5]),
    ],
    ids=str,
)
def test_window_counts_keys_on_each_side_and_minus_one_is_no_limit(window_size, causal, means):
    out = flash_attn(*zero_problem(2, 5), causal=causal, window_size=window_size)
    np.testing.assert_allclose(np.ravel(out), means, rtol=1e-12)


def test_log_sum_exp_is_by_head_and_plus_infinity_where_nothing_is_seen():
    out, lse = flash_attn(*zero_problem(5, 2), causal=True, return_softmax_lse=True)
    assert out.shape == (1, 5, 1, 1)
    assert lse.shape == (1, 1, 5)
    np.testing.assert_allclose(lse[0, 0], [math.inf, math.inf, math.inf, 0, math.log(2)])


def test_alibi_penalty_grows_with_the_distance_to_the_own_key():
    q, k, _ = zero_problem(1, 3)
    v = np.array([1.0, 2.0, 4.0]).reshape(1, 3, 1, 1)
    # weights 2^-2 : 2^-1 : 1, so (1/4 + 2/2 + 4) / (7/4)
    np.testing.assert_allclose(flash_attn(q, k, v, alibi_slopes=np.array([math.log(2)])).ravel(), [3.0])


def test_alibi_slopes_may_differ_by_row_of_the_batch():
    q, k, v = random_problem()
    slopes = np.random.default_rng(1).random((2, 6))
    out = flash_attn(q, k, v, alibi_slopes=slopes, window_size=(3, 2))
    for row in range(2):
        own = slice(row, row + 1)
        expected, _ = expected_by_loops(q[own], k[own], v[own], alibi_slopes=slopes[row], window=(3, 2))
        np.testing.assert_allclose(out[own], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("G", [1, 2, 6])
@pytest.mark.parametrize(
    ("options", "means"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"softcap": 0.7}, {"softcap": 0.7}),
        ({"softmax_scale": -0.3}, {"scale": -0.3}),
        ({"softmax_scale": 0.0}, {"scale": 0.0}),
        ({"window_size": (2, 1)}, {"window": (2, 1)}),
        ({"window_size": (3, -1), "causal": True}, {"window": (3, None), "causal": True}),
        ({"alibi_slopes": np.arange(1.0, 7.0) / 7}, {"alibi_slopes": np.arange(1.0, 7.0) / 7}),
    ],
    ids=lambda value: ",".join(value) or "plain" if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize(("T", "S"), [(5, 7), (7, 3)])
def test_every_option_means_what_the_loops_say(G, options, means, T, S):
    q, k, v = random_problem(G=G, T=T, S=S)
    out, lse = flash_attn(q, k, v, **options, return_softmax_lse=True)
    expected, expected_lse = expected_by_loops(q, k, v, **means)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, np.where(expected_lse == -np.inf, np.inf, expected_lse), rtol=1e-12)


def test_packed_sequences_attend_as_each_does_alone():
    rng = np.random.default_rng(2)
    q, k, v = (
        rng.standard_normal((10, 4, 5)),
        rng.standard_normal((12, 2, 5)),
        rng.standard_normal((12, 2, 7)),
    )
    slopes = rng.random((3, 4))
    options = {"causal": True, "window_size": (3, -1), "softcap": 0.9, "softmax_scale": 0.4}
    starts_q, starts_k = np.array([0, 2, 2, 10]), np.array([0, 7, 9, 12])
    out, lse = flash_attn_varlen(
        q, k, v, starts_q, starts_k, 8, 7, **options, alibi_slopes=slopes, return_softmax_lse=True
    )
    assert out.shape == (10, 4, 7)
    assert lse.shape == (4, 10)
    for row, (a, b, c, d) in enumerate(((0, 2, 0, 7), (2, 10, 9, 12))):
        sequence = (0, 2)[row]
        alone, alone_lse = flash_attn(
            *(q[None, a:b], k[None, c:d], v[None, c:d]),
            **options,
            alibi_slopes=slopes[sequence],
            return_softmax_lse=True,
        )
        np.testing.assert_array_equal(out[a:b], alone[0])
        np.testing.assert_array_equal(lse[:, a:b], alone_lse[0])
    only_out = flash_attn_varlen(q, k, v, starts_q, starts_k, 8, 7, **options, alibi_slopes=slopes)
    np.testing.assert_array_equal(only_out, out)


@pytest.mark.parametrize(
    ("starts_q", "starts_k", "longest"),
    [
        ([0, 2], [0, 3], 3),  # not all queries
        ([1, 4], [0, 3], 3),  # not from the first
        ([0, 3, 2, 4], [0, 1, 2, 3], 3),  # falls
        ([0, 4], [0, 3], 3),  # longer than the longest
        ([0, 2, 4], [0, 3], 3),  # another number of sequences
        ([0], [0], 3),  # none
    ],
)
def test_boundaries_that_do_not_fit_are_refused(starts_q, starts_k, longest):
    q, k = np.zeros((4, 1, 1)), np.zeros((3, 1, 1))
    with pytest.raises(ShapeError, match="cu_seqlens"):
        flash_attn_varlen(q, k, k, starts_q, starts_k, longest, longest)


def test_what_has_no_meaning_here_is_refused():
    q, k, v = zero_problem(2, 5)
    with pytest.raises(OptionError, match="dropout"):
        flash_attn(q, k, v, 0.1)
    with pytest.raises(ShapeError, match="alibi_slopes"):
        flash_attn(q, k, v, alibi_slopes=np.ones(3))
