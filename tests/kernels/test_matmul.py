import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkv.errors import OptionError, ShapeError
from qkv.kernels.host import HOST_TILE, Tile, num_threads, set_num_threads
from qkv.kernels.matmul import BLOCK_DEPTH, BLOCK_ROWS, FEW_OPERATIONS, matmul, matmul_plain, pack
from qkv.kernels.panels import GROUP

FORMS: Any = ("float32", "bfloat16", "int8")
TILES = (Tile(6, 2, 4), Tile(6, 2, 8), Tile(8, 2, 16))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bits(y):
    return y.view(np.uint32).tolist()


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def chain(x, w):
    """One fused multiply-add after another, in float64: a product of two float32 is exact there."""
    total = np.float32(0)
    for a, b in zip(x, w, strict=True):
        total = np.float32(np.float64(a) * np.float64(b) + np.float64(total))
    return total


def grouped_chain(x, codes, scales):
    total = np.float32(0)
    for group, scale in enumerate(scales):
        part = slice(group * GROUP, (group + 1) * GROUP)
        total = np.float32(np.float64(chain(x[part], codes[part])) * np.float64(scale) + np.float64(total))
    return total


def test_a_product_worked_by_hand():
    weight = pack(np.array([[1, 0, 2], [0, -1, 3]], np.float32))
    y = matmul(np.array([[5, 7, 11]], np.float32), weight, np.array([100, 1000], np.float32))
    assert y.tolist() == [[5 + 22 + 100, -7 + 33 + 1000]]


def test_each_step_multiplies_and_adds_with_one_rounding():
    tiny = np.float32(2.0**-12)
    x = np.array([-1, 1 + tiny], np.float32)
    y = matmul(x, pack(np.array([[1, 1 - tiny]], np.float32)))
    assert y.tolist() == [-(2.0**-24)]  # rounded to float32, (1 + t)(1 - t) is 1, and the sum 0


def test_the_inner_axis_is_summed_in_order():
    x = np.ones(3, np.float32)
    assert matmul(x, pack(np.array([[2.0**24, 1, 1]], np.float32))).tolist() == [2.0**24]
    assert matmul(x, pack(np.array([[1, 1, 2.0**24]], np.float32))).tolist() == [2.0**24 + 2]


@pytest.mark.parametrize("form", FORMS)
def test_results_are_the_chain_written_out_in_python(form):
    x, weight = normal(2, 71), pack(normal(3, 71, seed=1), form)
    numbers, scales = weight.stored()
    for t, n in np.ndindex(2, 3):
        one = chain(x[t], numbers[n]) if form != "int8" else grouped_chain(x[t], numbers[n], scales[n])
        assert bits(matmul_plain(x, weight)[t, n]) == bits(one)
        assert bits(matmul(x, weight)[t, n]) == bits(one)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"width{tile.width}")
def test_fast_and_plain_give_the_same_bits_at_every_vector_width(tile, form):
    E_out, E_in = 67, BLOCK_DEPTH + 37  # two blocks of the inner axis; an odd number of panels at width 16
    weight, bias = pack(normal(E_out, E_in), form, tile), normal(E_out, seed=2)
    for T in (1, 2, 3, 7, BLOCK_ROWS + 13):
        x = normal(T, E_in, seed=T)
        assert bits(matmul(x, weight, bias)) == bits(matmul_plain(x, weight, bias))


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_alone_and_among_others(form):
    weight, x = pack(normal(1021, 1031), form), normal(512, 1031, seed=1)
    among_all = matmul(x, weight)
    assert bits(matmul(x[:7], weight)) == bits(among_all[:7])
    for t in (0, 5, 6, 47, 48, 511):
        assert bits(matmul(x[t], weight)) == bits(among_all[t])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("T", [1, 7, 64])
