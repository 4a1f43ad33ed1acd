import numpy as np
import pytest

from attention_paths import normal
from qkv.ops.logits import unembed
from qkv.ops.projection import merge_heads, project, split_heads


def test_each_output_is_one_row_of_the_weight_times_the_input():
    weight = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    assert project(np.array([1.0, 2.0]), weight).tolist() == [1, 3, 6]
    assert project(np.array([1.0, 2.0]), weight, np.array([10.0, 20.0, 30.0])).tolist() == [11, 23, 36]


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 0)])
def test_leading_axes_pass_through(leading):
    x, weight, bias = normal(1, *leading, 5), normal(2, 7, 5), normal(3, 7)
    expected = np.einsum("...e,fe->...f", x, weight) + bias
    np.testing.assert_allclose(project(x, weight, bias), expected, rtol=1e-12, atol=1e-12)


def test_a_head_is_a_run_of_neighbouring_numbers():
    x = np.arange(24).reshape(1, 2, 12)
    heads = split_heads(x, 3)
    assert heads.shape == (1, 3, 2, 4)
    assert heads[0, 1].tolist() == [[4, 5, 6, 7], [16, 17, 18, 19]]


def test_merging_heads_undoes_splitting_them():
    x = normal(1, 2, 5, 21)
    assert split_heads(x, 3).shape == (2, 3, 5, 7)
    assert (merge_heads(split_heads(x, 3)) == x).all()
    heads = normal(2, 2, 3, 5, 7)
    assert (split_heads(merge_heads(heads), 3) == heads).all()


def test_logits_compare_a_vector_with_every_vocabulary_row():
    head = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert unembed(np.array([[2.0, 3.0], [1.0, -1.0]]), head).tolist() == [[2, 3, 5], [1, -1, 0]]
