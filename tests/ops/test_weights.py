import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from attention_paths import bits, normal
from qkv.ops import softmax
from qkv.ops.weights import normalise

rows = st.lists(st.floats(-700, 700), min_size=1, max_size=9)


def test_weights_are_in_the_ratio_of_exponentials():
    np.testing.assert_allclose(softmax(np.log([1.0, 2.0, 5.0])), [0.125, 0.25, 0.625], rtol=1e-14)


@given(rows)
def test_softmax_is_what_the_loop_gives_and_sums_to_one(row):
    np.testing.assert_allclose(softmax(np.array(row)), reference.softmax(row), rtol=1e-12, atol=1e-300)
    assert softmax(np.array(row)).sum() == pytest.approx(1)


@given(rows, st.integers(-(2**40), 2**40))
def test_adding_the_same_to_all_changes_nothing(row, shift):
    whole = np.round(np.array(row))  # whole numbers, so that the sum itself is exact
    assert (bits(softmax(whole)) == bits(softmax(whole + shift))).all()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_weights_sum_to_one_along_the_axis_asked_for(axis):
    x = normal(1, 3, 5, 7)
    weights = softmax(x, axis=axis)
    np.testing.assert_allclose(weights.sum(axis=axis), np.ones_like(x.sum(axis=axis)), rtol=1e-12)
    np.testing.assert_allclose(weights, np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True), rtol=1e-12)


def test_a_row_of_minus_infinity_chooses_nothing():
    x = np.array([[-np.inf, -np.inf], [-np.inf, 3.0]])
    assert softmax(x).tolist() == [[0, 0], [0, 1]]
    assert np.isnan(softmax(np.array([np.nan, 0.0]))).all()


def test_no_scores_give_no_weights():
    assert softmax(np.zeros((3, 0))).shape == (3, 0)
    assert softmax(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_low_precision_is_summed_in_float32_and_returned_as_it_came(dtype):
    x = np.zeros(3000, dtype)  # in float16 a running sum of ones stops at 2048
    assert softmax(x).dtype == dtype
    assert (softmax(x) == np.asarray(1 / 3000).astype(dtype)).all()
    assert softmax(np.array([6e4, 6e4, -6e4]).astype(dtype)).astype(float).tolist() == [0.5, 0.5, 0]


def test_integers_are_refused():
    with pytest.raises(TypeError, match="x must be float64, float32, float16 or bfloat16, not int64"):
        softmax(np.arange(3))


def test_the_logarithm_of_the_denominator_survives_any_size_of_score():
    for shift in (-1e5, 0.0, 1e5):
        _, lse = normalise(np.log([1.0, 3.0]) + shift)
        assert lse == pytest.approx(np.log(4) + shift, abs=1e-9)


def test_a_sink_takes_part_in_the_denominator_alone():
    weights, lse = normalise(np.log([[1.0, 2.0]]), sinks=np.log([[5.0]]))
    np.testing.assert_allclose(weights, [[0.125, 0.25]])
    np.testing.assert_allclose(np.exp(lse), [8])


def test_a_sink_above_every_score_does_not_overflow():
    weights, lse = normalise(np.array([[0.0, 1.0]]), sinks=np.array([[1000.0]]))
    assert weights.tolist() == [[0, 0]]
    assert lse.tolist() == [1000]
