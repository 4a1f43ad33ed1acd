import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from attention_paths import normal
from qkv.errors import OptionError, ShapeError
from qkv.ops.rotary import (
    Rotary,
    rotary_frequencies,
    rotary_table,
    rotate,
    scale_dynamically,
    scale_linearly,
    scale_llama3,
    scale_yarn,
)

X = np.array([[1.0, 2.0, 3.0, 4.0]])
PLAIN = rotary_frequencies(4)


def turned(x: np.ndarray, position: int, **options: bool) -> np.ndarray:
    return rotate(x, *rotary_table(PLAIN, [position]), **options)


def test_a_pair_is_one_number_of_each_half_or_two_neighbours():
    half, neighbours = turned(X, 1), turned(X, 1, interleaved=True)
    np.testing.assert_allclose(half, [[-1.984111, 1.959901, 2.462378, 4.0198]], atol=1e-5)
    np.testing.assert_allclose(neighbours, [[-1.14264, 1.922076, 2.959851, 4.0298]], atol=1e-5)
    order = [0, 2, 1, 3]
    np.testing.assert_allclose(turned(X[:, order], 1, interleaved=True), half[:, order], rtol=1e-6)


def test_a_match_depends_on_the_difference_of_positions_only():
    q, k = X, X[:, ::-1]
    matches = [(turned(q, here) * turned(k, there)).sum() for here, there in ((5, 3), (12, 10))]
    assert matches == pytest.approx([-3.456429, -3.456429], abs=1e-5)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.booleans())
def test_shifting_both_positions_changes_no_match(here, there, shift, interleaved):
    q, k = normal(1, 1, 4), normal(2, 1, 4)

    def match(moved: int) -> float:
        by = {"interleaved": interleaved}
        return float((turned(q, here + moved, **by) * turned(k, there + moved, **by)).sum())

    assert match(shift) == pytest.approx(match(0), abs=1e-3)


def test_a_partial_rotation_turns_the_first_numbers_and_passes_the_rest():
    x = np.arange(1.0, 9.0)[None]
    expected = [[-1.413353, 1.879118, -2.828857, 4.058191, 5, 6, 7, 8]]
    np.testing.assert_allclose(turned(x, 3), expected, atol=1e-5)
    by_neighbours = turned(x, 3, interleaved=True)
    expected = reference.rotate(x, [3], PLAIN.frequencies, interleaved=True)
    np.testing.assert_allclose(by_neighbours, expected, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [2, 6, 10])
def test_rotation_is_what_the_loops_give_at_any_positions(size, interleaved):
    rotary, x, positions = rotary_frequencies(size), normal(1, 2, 3, 5, 11), [40, 0, 7, 7, 1023]
    got = rotate(x, *rotary_table(rotary, positions), interleaved=interleaved)
    expected = reference.rotate(x, positions, rotary.frequencies, interleaved)
    np.testing.assert_allclose(got, expected, atol=2e-4)  # float32 angles: 1023 * 2^-24


def test_each_row_of_a_batch_may_have_positions_of_its_own():
    x, positions = normal(1, 2, 3, 5, 4), np.array([[0, 0, 0, 1, 2], [3, 4, 5, 6, 7]])
    cosines, sines = rotary_table(PLAIN, positions)
    assert cosines.shape == sines.shape == (2, 5, 2)
    got = rotate(x, cosines[:, None], sines[:, None])
    for row in range(2):
        np.testing.assert_array_equal(got[row], rotate(x[row], *rotary_table(PLAIN, positions[row])))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_each_dtype_returns_itself_and_position_0_changes_nothing(dtype):
    x = normal(1, 5, 4, dtype=dtype)
    got = rotate(x, *rotary_table(PLAIN, range(5)))
    assert got.dtype == dtype
    assert (got[0] == x[0]).all()
    exact = reference.rotate(x, range(5), PLAIN.frequencies)
    half_a_unit = max(float(ml_dtypes.finfo(dtype).eps) / 2, 1e-6)
    np.testing.assert_allclose(got.astype(float), exact, rtol=half_a_unit, atol=1e-6)


def test_the_table_is_float32_and_multiplied_by_the_magnitude():
    cosines, sines = rotary_table(Rotary((1.0, 0.5), magnitude=2.0), [0, 3])
    assert cosines.dtype == sines.dtype == np.float32
    np.testing.assert_allclose(cosines, [[2, 2], [2 * math.cos(3), 2 * math.cos(1.5)]], rtol=1e-6)
    np.testing.assert_allclose(sines, [[0, 0], [2 * math.sin(3), 2 * math.sin(1.5)]], rtol=1e-6)


