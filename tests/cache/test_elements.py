"""What each element type promises of its numbers: no known fault of quantised caches, and bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkv.cache.codecs import Codec
from qkv.cache.elements import ELEMENTS, Element, element_named
from qkv.errors import OptionError

SIDES = [(element, side) for element in ELEMENTS.values() for side in ("keys", "values")]
each_side = pytest.mark.parametrize(
    "codec",
    [getattr(element, side) for element, side in SIDES],
    ids=[f"{element.name}-{side}" for element, side in SIDES],
)


def f32(rows: list) -> np.ndarray:
    return np.array(rows, np.float32)


def round_trip(codec: Codec, x: np.ndarray) -> np.ndarray:
    return codec.decode(codec.encode(x))


# Zeros, constants, short groups, outliers


@each_side
@pytest.mark.parametrize("shape", [(1, 8), (8, 2), (32, 34)])
def test_zeros_come_back_as_zeros(codec: Codec, shape: tuple[int, int]):
    stored = codec.encode(np.zeros(shape, np.float32))
    assert not any(part.astype(np.float32).any() for part in stored.values())
    np.testing.assert_array_equal(codec.decode(stored), np.zeros(shape))


@each_side
@pytest.mark.parametrize("shape", [(1, 8), (8, 2), (32, 34)])
@pytest.mark.parametrize("number", [5.0, 0.001, -5.0])
def test_a_constant_comes_back_with_finite_metadata(codec: Codec, shape: tuple[int, int], number: float):
    stored = codec.encode(np.full(shape, number, np.float32))
    assert all(np.isfinite(part.astype(np.float32)).all() for part in stored.values())
    # 5 is a number of every float type here; 0.001 lies halfway between 0 and the least number of fp8-e4m3
    assert np.abs(codec.decode(stored) - number).max() <= (0.005 if abs(number) == 5 else 2.0**-10)


def test_int4_keys_from_10_to_11_take_a_step_of_a_fifteenth():
    x = np.repeat(np.linspace(10, 11, 48, dtype=np.float32)[:, None], 2, axis=1)
    stored = ELEMENTS["int4"].keys.encode(x)
    np.testing.assert_allclose(stored["step"], 0.0667, atol=5e-5)
    assert np.abs(ELEMENTS["int4"].keys.decode(stored) - x).max() <= 0.0334


def test_int4_values_from_10_to_11_are_not_dragged_to_zero_by_a_short_group():
    x = np.linspace(10, 11, 48, dtype=np.float32)[None]
    stored = ELEMENTS["int4"].values.encode(x)
    # 48 channels are a group of 32 and one of 16, which has 15/47 of the range and 15 steps for it
    np.testing.assert_allclose(stored["step"], [[31 / 47 / 15, 1 / 47]], rtol=5e-4)
    np.testing.assert_allclose(stored["low"], [[10, 10 + 32 / 47]], atol=0.004)
    assert np.abs(ELEMENTS["int4"].values.decode(stored) - x).max() <= 0.0334


def test_int8_scales_by_the_largest_number():
    x = f32([[0.3, -0.4, 0.49, 4.2]])
    for codec in (ELEMENTS["int8"].keys, ELEMENTS["int8"].values, ELEMENTS["int8-kivi"].values):
        assert codec.encode(x)["codes"].tolist() == [[9, -12, 15, 127]]
        assert np.abs(round_trip(codec, x) - x).max() <= 0.0166


@pytest.mark.parametrize(("name", "held"), [("fp8-e4m3", [448, 448]), ("fp8-e5m2", [512, 10240])])
def test_8_bit_floats_hold_or_saturate_large_numbers(name: str, held: list[float]):
    # e5m2 holds both: 500 lies in steps of 64 (448, 512), 1e4 in steps of 2048 (8192, 10240)
    assert round_trip(ELEMENTS[name].keys, f32([[500, 1e4]])).tolist() == [held]


@pytest.mark.parametrize(
    ("name", "largest"),
    [("float32", np.inf), ("fp16", 65504), ("bf16", np.inf), ("fp8-e4m3", 448), ("fp8-e5m2", 57344)],
)
def test_an_infinity_becomes_the_largest_number_of_a_float_type_that_saturates(name: str, largest: float):
    for codec in (ELEMENTS[name].keys, ELEMENTS[name].values):
        assert round_trip(codec, f32([[np.inf, -np.inf]])).tolist() == [[largest, -largest]]


# Bounds


@pytest.mark.parametrize(
    ("name", "relative", "least_normal", "largest"),
    [
        ("float32", 0, 2.0**-126, 3e38),
        ("fp16", 2.0**-11, 2.0**-14, 65504),
        ("bf16", 2.0**-8, 2.0**-126, 3e38),
        ("fp8-e4m3", 2.0**-4, 2.0**-6, 448),
        ("fp8-e5m2", 2.0**-3, 2.0**-14, 57344),
    ],
)
@given(data=st.data())
def test_a_float_type_keeps_its_relative_error(
    name: str, relative: float, least_normal: float, largest: float, data: st.DataObject
):
    within = st.floats(-float(np.float32(largest)), float(np.float32(largest)), width=32)
    x = data.draw(arrays(np.float32, (3, 7), elements=within))
    for codec in (ELEMENTS[name].keys, ELEMENTS[name].values):
        error = np.abs(round_trip(codec, x).astype(np.float64) - x)
        assert (error <= relative * np.maximum(np.abs(x), least_normal)).all()


def test_a_channel_of_outliers_costs_the_others_nothing_where_keys_have_a_step_per_channel():
    x = np.random.default_rng(0).uniform(-1, 1, (32, 34)).astype(np.float32)
    x[:, 5] *= 1000
    others = np.arange(34) != 5
    for name, bound in [("int8-kivi", 0.5 * 2 / 255), ("int4", 0.5 * 2 / 15)]:
        assert np.abs(round_trip(ELEMENTS[name].keys, x) - x)[:, others].max() <= bound + 5e-4
    assert np.abs(round_trip(ELEMENTS["int8"].keys, x) - x)[:, others].max() > 0.9


@each_side
def test_a_nan_spoils_what_shares_its_scale_and_nothing_else(codec: Codec):
    x = np.random.default_rng(0).normal(size=(32, 34)).astype(np.float32)
    spoiled = x.copy()
    spoiled[3, 33] = np.nan
    back, whole = round_trip(codec, spoiled), round_trip(codec, x)
    assert np.isnan(back[3, 33])
    np.testing.assert_array_equal(back[np.arange(32) != 3, :33], whole[np.arange(32) != 3, :33])
    assert np.isnan(back).sum() in (1, 2, 32, 34)  # itself, its group of 2 channels, its channel, its row


# The table


def test_an_element_closes_pages_exactly_where_a_number_depends_on_other_tokens():
    x = np.random.default_rng(0).normal(size=(32, 34)).astype(np.float32)
    changed = x.copy()
    changed[7] *= 100
    other_rows = np.arange(32) != 7
    for element in ELEMENTS.values():
        alone = all(
            np.array_equal(round_trip(codec, x)[other_rows], round_trip(codec, changed)[other_rows])
            for codec in (element.keys, element.values)
        )
        assert element.closes_pages == (not alone)


def test_elements_by_name_with_the_page_size_they_prefer():
    assert {name: element.page_size for name, element in ELEMENTS.items()} == {
        "float32": 16,
        "fp16": 16,
        "bf16": 16,
        "fp8-e4m3": 16,
        "fp8-e5m2": 16,
        "int8": 16,
        "int8-kivi": 32,
        "int4": 32,
    }
    assert all(element_named(name) is element for name, element in ELEMENTS.items())


def test_an_element_shows_as_its_name():
    assert repr(ELEMENTS["int8"]) == "Element(name='int8', page_size=16, closes_pages=False)"
    assert isinstance(ELEMENTS["int8"], Element)


def test_an_unknown_element_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="no element type is named 'int2'; there are float32, fp16, bf16"):
        element_named("int2")
