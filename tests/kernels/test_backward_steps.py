"""The way back through norms and gates: against float64, row against row, thread against thread."""

import math

import numpy as np
import pytest

from qkv.kernels.backward_steps import BLOCK_ROWS, gate_backward, rms_norm_backward
from qkv.kernels.host import set_num_threads
from qkv.kernels.row_calls import ALONE_UP_TO_NUMBERS
from qkv.kernels.row_vectors import CHAINS

U = 2.0**-24
"""What one rounding is off by, relative to the number."""

LENGTHS = (1, 3, 15, 16, 17, 31, 37, 257)


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def bits(y):
    return np.ascontiguousarray(y).view(np.uint32).tolist()


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


@pytest.mark.parametrize("E", LENGTHS)
def test_a_norm_s_gradient_is_off_by_few_roundings_of_its_terms(E):
    d_y, x, weight = (
        normal(5, E),
        normal(5, E, seed=1, scale=0.003),
        normal(E, seed=2),
    )  # beside which eps counts
    back, there, scale = (array.astype(np.float64) for array in (d_y, x, weight))
    r = np.sqrt(np.mean(there**2, axis=1, keepdims=True) + np.float32(1e-5))
    g = back * scale
    along, at_most = (np.mean(terms, axis=1, keepdims=True) for terms in (g * there, np.abs(g * there)))
    roundings = 3 * (math.ceil(E / CHAINS) + CHAINS) + 12
    bound = roundings * U * (np.abs(g) / r + np.abs(there) * at_most / r**3)
    d_x, d_weight = rms_norm_backward(d_y, x, weight, 1e-5, None)
    assert (np.abs(d_x - (g / r - there * along / r**3)) <= bound).all()
    bound = (roundings + 5) * U * np.sum(np.abs(back * there / r), axis=0)
    assert (np.abs(d_weight - np.sum(back * there / r, axis=0)) <= bound).all()


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS + 5])
def test_a_weight_s_gradient_is_the_sum_of_its_blocks_in_order(rows):
    d_y, x, weight = normal(rows, 37), normal(rows, 37, seed=1), normal(37, seed=2)
    total = np.zeros(37, np.float32)
    for start in range(0, rows, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        total += rms_norm_backward(d_y[block], x[block], weight, 1e-5, None)[1]
    assert bits(rms_norm_backward(d_y, x, weight, 1e-5, None)[1]) == bits(total)


@pytest.mark.parametrize("skip", [False, True])
def test_a_norm_s_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(threads, skip):
    d_y, x, weight = normal(67, 2003), normal(67, 2003, seed=1), normal(2003, seed=2)
    d_skip = normal(67, 2003, seed=3) if skip else None
    assert x.size > ALONE_UP_TO_NUMBERS
    threads(1)
    d_x, d_weight = rms_norm_backward(d_y, x, weight, 1e-5, d_skip)
    threads(2)
    same_x, same_weight = rms_norm_backward(d_y, x, weight, 1e-5, d_skip)
    assert bits(same_x) == bits(d_x)
    assert bits(same_weight) == bits(d_weight)
    for row in (0, 5, 66):
        alone = rms_norm_backward(d_y[row], x[row], weight, 1e-5, None if d_skip is None else d_skip[row])[0]
        assert bits(alone) == bits(d_x[row])


def test_a_gate_s_gradient_is_off_by_few_roundings_as_far_as_float32_reaches():
    gate = np.concatenate([np.linspace(-80, 80, 20011), [1e-30, -1e-30]]).astype(np.float32)
    up, d_y = normal(gate.size, seed=1), normal(gate.size, seed=2)
    d_gate, d_up = np.split(gate_backward(d_y, np.concatenate([gate, up])), 2)
    wide, s = gate.astype(np.float64), 1 / (1 + np.exp(-gate.astype(np.float64)))
    np.testing.assert_allclose(d_up, d_y.astype(np.float64) * wide * s, rtol=8 * U)
    # Where gate (1 - s) is near -1 what is left of the slope is small beside its terms.
    terms = np.abs(d_y.astype(np.float64) * up) * s * (1 + np.abs(wide * (1 - s)))
    exact = d_y.astype(np.float64) * up * s * (1 + wide * (1 - s))
    assert (np.abs(d_gate - exact) <= 12 * U * terms * (1 + np.maximum(wide, 0) * s)).all()


def test_a_gate_s_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(threads):
    d_y, gate_up = normal(67, 1511), normal(67, 2 * 1511, seed=1)
    threads(1)
    expected = gate_backward(d_y, gate_up)
    threads(2)
    assert bits(gate_backward(d_y, gate_up)) == bits(expected)
    assert bits(gate_backward(d_y[5], gate_up[5])) == bits(expected[5])


@pytest.mark.parametrize("F", LENGTHS)
def test_halves_of_any_width_stay_apart(F):
    d_y, gate_up = normal(3, F), normal(3, 2 * F, seed=1)
    got = gate_backward(d_y, gate_up)
    for f in range(F):
        alone = gate_backward(d_y[:, f : f + 1], gate_up[:, [f, F + f]])
        assert bits(got[:, [f, F + f]]) == bits(alone)


def test_strides_and_read_only_memory_change_nothing():
    d_y, x, weight = normal(6, 2, 19), normal(6, 2, 19, seed=1), normal(19, seed=2)
    gate_up = normal(6, 2, 38, seed=3)
    kept = d_y[::-2], x[::-2], gate_up[::-2]
    norm, gate = (
        rms_norm_backward(kept[0].copy(), kept[1].copy(), weight, 1e-5, kept[0].copy()),
        gate_backward(kept[0].copy(), kept[2].copy()),
    )
    for array in (d_y, x, gate_up, weight):
        array.flags.writeable = False
    got = rms_norm_backward(kept[0], kept[1], weight, 1e-5, kept[0])
    assert [bits(one) for one in got] == [bits(one) for one in norm]
    assert bits(gate_backward(kept[0], kept[2])) == bits(gate)
    assert bits(gate_backward(np.asfortranarray(kept[0]), np.asfortranarray(kept[2]))) == bits(gate)