def test_weights_side_by_side_give_each_the_bits_that_it_gives_alone(form, T):
    x, widths = normal(T, 331), (67, 5, 131)
    parts, biases = zip(*((normal(n, 331, seed=n), normal(n, seed=n + 1)) for n in widths), strict=True)
    together = matmul(x, pack(np.concatenate(parts), form), np.concatenate(biases))
    alone = [matmul(x, pack(part, form), bias) for part, bias in zip(parts, biases, strict=True)]
    assert bits(together) == bits(np.concatenate(alone, axis=1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("T", [1, 131])
def test_bits_do_not_depend_on_the_number_of_threads(threads, form, T):
    weight, x = pack(normal(1021, 1031), form), normal(T, 1031, seed=1)
    assert T * weight.panels.size > FEW_OPERATIONS
    by_count = {}
    for count in (1, 2):
        threads(count)
        assert num_threads() == count
        by_count[count] = bits(matmul(x, weight))
    assert by_count[1] == by_count[2]


@pytest.mark.parametrize("form", FORMS)
def test_products_agree_with_numpy_in_float64(form):
    x, weight, bias = normal(2, 3, 257), pack(normal(193, 257, seed=1), form), normal(193, seed=2)
    exact = x.astype(np.float64) @ weight.unpack().T.astype(np.float64) + bias
    y = matmul(x, weight, bias)
    assert y.shape == (2, 3, 193)
    assert y.dtype == np.float32
    magnitude = np.abs(x).astype(np.float64) @ np.abs(weight.unpack()).T + np.abs(bias)
    num_roundings = 257 + 1 + (-(-257 // GROUP) if form == "int8" else 0)
    assert (np.abs(y - exact) <= num_roundings * 2.0**-24 * magnitude).all()


def test_the_bias_is_added_once_at_the_end():
    x, w, bias = normal(5, 1033), normal(41, 1033, seed=1), normal(41, seed=2)
    assert bits(matmul(x, pack(w), bias)) == bits(matmul(x, pack(w)) + bias)


def test_without_a_bias_a_negative_zero_keeps_its_sign():
    tiny = np.array([1e-30], np.float32)
    assert np.signbit(matmul(tiny, pack(np.array([[-1e-30]], np.float32)))).all()


@pytest.mark.parametrize("form", ["float32", "bfloat16"])
def test_bfloat16_weights_are_multiplied_exactly(form):
    w = normal(67, 129).astype(ml_dtypes.bfloat16)
    weight, x = pack(w, form), normal(3, 129, seed=1)
    assert bits(weight.unpack()) == bits(w.astype(np.float32))
    assert bits(matmul(x, weight)) == bits(matmul(x, pack(w.astype(np.float32))))


def test_bfloat16_rounds_float32_weights_to_the_nearest():
    w = np.array([[1 + 2.0**-9, 1 + 3 * 2.0**-9, -(1 + 2.0**-8 + 2.0**-20)]], np.float32)
    assert pack(w, "bfloat16").unpack().tolist() == [[1, 1 + 2.0**-7, -(1 + 2.0**-7)]]


def test_float32_weights_come_back_exactly():
    w = normal(67, 131)
    assert bits(pack(w).unpack()) == bits(w)


def test_an_int8_weight_is_off_by_at_most_half_its_scale():
    w = normal(37, 101) * np.float32(10) ** np.arange(-18, 19, dtype=np.float32)[:, None]
    w[3, :GROUP] = 0
    w[5] = np.float32(2.6e-43)  # so small that a scale of 1/127 of it would have one bit
    weight = pack(w, "int8")
    codes, scales = weight.stored()
    assert scales.shape == (37, 4)
    assert np.abs(codes).max() == 127
    off = np.abs(weight.unpack().astype(np.float64) - w)
    each = np.repeat(scales, GROUP, axis=1)[:, :101].astype(np.float64)
    assert (off <= each / 2 * (1 + 2.0**-15)).all()


def test_int8_codes_of_one_group_worked_by_hand():
    weight = pack(np.array([[127, -63.6, 0.4, -127] + [0] * 28 + [2, 1]], np.float32), "int8")
    codes, scales = weight.stored()
    assert scales.tolist() == [[1, np.float32(2 / 127)]]
    assert codes[0, [0, 1, 2, 3, 32, 33]].tolist() == [127, -64, 0, -127, 127, 64]


def test_the_error_of_an_int8_product_keeps_within_its_bound():
    w, x = normal(53, 331), normal(19, 331, seed=1)
    weight = pack(w, "int8")
    _, scales = weight.stored()
    sums = np.add.reduceat(np.abs(x).astype(np.float64), np.arange(0, 331, GROUP), axis=1)  # T groups
    bound = sums @ (scales.T.astype(np.float64) / 2)
    rounding = 331 * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(weight.unpack()).T)
    off = np.abs(matmul(x, weight) - x.astype(np.float64) @ w.T.astype(np.float64))
    assert (off <= bound + rounding).all()
    assert off.max() > bound.max() / 50  # a bound of this size says something


@pytest.mark.parametrize("form", FORMS)
def test_nan_in_a_row_stays_in_its_row(form):
    weight, x = pack(normal(37, 67), form), normal(11, 67, seed=1)
    clean = matmul(x, weight)
    x[3, 61] = np.nan
    y = matmul(x, weight)
    assert np.isnan(y[3]).all()
    rest = np.arange(11) != 3
    assert bits(y[rest]) == bits(clean[rest])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("shape", "E_out"), [((0, 5), 3), ((2, 0, 5), 3), ((7, 5), 0), ((99, 5), 0), ((7, 0), 3)]
)
def test_empty_axes_are_legal(form, shape, E_out):
    bias = normal(E_out)
    y = matmul(normal(*shape), pack(normal(E_out, shape[-1]), form), bias)
    assert y.shape == (*shape[:-1], E_out)
    np.testing.assert_array_equal(y, np.broadcast_to(bias, y.shape) if shape[-1] == 0 else y)


def test_strides_and_read_only_memory_change_nothing():
    x, w = normal(13, 2, 67), normal(41, 67, seed=1)
    expected = bits(matmul(np.ascontiguousarray(x[::-2, 1]), pack(w)))
    assert bits(matmul(x[::-2, 1], pack(w))) == expected
    assert bits(matmul(np.asfortranarray(x[::-2, 1]), pack(w))) == expected
    assert bits(matmul(x[::-2, 1], pack(np.asfortranarray(w)))) == expected
    x.flags.writeable = False
    assert bits(matmul(x[::-2, 1], pack(w))) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_bias_may_be_of_another_type_and_lie_anywhere(dtype):
    x, w, spread = normal(5, 67), normal(41, 67), (normal(82) / 3).astype(dtype)
    bias = spread[::2].copy()
    expected = bits(matmul(x, pack(w)) + bias.astype(np.float32))
    assert bits(matmul(x, pack(w), bias)) == bits(matmul(x, pack(w), spread[::2])) == expected
    bias.flags.writeable = False
    assert bits(matmul(x, pack(w), bias)) == expected


def test_inputs_are_never_written():
    x, w, bias = normal(5, 67), normal(41, 67), normal(41)
    before = bits(x), bits(w), bits(bias)
    for form in FORMS:
        matmul(x, pack(w, form), bias)
    assert (bits(x), bits(w), bits(bias)) == before


def test_bytes_are_those_of_the_padded_panels():
    tile = Tile(8, 2, 16)
    w = normal(33, 65)  # two panels of 32 columns, three groups
    assert pack(w, "float32", tile).nbytes == 64 * 65 * 4
    assert pack(w, "bfloat16", tile).nbytes == 64 * 65 * 2
    assert pack(w, "int8", tile).nbytes == 64 * 65 + 64 * 3 * 4
    assert [pack(w, form).form for form in FORMS] == list(FORMS)
    assert pack(w).shape == (33, 65)
    assert pack(w).tile == HOST_TILE


def test_what_cannot_be_multiplied_is_refused():
    weight = pack(normal(3, 5))
    with pytest.raises(ShapeError, match=r"x must be \(\.\.\., 5\).*got \(2, 3\)"):
        matmul(normal(2, 3), weight)
    with pytest.raises(ShapeError, match=r"bias must be \(3,\), got \(1,\)"):
        matmul(normal(2, 5), weight, normal(1))
    with pytest.raises(TypeError, match="x must be float32, got float64"):
        matmul(np.ones(5), weight)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="float32 or bfloat16, got float16"):
        pack(np.ones((3, 5), np.float16))
    with pytest.raises(ShapeError, match=r"\(E_out, E_in\), got shape \(5,\)"):
        pack(normal(5))
    with pytest.raises(OptionError, match="got 'int4'"):
        pack(normal(3, 5), "int4")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="int8 weights must be finite"):
        pack(np.array([[np.inf, 1]], np.float32), "int8")


def test_the_compiler_is_imported_only_when_a_kernel_is():
    check = "import qkv, sys; assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
