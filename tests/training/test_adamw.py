"""Steps of AdamW by hand, in loops, and compiled to the bit; clipping."""

import math

import numpy as np
import pytest

from qkv.errors import OptionError, ShapeError
from qkv.kernels.adamw import BLOCK
from qkv.kernels.host import set_num_threads
from qkv.ops.backend import Backend, use_backend
from qkv.training.adamw import AdamW, clip
from qkv.training.parameters import Parameters

SHAPES = {"a": (3, 5), "scale": (7,), "b": (2, 3), "c": (11,)}


def parameters(shapes=SHAPES, seed=0, dtype: type = np.float64):
    size = sum(math.prod(shape) for shape in shapes.values())
    return Parameters(shapes, np.random.default_rng(seed).normal(size=size).astype(dtype))


def test_two_steps_worked_by_hand():
    moved = Parameters({"w": (1,), "scale": (1,)}, np.array([1.0, 1.0]))
    optimiser = AdamW(moved, betas=(0.5, 0.75), eps=1.0, weight_decay=0.5, decayed=["w"])
    optimiser.step(Parameters(moved.shapes, np.array([4.0, -4.0])), learning_rate=0.1)
    # m = 2 and v = 4, over 1 - 0.5 and 1 - 0.75: 4 and 16; so 0.1 * 4 / (4 + 1), and 5 % of w decays
    np.testing.assert_allclose(moved.vector, [0.95 - 0.08, 1 + 0.08])
    optimiser.step(Parameters(moved.shapes, np.zeros(2)), learning_rate=0.1)
    # m = 1 over 0.75, v = 3 over 1 - 0.75^2
    further = 0.1 * (1 / 0.75) / (math.sqrt(3 / 0.4375) + 1)
    np.testing.assert_allclose(moved.vector, [0.87 * 0.95 - further, 1.08 + further])
    assert optimiser.num_steps == 2
    assert optimiser.first_moments.tolist() == [1, -1]
    assert optimiser.second_moments.tolist() == [3, 3]


def test_only_named_parameters_decay():
    moved, before = parameters(), parameters()
    AdamW(moved, weight_decay=0.5, decayed=["a", "b"]).step(moved.zeros(), learning_rate=0.1)
    for name in SHAPES:
        np.testing.assert_allclose(moved[name], before[name] * (0.95 if name in "ab" else 1))


def test_the_rate_is_that_of_each_step():
    moved, before = parameters(), parameters()
    optimiser = AdamW(moved, decayed=["a"])
    optimiser.step(parameters(seed=1), learning_rate=0.0)
    assert (moved.vector == before.vector).all()
    assert optimiser.first_moments.any()


def test_compiled_and_formula_give_the_same_bits_on_any_number_of_threads():
    shapes = {"table": (211, 701), "scale": (13,), "more": (2 * BLOCK + 5,)}  # threads take part in the first
    cases: list[tuple[Backend, int]] = [("numpy", 1), ("compiled", 1), ("compiled", 2)]
    vectors = []
    try:
        for backend, threads in cases:
            set_num_threads(threads)
            moved = parameters(shapes, dtype=np.float32)
            optimiser = AdamW(moved, decayed=["table", "more"])
            with use_backend(backend):
                for step in range(3):
                    optimiser.step(parameters(shapes, seed=step + 1, dtype=np.float32), learning_rate=1e-3)
            vectors.append([moved.vector, optimiser.first_moments, optimiser.second_moments])
    finally:
        set_num_threads(None)
    for other in vectors[1:]:
        assert all((one == same).all() for one, same in zip(vectors[0], other, strict=True))


def test_moments_put_back_go_on_where_they_were():
    whole, halves = parameters(), parameters()
    optimiser, first = AdamW(whole, decayed=["a"]), AdamW(halves, decayed=["a"])
    for step in range(4):
        optimiser.step(parameters(seed=step), learning_rate=0.01)
    for step in range(2):
        first.step(parameters(seed=step), learning_rate=0.01)
    second = AdamW(halves, decayed=["a"])
    second.first_moments[:], second.second_moments[:] = first.first_moments, first.second_moments
    second.num_steps = first.num_steps
    for step in range(2, 4):
        second.step(parameters(seed=step), learning_rate=0.01)
    assert (whole.vector == halves.vector).all()


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_gradients_longer_than_the_limit_are_shortened_to_it(backend):
    gradients = Parameters({"a": (1,), "b": (1,)}, np.array([3, 4], np.float32))
    with use_backend(backend):
        assert clip(gradients, max_norm=2.5) == 5
        np.testing.assert_allclose(gradients.vector, [1.5, 2], rtol=1e-6)
        assert clip(gradients, max_norm=2.6) == pytest.approx(2.5)
    np.testing.assert_allclose(gradients.vector, [1.5, 2], rtol=1e-6)


def test_a_norm_has_the_same_bits_on_any_number_of_threads_and_few_roundings():
    gradients = parameters({"a": (211, 701)}, dtype=np.float32)
    exact, norms = np.linalg.norm(gradients.vector.astype(np.float64)), []
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            with use_backend("compiled"):
                norms.append(clip(gradients, max_norm=1e9))
    finally:
        set_num_threads(None)
    assert norms[0] == norms[1]
    assert norms[0] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_gradients_that_are_no_numbers_stay_and_show_in_the_norm(backend, odd):
    gradients = Parameters({"a": (3,)}, np.array([3, odd, 4], np.float32))
    with use_backend(backend):
        assert not math.isfinite(clip(gradients, max_norm=1.0))
    assert gradients.vector[::2].tolist() == [3, 4]


def test_settings_without_a_meaning_are_refused():
    with pytest.raises(OptionError, match=r"betas must be from 0 to below 1, not \(0.9, 1.0\)"):
        AdamW(parameters(), betas=(0.9, 1.0))
    with pytest.raises(OptionError, match="eps must be above 0"):
        AdamW(parameters(), eps=0.0)
    with pytest.raises(OptionError, match="weight_decay not below"):
        AdamW(parameters(), weight_decay=-0.1)
    with pytest.raises(OptionError, match="names that no parameter has: bias, w"):
        AdamW(parameters(), decayed=["w", "a", "bias"])
    with pytest.raises(OptionError, match="max_norm must be above 0, not 0"):
        clip(parameters(), 0.0)
    with pytest.raises(ShapeError, match="parameters' names and shapes"):
        AdamW(parameters()).step(parameters({"a": (39,)}), 0.1)
