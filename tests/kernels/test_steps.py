"""Norms, rotations and gates, against float64, against the formula in NumPy, and row against row."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.kernels import row_steps, steps
from qkv.kernels.compiler import compiled
from qkv.kernels.host import set_num_threads
from qkv.kernels.launch import address
from qkv.kernels.memory import at
from qkv.kernels.row_calls import ALONE_UP_TO_NUMBERS, NUM_WORKERS, SIZES, first_row
from qkv.kernels.row_vectors import CHAINS, along_row, row_sum
from qkv.ops import norm, rotary
from qkv.ops.backend import use_backend

U = 2.0**-24
"""What one rounding is off by, relative to the number."""

WIDTHS = (4, 8, 16)
LENGTHS = (1, 3, 15, 16, 17, 31, 37, 257)
"""Shorter and longer than a vector of any width, and its multiples."""


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def bits(y):
    return np.ascontiguousarray(y).view(np.uint32).tolist()


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def rms_norm(x):
    return steps.rms_norm(x, normal(x.shape[-1], seed=91), 1e-5)


def layer_norm(x):
    return steps.layer_norm(x, normal(x.shape[-1], seed=91), normal(x.shape[-1], seed=92), 1e-5)


def turns(*shape):
    return normal(*shape, seed=93), normal(*shape, seed=94)


def rotate_halves(x):
    return steps.rotate(x, *turns(x.shape[-1] // 3))


def rotate_neighbours(x):
    return steps.rotate(x, *turns(x.shape[-1] // 3), interleaved=True)


def silu(x):
    return steps.activate(x, "silu")


def gelu_tanh(x):
    return steps.activate(x, "gelu_tanh")


def silu_gate(x):
    return steps.gate(x, x[..., ::-1], "silu")


EACH = pytest.mark.parametrize(
    "step",
    [rms_norm, layer_norm, rotate_halves, rotate_neighbours, silu, gelu_tanh, silu_gate],
    ids=lambda step: step.__name__,
)


# Worked by hand


def test_norms_worked_by_hand():
    ones = np.ones(4, np.float32)
    x = np.array([3, 4, 0, 0], np.float32)
    np.testing.assert_array_equal(steps.rms_norm(x, ones, 0.0), np.array([1.2, 1.6, 0, 0], np.float32))
    assert steps.rms_norm(ones, ones, 3.0).tolist() == [0.5] * 4
    x = np.array([1, 1, 3, 3], np.float32)
    assert steps.layer_norm(x, 2 * ones, 5 * ones, 0.0).tolist() == [3, 3, 7, 7]
    assert steps.layer_norm(x, ones, 0 * ones, 3.0).tolist() == [-0.5, -0.5, 0.5, 0.5]


def test_quarter_turns_worked_by_hand():
    x, cosines, sines = np.array([1, 2, 3, 4, 5], np.float32), *np.array([[0, 0], [1, 1]], np.float32)
    assert steps.rotate(x, cosines, sines).tolist() == [-3, -4, 1, 2, 5]
    assert steps.rotate(x, cosines, sines, interleaved=True).tolist() == [-2, 1, -4, 3, 5]


def test_gates_worked_by_hand():
    opening, up = np.array([math.log(3), 0, -math.log(3)], np.float32), np.array([4, 4, 4], np.float32)
    expected = [3 * math.log(3), 0, -math.log(3)]  # sigmoid(log 3) = 3/4
    np.testing.assert_allclose(steps.gate(opening, up, "silu"), expected, rtol=4 * U)
    assert steps.gate(np.array([9], np.float32), np.array([2], np.float32), "gelu_tanh").tolist() == [18]


# Against float64


@pytest.mark.parametrize("E", LENGTHS)
def test_rms_norm_is_off_by_few_roundings(E):
    x, weight = normal(5, E, scale=0.003), normal(E, seed=1)  # beside which eps counts
    wide = x.astype(np.float64)
    exact = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + np.float32(1e-5)) * weight
    # A chain and the lanes make up the sum, whose error the root halves; 5 more roundings.
    roundings = (math.ceil(E / CHAINS) + CHAINS) / 2 + 5
    np.testing.assert_allclose(steps.rms_norm(x, weight, 1e-5), exact, rtol=roundings * U)


@pytest.mark.parametrize("E", LENGTHS)
def test_layer_norm_is_off_by_few_roundings_of_the_largest_number(E):
    x, weight, bias = normal(5, E) + 2, normal(E, seed=1), normal(E, seed=2)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + np.float32(1e-5))
    exact = centred / deviation * weight + bias
    largest = np.abs(x).max(axis=1, keepdims=True) / deviation
    bound = (2 * (math.ceil(E / CHAINS) + CHAINS) + 8) * U * (largest * np.abs(weight) + np.abs(bias))
    assert (np.abs(steps.layer_norm(x, weight, bias, 1e-5) - exact) <= bound).all()


def test_silu_is_off_by_few_roundings_as_far_as_float32_reaches():
    x = np.concatenate([np.linspace(-86, 86, 20011), [1e-30, -1e-30, 3e38]]).astype(np.float32)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(silu(x), exact, rtol=6 * U)


def test_gelu_is_off_by_few_roundings_of_its_exponent():
    x = np.linspace(-9, 9, 20011).astype(np.float32)
    wide = x.astype(np.float64)
    z = 2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    exact = wide / (1 + np.exp(-z))
    # exp turns what its argument is off by into a relative error, where exp(-|z|) is what counts.
    bound = (6 + 3 * np.maximum(-z, 0)) * U * np.abs(exact)
    assert (np.abs(gelu_tanh(x) - exact) <= bound).all()


@pytest.mark.parametrize("step", [silu, gelu_tanh])
def test_far_from_0_an_activation_is_the_identity_or_0(step):
    far = np.array([1e4, 1e20, np.finfo(np.float32).max, np.inf], np.float32)
    assert step(far).tolist() == far.tolist()
    assert not step(-far[:3]).any()
    assert not step(np.array([-88, -1000], np.float32)).any()


# Against the formula


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("D", [1, 2, 7, 30, 31, 34, 67, 128])
def test_rotation_has_the_bits_of_the_formula(D, interleaved):
    for pairs in {0, D // 5, D // 2}:
        x, tables = normal(2, 3, 5, D), turns(2, 1, 5, pairs)
        with use_backend("numpy"):
            expected = rotary.rotate(x, *tables, interleaved=interleaved)
        assert bits(steps.rotate(x, *tables, interleaved=interleaved)) == bits(expected)


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 5, 4), (5, 4), (1, 1, 4), (1, 5, 4), (2, 1, 1, 4), (4,)])
def test_tables_broadcast_to_the_rows(shape):
    x, tables = normal(2, 3, 5, 11), turns(*shape)
    with use_backend("numpy"):
        expected = rotary.rotate(x, *tables)
    assert bits(steps.rotate(x, *tables)) == bits(expected)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_has_the_bits_of_its_two_steps(activation):
    opening, up = normal(3, 53, scale=4), normal(3, 53, seed=1)
    expected = steps.activate(opening, activation) * up
    assert bits(steps.gate(opening, up, activation)) == bits(expected)


def test_norms_stay_beside_the_formula():
    x, weight, bias = normal(7, 193), normal(193, seed=1), normal(193, seed=2)
    with use_backend("numpy"):
        expected = norm.rms_norm(x, weight, 1e-5), norm.layer_norm(x, weight, bias, 1e-5)
    np.testing.assert_allclose(steps.rms_norm(x, weight, 1e-5), expected[0], rtol=1e-5)
    np.testing.assert_allclose(steps.layer_norm(x, weight, bias, 1e-5), expected[1], rtol=1e-4, atol=1e-5)


# One row and another


@EACH
@settings(max_examples=25)
@given(num_rows=st.sampled_from([1, 7, 64]), length=st.integers(1, 150), data=st.data())
def test_a_row_has_the_same_bits_alone_and_among_others(step, num_rows, length, data):
    x = normal(num_rows, length, seed=length)
    row = data.draw(st.integers(0, num_rows - 1))
    assert bits(step(x)[row]) == bits(step(x[row]))
    first = data.draw(st.integers(0, row))
    assert bits(step(x)[first : row + 1]) == bits(step(x[first : row + 1]))


@EACH
def test_bits_do_not_depend_on_the_number_of_threads(threads, step):
    x = normal(67, 2003)
    assert x.size > ALONE_UP_TO_NUMBERS
    threads(1)
    alone = bits(step(x))
    threads(2)
    assert bits(step(x)) == alone
    assert bits(step(x[60:])) == alone[60:]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_every_row_is_one_worker_s(num_workers):
    call = np.zeros(NUM_WORKERS + 1, np.int64)
    call[SIZES : SIZES + 3], call[NUM_WORKERS] = (2, 5, 7), num_workers
    borders = [first_row(address(call), worker) for worker in range(num_workers + 1)]
    assert (borders[0], borders[-1]) == (0, 2 * 5 * 7)
    assert all(0 < after - before <= 70 // num_workers + 1 for before, after in pairwise(borders))


@EACH
def test_nan_in_a_row_stays_in_its_row(step):
    x = normal(11, 41)
    clean = step(x)
    x[3, 11] = np.nan
    y = step(x)
    assert np.isnan(y[3]).any()
    rest = np.arange(11) != 3
    assert bits(y[rest]) == bits(clean[rest])


@EACH
def test_infinity_is_no_error(step):
    x = normal(2, 41)
    x[0, 5] = np.inf
    assert not np.isfinite(step(x)[0, 5])


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_is_its_chains_in_order_at_every_vector_width(length, squares):
    x = normal(length)
    chains = np.zeros(CHAINS, np.float32)
    for i, number in enumerate(x.astype(np.float64)):
        term = number * number if squares else number
        chains[i % CHAINS] = np.float32(term + np.float64(chains[i % CHAINS]))
    expected = np.float32(0)
    for chain in chains:
        expected = np.float32(expected + chain)
    for width in WIDTHS:
        assert np.float32(sum_by(width, squares)(np.append(x, np.nan).astype(np.float32), length)) == expected


def sum_by(width, squares, made={}):  # noqa: B006 - each is compiled once
    if (width, squares) not in made:
        total = row_sum(width, squares=squares)

        @compiled()
        def add_up(x, length):
            return total(at(x, 0), length)

        made[width, squares] = add_up
    return made[width, squares]


@pytest.mark.parametrize(
    "step",
    [
        row_steps.turn_halves,
        row_steps.turn_neighbours,
        row_steps.bend(row_steps.silu),
        row_steps.scale_and_add,
    ],
)
def test_a_step_has_the_same_bits_at_every_vector_width_and_stays_in_its_row(step):
    x, a, b, lengths = normal(300), normal(300, seed=1), normal(300, seed=2), (0, 1, 7, 31, 47)
    by_width = []
    for width in WIDTHS:
        along = along_row(step, width)

        @compiled()
        def take(x, a, b, y, length, along=along):
            along(at(x, 0), at(a, 0), at(b, 0), np.float32(1.5), at(y, 0), length)

        results = np.full((len(lengths), 300), 77, np.float32)
        for length, y in zip(lengths, results, strict=True):
            take(x, a, b, y, length)
            assert (y[2 * length :] == 77).all()
        by_width.append(bits(results))
    assert by_width[0] == by_width[1] == by_width[2]


# Where the numbers are


def laid_out(x):
    """The same numbers in memory of every kind."""
    yield "reversed", np.ascontiguousarray(x[::-1])[::-1]
    yield "by columns", np.asfortranarray(x)
    yield "every other number", np.repeat(x, 2, axis=-1)[..., ::2]
    yield "within wider rows", np.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 2)])[..., 3:-2]
    yield "axes swapped", np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    yield "unaligned", unaligned
    fixed = x.copy()
    fixed.flags.writeable = False
    yield "read only", fixed


@EACH
def test_strides_and_read_only_memory_change_nothing(step):
    x = normal(3, 5, 2, 19)
    expected = bits(step(x))
    for kind, same in laid_out(x):
        assert bits(step(same)) == expected, kind
        assert bits(same) == bits(x), kind
    assert bits(step(np.broadcast_to(x[:1], x.shape))[2]) == expected[0]


def test_weights_and_tables_may_lie_anywhere():
    x, weight, bias, (cosines, sines) = normal(5, 2, 7), normal(7), normal(7, seed=1), turns(5, 2, 3)
    expected = steps.layer_norm(x, weight, bias, 1e-5)
    assert bits(steps.layer_norm(x, np.repeat(weight, 2)[::2], bias[::-1].copy()[::-1], 1e-5)) == bits(
        expected
    )
    turned, opened = bits(steps.rotate(x, cosines, sines)), bits(steps.gate(x, cosines_of(x), "silu"))
    for (kind, one), (_, other) in zip(laid_out(cosines), laid_out(sines), strict=True):
        assert bits(steps.rotate(x, one, other)) == turned, kind
    for kind, up in laid_out(cosines_of(x)):
        assert bits(steps.gate(x, up, "silu")) == opened, kind


def cosines_of(x):
    return np.cos(x)


@EACH
def test_rows_may_have_any_number_of_axes(step):
    x = normal(2, 3, 2, 5, 2, 13)
    expected = bits(step(x.reshape(-1, 13)))
    y = step(x)
    assert y.shape == x.shape
    assert bits(y.reshape(-1, 13)) == expected


def test_tables_broadcast_to_rows_of_many_axes():
    x, (cosines, sines) = normal(2, 3, 2, 5, 13), turns(2, 1, 1, 5, 4)
    with use_backend("numpy"):
        expected = rotary.rotate(x, cosines, sines)
    assert bits(steps.rotate(x, cosines, sines)) == bits(expected)


@EACH
@pytest.mark.parametrize("shape", [(0, 7), (2, 0, 7), (3, 0)])
def test_empty_axes_are_legal(step, shape):
    assert step(normal(*shape)).shape == shape


@EACH
def test_a_result_is_its_own_array(step):
    x = normal(3, 21)
    before = bits(x)
    y = step(x)
    y[:] = 0
    assert bits(x) == before
    assert step(x).flags.c_contiguous
