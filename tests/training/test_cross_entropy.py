"""The loss and its gradient: by hand, by central differences, and compiled against the formula."""

import math

import numpy as np
import pytest

from differences import central_differences
from qkv.errors import NumericError, ShapeError
from qkv.ops.backend import use_backend
from qkv.training.cross_entropy import IGNORED, cross_entropy, token_nats

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "compiled"])


def normal(*shape, seed=0, dtype: type = np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@BACKENDS
def test_three_rows_worked_by_hand(backend):
    logits = np.array([[0, math.log(3)], [5, 7], [1, 1]], np.float32)
    targets = np.array([1, IGNORED, 0])
    with use_backend(backend):
        nats, d_logits = cross_entropy(logits, targets)
    assert nats == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    np.testing.assert_allclose(d_logits, [[1 / 8, -1 / 8], [0, 0], [-1 / 4, 1 / 4]], rtol=1e-6)


def test_gradients_are_central_differences():
    logits, targets = 3 * normal(2, 3, 7), np.array([[0, 6, IGNORED], [3, 3, 1]])
    expected = central_differences(lambda: cross_entropy(logits.copy(), targets)[0], logits)
    np.testing.assert_allclose(cross_entropy(logits, targets)[1], expected, atol=1e-8)


@BACKENDS
def test_the_gradient_is_where_the_logits_were(backend):
    logits = normal(2, 3, 67, dtype=np.float32)
    with use_backend(backend):
        _, d_logits = cross_entropy(logits, np.ones((2, 3), int))
    assert d_logits is logits


@BACKENDS
def test_logits_in_another_order_of_memory_become_the_same_gradient(backend):
    logits, targets = normal(5, 2, 67, dtype=np.float32), np.arange(10).reshape(5, 2)
    turned = np.asfortranarray(logits)
    with use_backend(backend):
        nats, d_logits = cross_entropy(turned, targets)
        expected_nats, expected = cross_entropy(logits, targets)
    assert d_logits is turned
    assert nats == pytest.approx(expected_nats)
    np.testing.assert_allclose(d_logits, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("V", [1, 5, 63, 64, 67, 131])
def test_compiled_and_formula_agree(V):
    generator = np.random.default_rng(V)
    logits, targets = 20 * generator.normal(size=(3, 11, V)) - 40, generator.integers(IGNORED, V, (3, 11))
    targets[0, 0] = V - 1
    narrow = logits.astype(np.float32)
    exact_nats, exact = cross_entropy(narrow.astype(np.float64), targets)
    with use_backend("compiled"):
        each = token_nats(narrow, targets)
        nats, d_logits = cross_entropy(narrow, targets)
    assert nats == pytest.approx(exact_nats, rel=1e-6)
    assert each.sum(dtype=float) / (targets != IGNORED).sum() == pytest.approx(nats, rel=1e-6)
    np.testing.assert_allclose(d_logits, exact, rtol=1e-4, atol=1e-7)


@BACKENDS
def test_each_target_has_its_nats_and_the_logits_stay(backend):
    logits, targets = normal(2, 3, 67, dtype=np.float32), np.array([[66, 0, IGNORED], [5, IGNORED, 7]])
    before = logits.copy()
    with use_backend(backend):
        nats = token_nats(logits, targets)
    assert (nats.shape, nats.dtype) == ((2, 3), np.float32)
    assert (logits == before).all()
    wide = before.astype(np.float64)
    exact = (
        np.log(np.exp(wide).sum(-1)) - np.take_along_axis(wide, np.maximum(targets, 0)[..., None], -1)[..., 0]
    )
    np.testing.assert_allclose(nats, np.where(targets == IGNORED, 0, exact), rtol=1e-5)


@BACKENDS
@pytest.mark.parametrize("shift", [-1e30, -200.0, 3e4, 1e30])
def test_large_logits_neither_overflow_nor_vanish(backend, shift):
    logits = np.full((1, 67), shift, np.float32)
    with use_backend(backend):
        nats, d_logits = cross_entropy(logits, np.array([3]))
    assert nats == pytest.approx(math.log(67))
    np.testing.assert_allclose(np.delete(d_logits[0], 3), 1 / 67, rtol=1e-5)


@BACKENDS
def test_nan_where_nothing_is_counted_is_not_seen_and_elsewhere_not_hidden(backend):
    logits = normal(3, 67, dtype=np.float32)
    logits[1, 5] = np.nan
    with use_backend(backend), np.errstate(invalid="ignore"):
        nats, d_logits = cross_entropy(logits.copy(), np.array([1, IGNORED, 2]))
        assert math.isfinite(nats)
        assert np.isfinite(d_logits).all()
        assert math.isnan(cross_entropy(logits, np.array([1, 2, 2]))[0])


@BACKENDS
def test_what_has_no_loss_is_refused(backend):
    logits = np.zeros((2, 5), np.float32)
    with use_backend(backend):
        with pytest.raises(NumericError, match="no target is counted, all are -1"):
            cross_entropy(logits, np.array([IGNORED, IGNORED]))
        for measure in (cross_entropy, token_nats):
            with pytest.raises(
                ShapeError, match="from 0 to 4, or -1 where not counted, but range from 0 to 5"
            ):
                measure(logits, np.array([0, 5]))
            with pytest.raises(ShapeError, match="but range from -2 to 1"):
                measure(logits, np.array([-2, 1]))
            with pytest.raises(ShapeError, match=r"logits must be \(3, 'V'\).* got \(2, 5\)"):
                measure(logits, np.array([0, 1, 2]))