def test_frequencies_fall_from_1_by_a_constant_ratio():
    assert rotary_frequencies(6, theta=1000.0).frequencies == pytest.approx((1, 0.1, 0.01))
    assert rotary_frequencies(0).frequencies == ()


@pytest.mark.parametrize("size", [3, -2])
def test_an_odd_or_negative_size_is_refused(size):
    with pytest.raises(OptionError, match=f"even size, not {size}"):
        rotary_frequencies(size)


def test_more_pairs_than_the_head_has_are_refused():
    with pytest.raises(ShapeError, match="2 rotary pairs need a head size of at least 4, not D = 3"):
        turned(X[:, :3], 1)


def test_linear_scaling_divides_positions():
    rotary = rotary_frequencies(8)
    stretched, plain = rotary_table(scale_linearly(rotary, 4.0), [12]), rotary_table(rotary, [3])
    np.testing.assert_allclose(stretched, plain, rtol=1e-6)


def test_dynamic_scaling_starts_beyond_the_trained_length():
    for length in (1, 8):
        scaled = scale_dynamically(6, 10000.0, factor=2.0, trained_length=8, length=length)
        assert scaled == rotary_frequencies(6, 10000.0)
    beyond = scale_dynamically(6, 10000.0, factor=2.0, trained_length=8, length=16).frequencies
    # stretch 2 * 16 / 8 - 1 = 3: the slowest pair turns 3 times more slowly, the fastest as before
    assert beyond == pytest.approx((1, 10000 ** (-1 / 3) / 3**0.5, 10000 ** (-2 / 3) / 3))


def llama3_ratios(size: int, factor: float) -> list[float]:
    plain = rotary_frequencies(size, 500000.0)
    scaled = scale_llama3(plain, factor, 1.0, 4.0, 8192)
    return [new / old for new, old in zip(scaled.frequencies, plain.frequencies, strict=True)]


def test_llama3_scaling_keeps_fast_pairs_blends_and_slows_the_others():
    ratios = llama3_ratios(64, 32.0)
    assert ratios[:15] == pytest.approx([1] * 15)
    assert ratios[15:18] == pytest.approx([0.605573, 0.303743, 0.103448], abs=1e-6)
    assert ratios[18:] == pytest.approx([1 / 32] * 14)
    scaled = scale_llama3(rotary_frequencies(64, 500000.0), 32.0, 1.0, 4.0, 8192)
    assert scaled.frequencies[15] == pytest.approx(1.29054793e-3)


def test_llama3_scaling_of_a_larger_head_has_its_borders_elsewhere():
    ratios = llama3_ratios(128, 8.0)
    assert ratios[:29] == pytest.approx([1] * 29)
    assert all(1 / 8 < ratio < 1 for ratio in ratios[29:35])
    assert ratios[35:] == pytest.approx([1 / 8] * 29)


def test_yarn_blends_from_the_pair_that_turns_32_times_to_the_one_that_turns_once():
    # size 8, theta 10000, trained on 64: the borders are pairs -0.497 and 1.008
    whole = scale_yarn(8, 10000.0, factor=4.0, trained_length=64)
    assert whole.frequencies == pytest.approx((1, 0.1 * (1 + 1 / 4) / 2, 0.01 / 4, 0.001 / 4))
    exact = scale_yarn(8, 10000.0, factor=4.0, trained_length=64, whole_pairs=False)
    slowed = 1 / (8 * math.log(64 / (2 * math.pi)) / (2 * math.log(10000)))
    blended = 0.1 * (1 - slowed) + 0.1 / 4 * slowed
    assert exact.frequencies == pytest.approx((1, blended, 0.01 / 4, 0.001 / 4))


def test_yarn_borders_move_with_the_turns_asked_for():
    # 16 pairs, trained on 4096: 8 turns at pair 7.63, 2 turns at pair 10.04, rounded outwards to 7 and 11
    scaled = scale_yarn(32, 10000.0, 2.0, 4096, fast_turns=8.0, slow_turns=2.0).frequencies
    ratios = [new / old for new, old in zip(scaled, rotary_frequencies(32).frequencies, strict=True)]
    assert ratios == pytest.approx([1] * 8 + [7 / 8, 6 / 8, 5 / 8] + [1 / 2] * 5)


@pytest.mark.parametrize(("factor", "magnitude"), [(4.0, 1 + 0.1 * math.log(4)), (1.0, 1.0), (0.5, 1.0)])
def test_yarn_sharpens_with_the_logarithm_of_the_stretch(factor, magnitude):
    assert scale_yarn(8, 10000.0, factor, 64).magnitude == pytest.approx(magnitude)
    assert scale_yarn(8, 10000.0, factor, 64, magnitude=1.25).magnitude == 1.25
