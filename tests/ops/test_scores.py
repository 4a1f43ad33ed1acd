import numpy as np
import pytest

from attention_paths import normal
from qkv.errors import OptionError
from qkv.ops import alibi_slopes
from qkv.ops.scores import dot_products, softcapped


def test_slopes_of_a_power_of_two_fall_geometrically():
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]


def test_slopes_of_other_counts_take_every_other_one_of_the_next_power():
    assert alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]
    assert alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert alibi_slopes(12) == pytest.approx(
        [*alibi_slopes(8), 0.707107, 0.353553, 0.176777, 0.088388], abs=1e-6
    )


@pytest.mark.parametrize("num_heads", [0, -1])
def test_no_head_has_no_slope(num_heads):
    with pytest.raises(OptionError, match=f"at least one head, not {num_heads}"):
        alibi_slopes(num_heads)


def test_a_cap_is_nearly_the_identity_near_0_and_never_exceeded():
    np.testing.assert_allclose(
        softcapped(np.array([3.0, -3.0, 0.0]), 2.0), [1.810297, -1.810297, 0], atol=1e-6
    )
    np.testing.assert_allclose(softcapped(np.array([0.01, 1e9, -1e9]), 50.0), [0.01, 50, -50], rtol=1e-7)


def test_each_key_head_is_matched_with_its_own_group_of_query_heads():
    q, k = normal(1, 2, 6, 5, 7), normal(2, 2, 3, 11, 7)
    expected = np.einsum("bhtd,bhsd->bhts", q, np.repeat(k, 2, axis=1))
    np.testing.assert_allclose(dot_products(q, k), expected, rtol=1e-12, atol=1e-12)
