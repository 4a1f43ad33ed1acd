"""The arithmetic of each codec, bit by bit: against loops over exact fractions, and by hand."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkv.cache.codecs import Asymmetric, Codec, Rounded, Symmetric
from qkv.errors import OptionError

FLOATS = {
    "fp16": Rounded(np.dtype(np.float16), 65504),
    "bf16": Rounded(np.dtype(ml_dtypes.bfloat16)),
    "fp8-e4m3": Rounded(np.dtype(ml_dtypes.float8_e4m3fn), 448),
    "fp8-e5m2": Rounded(np.dtype(ml_dtypes.float8_e5m2), 57344),
}
BY_TOKENS: dict[int, Asymmetric] = {255: Asymmetric(255, "tokens"), 15: Asymmetric(15, "tokens")}
GROUPED = [*BY_TOKENS.values(), Asymmetric(255, "channels"), Asymmetric(15, "channels")]
CODECS = [*FLOATS.values(), Symmetric(), *GROUPED]

WITHIN_HALF = st.floats(-65504, 65504, width=32)


def f32(rows: list) -> np.ndarray:
    return np.array(rows, np.float32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bits(x: np.ndarray | np.generic) -> np.ndarray:
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def round_trip(codec: Codec, x: np.ndarray) -> np.ndarray:
    return codec.decode(codec.encode(x))


# Rounded: against every number of the type


def nearest_of_all(x: float, dtype: np.dtype) -> float:
    """Return the nearest finite number of a type, of two equally near the one with an even pattern."""
    patterns = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(patterns.view(dtype))
    patterns, numbers = patterns[finite], patterns.view(dtype)[finite].astype(np.float64)
    distance = np.abs(numbers - x)
    nearest = np.flatnonzero(distance == distance.min())
    even = [number for number in nearest if patterns[number] % 2 == 0]
    return float(numbers[even[0] if even else nearest[0]])


@pytest.mark.parametrize("name", ["fp8-e4m3", "fp8-e5m2"])
def test_an_8_bit_float_is_the_nearest_of_all_256_ties_to_even(name: str):
    codec = FLOATS[name]
    numbers = np.arange(256, dtype=np.uint8).view(codec.dtype).astype(np.float32)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    beside = np.concatenate([np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)])
    x = np.concatenate([numbers, middles, beside, normal(97) * 300])
    np.testing.assert_array_equal(
        round_trip(codec, x[:, None])[:, 0], [nearest_of_all(number, codec.dtype) for number in x]
    )


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_16_bit_float_is_the_nearest_of_all_65536(name: str):
    x = np.concatenate([normal(53), normal(13) * 1e-7, normal(13) * 3e4])
    wanted = [nearest_of_all(number, FLOATS[name].dtype) for number in x]
    np.testing.assert_array_equal(round_trip(FLOATS[name], x[:, None])[:, 0], wanted)


@pytest.mark.parametrize(("name", "largest"), [("fp16", 65504), ("fp8-e4m3", 448), ("fp8-e5m2", 57344)])
def test_what_leaves_the_range_becomes_the_largest_number(name: str, largest: float):
    x = f32([[largest, largest * 1.5, 3e38, np.inf, -largest * 1.5, -np.inf]])
    np.testing.assert_array_equal(round_trip(FLOATS[name], x), [[largest] * 4 + [-largest] * 2])


def test_bfloat16_has_the_range_of_float32_and_holds_infinity():
    # between 2**127 and 2**128 bfloat16 stands 2**120 apart; 3e38 is 225.7 of them
    back = round_trip(FLOATS["bf16"], f32([[3e38, np.inf]]))
    np.testing.assert_array_equal(back, f32([[226 * 2.0**120, np.inf]]))


# Symmetric


def test_an_int8_row_by_hand():
    # scale 2.54 / 127 = 0.02, of which 0.5 is 25; with scale 1, 2.5 goes to the even 2 and -3.5 to -4
    stored = Symmetric().encode(f32([[2.54, -2.54, 0.5], [127, 2.5, -3.5]]))
    np.testing.assert_array_equal(stored["codes"], [[127, -127, 25], [127, 2, -4]])
    np.testing.assert_array_equal(stored["scale"], f32([2.54, 127]) / np.float32(127))


def test_int8_is_rounded_quotient_times_scale_in_float32_loop_by_loop():
    x = normal(11, 7, seed=3) * np.float32(10) ** np.arange(-5, 6, dtype=np.float32)[:, None]
    stored = Symmetric().encode(x)
    for row, scale, codes in zip(x, stored["scale"], stored["codes"], strict=True):
        wanted = np.float32(max(abs(number) for number in row)) / np.float32(127)
        assert bits(scale) == bits(wanted)
        assert codes.tolist() == [round(float(number / wanted)) for number in row]
    rows = zip(stored["codes"], stored["scale"], strict=True)
    wanted = [[np.float32(int(code)) * scale for code in codes] for codes, scale in rows]
    np.testing.assert_array_equal(bits(Symmetric().decode(stored)), bits(np.array(wanted)))


@given(arrays(np.float32, (3, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_int8_is_off_by_half_a_scale_at_most(x: np.ndarray):
    stored = Symmetric().encode(x)
    scale = stored["scale"].astype(np.float64)[:, None]
    error = np.abs(Symmetric().decode(stored).astype(np.float64) - x)
    # beside half a scale: three float32 roundings, and what is left of float32 below its normal numbers
    assert (error <= scale / 2 + np.abs(x) * 2.0**-22 + 127 * 2.0**-149).all()
    assert (np.abs(stored["codes"].astype(int)) <= 127).all()


def test_a_scale_too_small_for_float32_gives_zeros():
    assert not round_trip(Symmetric(), f32([[1e-45, -1e-45, 0]])).any()


def test_a_scale_at_the_end_of_float32_keeps_codes_within_127():
    # 2.49e-43 / 127 is 1.4 times the least float32 above 0 and is rounded to it: 178 of it would be needed
    assert Symmetric().encode(f32([[2.49e-43, -2.49e-43]]))["codes"].tolist() == [[127, -127]]


def test_an_infinity_makes_its_row_nan_with_codes_of_zero():
    stored = Symmetric().encode(f32([[np.inf, 1, -np.inf], [1, 0, 0]]))
    assert (stored["scale"][0], stored["codes"][0].tolist()) == (np.inf, [0, 0, 0])
    np.testing.assert_array_equal(Symmetric().decode(stored), f32([[np.nan] * 3, [1, 0, 0]]))


# Asymmetric


def groups_of(x: np.ndarray, codec: Asymmetric) -> list[tuple[np.ndarray, tuple]]:
    """Return the numbers that share a step, with their place in ``step`` and ``low``."""
    T, D = x.shape
    if codec.group == "tokens":
        return [(x[:, channel], (channel,)) for channel in range(D)]
    starts = range(0, D, 32)
    return [(x[t, start : start + 32], (t, start // 32)) for t in range(T) for start in starts]


def looped(x: np.ndarray, levels: int) -> tuple[np.float16, np.float16, list[int], list[np.float32]]:
    """Encode and decode one group, number by number; the decoded ones from exact fractions."""
    least, greatest = np.float32(min(x)), np.float32(max(x))
    step, low = np.float16((greatest - least) / np.float32(levels)), np.float16(least)
    quotients = [(number - np.float32(low)) / np.float32(step) if step else 0 for number in x]
    codes = [min(max(round(float(quotient)), 0), levels) for quotient in quotients]
    exact = [Fraction(float(low)) + code * Fraction(float(step)) for code in codes]
    return step, low, codes, [np.float32(float(number)) for number in exact]


def unpacked(codes: np.ndarray, levels: int) -> np.ndarray:
    return codes if levels == 255 else np.concatenate([codes % 16, codes // 16], axis=-1)


@pytest.mark.parametrize("codec", GROUPED, ids=str)
@pytest.mark.parametrize("scale", [1, 1e-4, 1e-7, 1e4])
def test_steps_are_those_of_a_loop_over_exact_fractions(codec: Asymmetric, scale: float):
    x = normal(5, 74, seed=codec.levels) * np.float32(scale) + np.float32(3 * scale)
    x[:, 7] = x[0, 7]
    stored = codec.encode(x)
    wanted_codes, wanted = np.empty(x.shape, int), np.empty_like(x)
    codes_of, rows_of = dict(enumerate(groups_of(wanted_codes, codec))), groups_of(wanted, codec)
    for number, (numbers, place) in enumerate(groups_of(x, codec)):
        step, low, codes, decoded = looped(numbers, codec.levels)
        assert (bits(stored["step"][place]), bits(stored["low"][place])) == (bits(step), bits(low))
        codes_of[number][0][:], rows_of[number][0][:] = codes, decoded
    np.testing.assert_array_equal(unpacked(stored["codes"], codec.levels), wanted_codes)
    np.testing.assert_array_equal(bits(codec.decode(stored)), bits(wanted))


@pytest.mark.parametrize("levels", [255, 15])
def test_every_code_of_every_step_decodes_to_the_exact_value_rounded_once(levels: int):
    random = np.random.default_rng(5)
    step, low = random.integers(0, 0x7C00, (2, 998), np.uint16).view(np.float16)  # every finite size
    low *= random.choice([-1, 1], 998).astype(np.float16)
    codes = random.integers(0, levels + 1, (1, 998), np.uint8)
    packed = codes if levels == 255 else codes[:, :499] + 16 * codes[:, 499:]
    decoded = BY_TOKENS[levels].decode({"step": step, "low": low, "codes": packed})
    parts = zip(step.tolist(), low.tolist(), codes[0].tolist(), strict=True)
    exact = [Fraction(least) + code * Fraction(size) for size, least, code in parts]
    np.testing.assert_array_equal(decoded[0], [np.float32(float(number)) for number in exact])


def test_int4_puts_channel_j_low_and_channel_j_plus_half_high():
    # every channel runs over 0..15 in steps of 1, so a code is its number
    x = f32([[0] * 6, [1, 2, 3, 4, 5, 6], [15] * 6])
    stored = BY_TOKENS[15].encode(x)
    assert stored["codes"].tolist() == [[0, 0, 0], [0x41, 0x52, 0x63], [0xFF] * 3]
    np.testing.assert_array_equal(BY_TOKENS[15].decode(stored), x)


def test_int4_values_by_hand_with_a_last_group_of_two():
    x = np.zeros((1, 34), np.float32)
    x[0, :32], x[0, 32:] = np.arange(32), [-1.0, 0.5]
    stored = Asymmetric(15, "channels").encode(x)
    # 31/15 lies between the float16 numbers 2.06640625 and 2.068359375, nearer to the first; 1.5/15 = 0.1
    assert stored["step"].tolist() == [[2.06640625, np.float16(0.1)]]
    assert stored["low"].tolist() == [[0.0, -1.0]]
    # bytes 0..16: channel j low, channel j + 17 high; 15 and 16 close the high half with channels 32 and 33
    assert stored["codes"][0, 0] == 0 + 16 * round(17 / 2.06640625)
    assert stored["codes"][0, 15:].tolist() == [
        round(15 / 2.06640625) + 16 * 0,
        round(16 / 2.06640625) + 16 * 15,
    ]


def test_codes_are_worked_out_against_the_step_that_is_stored():
    # 5000/255 = 19.6078 is stored as 19.609375. 2951 is 150.5012 of the first and 150.4893 of the second.
    stored = BY_TOKENS[255].encode(f32([[0], [2951], [5000]]))
    assert float(stored["step"][0]) == 19.609375
    assert stored["codes"].tolist() == [[0], [150], [255]]


def test_codes_are_worked_out_against_the_low_that_is_stored():
    # 2049 is stored as 2048: so 2049 is 1 step of 1 above it, and 2064 is 16 steps, one more than there are
    stored = BY_TOKENS[15].encode(f32([[2049] * 2, [2050] * 2, [2064] * 2]))
    assert (stored["low"].tolist(), stored["step"].tolist()) == ([2048] * 2, [1] * 2)
    assert stored["codes"].tolist() == [[0x11], [0x22], [0xFF]]
    assert BY_TOKENS[15].decode(stored).tolist() == [[2049] * 2, [2050] * 2, [2063] * 2]


@pytest.mark.parametrize("codec", GROUPED, ids=str)
@given(data=st.data())
def test_steps_are_off_by_half_a_step_and_the_rounding_of_low_at_most(codec: Asymmetric, data: st.DataObject):
    x = data.draw(arrays(np.float32, (5, 34), elements=WITHIN_HALF, fill=st.just(1.5)))
    stored = codec.encode(x)
    decoded = codec.decode(stored)
    decoded_groups = groups_of(decoded, codec)
    for (numbers, place), (back, _) in zip(groups_of(x, codec), decoded_groups, strict=True):
        step, low = float(stored["step"][place]), float(stored["low"][place])
        low_error = abs(low - float(min(numbers)))
        # float16 has steps of 2**-24 at its end; float32 rounds three times on the way
        slack = codec.levels * 2.0**-25 + 2.0**-22 * float(np.abs(numbers).max())
        assert np.abs(back.astype(np.float64) - numbers).max() <= step / 2 + low_error + slack


@pytest.mark.parametrize("codec", GROUPED, ids=str)
def test_the_sign_of_a_zero_changes_no_bit(codec: Asymmetric):
    x = np.zeros((5, 34), np.float32)
    plus, minus = codec.encode(x), codec.encode(-x)
    for name, part in plus.items():
        np.testing.assert_array_equal(bits(part), bits(minus[name]))


@pytest.mark.parametrize("codec", GROUPED, ids=str)
def test_an_infinity_is_saturated_so_that_step_and_low_are_finite(codec: Asymmetric):
    for numbers in ([np.inf] * 4, [-np.inf] * 4, [np.inf, -np.inf, 0, 1], [3e38, -3e38, np.inf, 0]):
        x = np.repeat(f32(numbers)[:, None], 4, axis=1)
        stored = codec.encode(x if codec.group == "tokens" else x.T)
        assert np.isfinite(stored["step"]).all()
        assert np.isfinite(stored["low"]).all()
        assert np.isfinite(codec.decode(stored)).all()


def test_a_group_of_infinities_is_the_largest_float16():
    for sign in (1, -1):
        x = np.full((3, 2), sign * np.inf, np.float32)
        assert (round_trip(BY_TOKENS[15], x) == sign * 65504).all()


def test_an_odd_row_cannot_be_packed():
    with pytest.raises(OptionError, match="even head size D, not 7"):
        BY_TOKENS[15].forms(16, 7)
    assert BY_TOKENS[255].forms(16, 7)["codes"][1] == (16, 7)


# All of them


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_forms_are_those_of_what_is_stored(codec: Codec):
    stored = codec.encode(normal(5, 34))
    assert {name: (part.dtype, part.shape) for name, part in stored.items()} == codec.forms(5, 34)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_leading_axes_are_encoded_as_each_alone(codec: Codec):
    x = normal(2, 3, 5, 34)
    stacked, alone = codec.encode(x), codec.encode(x[1, 2])
    for name, part in alone.items():
        np.testing.assert_array_equal(bits(stacked[name][1, 2]), bits(part))
    np.testing.assert_array_equal(bits(codec.decode(stacked)[1, 2]), bits(codec.decode(alone)))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_is_stored_depends_on_the_numbers_and_not_on_their_strides(codec: Codec):
    x = normal(34, 10)
    for name, part in codec.encode(x.T[::2]).items():
        np.testing.assert_array_equal(bits(part), bits(codec.encode(np.ascontiguousarray(x.T[::2]))[name]))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_encoding_leaves_its_input_alone(codec: Codec):
    x = normal(5, 34) * np.float32(1e6)
    kept = x.copy()
    codec.encode(x)
    np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_nan_comes_back_as_nan(codec: Codec):
    x = normal(5, 34)
    x[2, 3] = np.nan
    decoded = round_trip(codec, x)
    assert np.isnan(decoded[2, 3])
    assert not np.isnan(decoded[0, 0])


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_any_bytes_decode_without_a_warning(codec: Codec):
    rng = np.random.default_rng(1)
    parts = {
        name: rng.integers(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), np.uint8).view(dtype)
        for name, (dtype, shape) in codec.forms(211, 34).items()
    }
    assert codec.decode(parts).shape == (211, 34)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_any_numbers_encode_without_a_warning(codec: Codec):
    patterns = np.random.default_rng(2).integers(0, 2**32, (211, 34), np.uint32)
    for row in patterns.view(np.float32):
        codec.decode(codec.encode(row[None]))
