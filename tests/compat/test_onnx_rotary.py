import numpy as np
import pytest

import reference
from qkv.compat import onnx_rotary_embedding
from qkv.errors import ShapeError

FREQUENCIES = np.array([1.0, 0.3, 0.01])
POSITIONS = np.array([[5, 0, 2, 9], [1, 1, 7, 3]])


def caches(num_positions=11):
    angles = np.arange(num_positions)[:, None] * FREQUENCIES
    return np.cos(angles), np.sin(angles)


def problem():
    return np.random.default_rng(0).standard_normal((2, 5, 4, 7))


@pytest.mark.parametrize("interleaved", [0, 1])
def test_each_token_is_turned_by_the_angles_of_its_position(interleaved):
    x = problem()
    turned = onnx_rotary_embedding(x, *caches(), POSITIONS, interleaved=interleaved, rotary_embedding_dim=6)
    for row in range(2):
        expected = reference.rotate(x[row], POSITIONS[row], FREQUENCIES, interleaved=bool(interleaved))
        np.testing.assert_allclose(turned[row], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(turned[..., 6], x[..., 6])


def test_caches_may_come_by_token_instead_of_by_position():
    x = problem()
    by_position = onnx_rotary_embedding(x, *caches(), POSITIONS, rotary_embedding_dim=6)
    picked = (cache[POSITIONS] for cache in caches())
    np.testing.assert_array_equal(onnx_rotary_embedding(x, *picked, rotary_embedding_dim=6), by_position)


def test_three_axes_hold_the_heads_side_by_side():
    x = problem()
    flat = x.transpose(0, 2, 1, 3).reshape(2, 4, 35)
    options = {"interleaved": 1, "rotary_embedding_dim": 6}
    turned = onnx_rotary_embedding(flat, *caches(), POSITIONS, num_heads=5, **options)
    expected = onnx_rotary_embedding(x, *caches(), POSITIONS, **options)
    np.testing.assert_array_equal(turned, expected.transpose(0, 2, 1, 3).reshape(2, 4, 35))


def test_a_quarter_turn_exchanges_the_numbers_of_a_pair():
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    cosines, sines = np.array([[[0.0, 1.0]]]), np.array([[[1.0, 0.0]]])
    assert onnx_rotary_embedding(x, cosines, sines).ravel().tolist() == [-3, 2, 1, 4]
    assert onnx_rotary_embedding(x, cosines, sines, interleaved=1).ravel().tolist() == [-2, 1, 3, 4]


@pytest.mark.parametrize("options", [{}, {"rotary_embedding_dim": 4}, {"rotary_embedding_dim": 7}], ids=str)
def test_caches_of_another_width_are_refused(options):
    with pytest.raises(ShapeError, match="pairs"):
        onnx_rotary_embedding(problem(), *caches(), POSITIONS, **options)


def test_three_axes_need_the_number_of_heads():
    with pytest.raises(ShapeError, match="number of heads"):
        onnx_rotary_embedding(np.zeros((2, 4, 35)), *caches(), POSITIONS, rotary_embedding_dim=6)
