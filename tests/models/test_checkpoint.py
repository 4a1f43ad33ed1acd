"""A model folder is read whole, exactly, and each tensor once, or refused with a line that says why."""

import json
import re
import struct
import tempfile
import tracemalloc
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from qkv.errors import CheckpointError, CheckpointWarning
from qkv.models.checkpoint import Checkpoint

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
A = np.arange(15, dtype=np.float32).reshape(3, 5)
B = np.arange(7, dtype=np.float32) - 3


def write_config(folder, **config):
    Path(folder, "config.json").write_text(json.dumps({"model_type": "llama", **config}))


def write_single(folder, tensors, file_name="model.safetensors"):
    write_config(folder)
    save_file(tensors, Path(folder, file_name), metadata={"format": "pt"})


def write_index(folder, shard_of):
    Path(folder, INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))


def write_sharded(folder, **extra):
    """Shard 1 holds `a`, shard 2 holds `b` and whatever is added."""
    write_config(folder)
    save_file({"a": A}, Path(folder, SHARDS[0]))
    save_file({"b": B, **extra}, Path(folder, SHARDS[1]), metadata={"format": "pt"})
    write_index(folder, {"a": SHARDS[0], "b": SHARDS[1], **dict.fromkeys(extra, SHARDS[1])})


def write_raw(folder, dtype, shape, data, padding=0):
    """A safetensors file written by hand: its length, its header, its bytes."""
    write_config(folder)
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * padding
    Path(folder, "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)


def take_raw(folder, dtype, codes, padding=0):
    write_raw(folder, dtype, list(codes.shape), codes.tobytes(), padding)
    return Checkpoint.open(folder).take("w", codes.shape)


def refusal(folder):
    """The one line with which a folder is refused."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    message = str(caught.value)
    assert re.fullmatch(r"[^\n]+: expected [^\n]+, got [^\n]+; [^\n]+", message)
    return message


def same_bits(got, expected):
    return got.dtype == expected.dtype == np.float32 and got.tobytes() == expected.tobytes()


def test_config_and_generation_config_are_kept_as_they_stand(tmp_path):
    write_single(tmp_path, {"a": A})
    write_config(tmp_path, hidden_size=5, rope_scaling={"factor": 2.5})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.folder == tmp_path
    assert checkpoint.config == {"model_type": "llama", "hidden_size": 5, "rope_scaling": {"factor": 2.5}}
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}


def test_generation_config_is_empty_if_there_is_none(tmp_path):
    write_single(tmp_path, {"a": A})
    assert Checkpoint.open(tmp_path).generation_config == {}


def test_names_are_those_of_the_file(tmp_path):
    write_single(tmp_path, {"a": A, "b": B})
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == frozenset({"a", "b"})
    assert checkpoint.holds("a")
    assert not checkpoint.holds("c")


# Element types


def test_bfloat16_bits_become_exactly_their_values_and_back(tmp_path):
    codes = np.array([0x3F80, 0xC049, 0x3EAB, 0x7F80, 0x8000, 0x0001], np.uint16)
    got = take_raw(tmp_path, "BF16", codes)
    # 0x0001 is the smallest subnormal: 2**-126 (least exponent) * 2**-7 (last of 7 fraction bits).
    expected = np.array([1.0, -3.140625, 0.333984375, np.inf, -0.0, 2.0**-133], np.float32)
    assert same_bits(got, expected)
    assert got[-1] == np.float32(9.18355e-41)
    np.testing.assert_array_equal(got.astype(ml_dtypes.bfloat16).view(np.uint16), codes)


def test_every_bfloat16_is_widened_exactly(tmp_path):
    codes = np.arange(2**16, dtype=np.uint16)
    assert same_bits(take_raw(tmp_path, "BF16", codes), (codes.astype(np.uint32) << 16).view(np.float32))


def test_every_float16_is_widened_exactly(tmp_path):
    codes = np.arange(2**16, dtype=np.uint16)
    expected = np.array(struct.unpack("<65536e", codes.tobytes()), np.float32)
    np.testing.assert_array_equal(take_raw(tmp_path, "F16", codes), expected)


def float8_value(code, num_exponent_bits, num_fraction_bits):
    """Sign, exponent and fraction by the definition of a binary float without Inf or NaN."""
    sign = -1.0 if code >> 7 else 1.0
    exponent = (code & 0x7F) >> num_fraction_bits
    fraction = (code & (2**num_fraction_bits - 1)) / 2**num_fraction_bits
    bias = 2 ** (num_exponent_bits - 1) - 1
    return sign * (2.0 ** (exponent - bias) * (1 + fraction) if exponent else 2.0 ** (1 - bias) * fraction)


def test_every_float8_e4m3_is_widened_exactly(tmp_path):
    got = take_raw(tmp_path, "F8_E4M3", np.arange(256, dtype=np.uint8))
    expected = np.array([float8_value(code, 4, 3) for code in range(256)], np.float32)
    expected[[0x7F, 0xFF]] = np.nan
    np.testing.assert_array_equal(got, expected)
    # By hand: 0x38 is 2**0, 0x7E is 2**8 * 1.75, 0x81 is minus the smallest subnormal.
    assert [got[0x38], got[0x7E], got[0x81]] == [1.0, 448.0, -(2.0**-9)]


def test_every_float8_e5m2_is_widened_exactly(tmp_path):
    got = take_raw(tmp_path, "F8_E5M2", np.arange(256, dtype=np.uint8))
    expected = np.array([float8_value(code, 5, 2) for code in range(256)], np.float32)
    expected[[0x7C, 0xFC]] = np.inf, -np.inf
    expected[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    np.testing.assert_array_equal(got, expected)
    assert [got[0x3C], got[0x7B], got[0x81]] == [1.0, 57344.0, -(2.0**-16)]


def test_float32_keeps_its_bits_and_float64_is_rounded(tmp_path):
    codes = np.array([0x3F800001, 0x80000000, 0x00000001, 0xFF800000, 0x7FC01234], np.uint32)
    assert same_bits(take_raw(tmp_path, "F32", codes), codes.view(np.float32))
    # The gap above 1 is 2**-23: a quarter of it rounds to 1, one and a half (a tie) to the even 2 gaps.
    got = take_raw(tmp_path, "F64", np.array([1 + 2.0**-25, 1 + 1.5 * 2.0**-23, -0.0]))
    assert same_bits(got, np.array([1.0, 1 + 2 * 2.0**-23, -0.0], np.float32))


@pytest.mark.parametrize("dtype", ["I64", "I32", "U8", "BOOL"])
def test_other_element_types_are_refused_by_name(tmp_path, dtype):
    num_bytes = {"I64": 48, "I32": 24, "U8": 6, "BOOL": 6}[dtype]
    write_raw(tmp_path, dtype, [2, 3], bytes(num_bytes))
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors: expected w in one of .*BF16.*, got {dtype};"
    ):
        checkpoint.take("w", (2, 3))


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (5, 0, 2)])
def test_empty_tensor_keeps_its_shape(tmp_path, dtype, shape):
    write_raw(tmp_path, dtype, list(shape), b"")
    got = Checkpoint.open(tmp_path).take("w", shape)
    assert got.shape == shape
    assert got.dtype == np.float32


def test_scalar_has_no_axes(tmp_path):
    got = take_raw(tmp_path, "F32", np.array(2.5, np.float32))
    assert got.shape == ()
    assert got == 2.5


@pytest.mark.parametrize("padding", range(8))
@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_values_do_not_depend_on_where_the_header_ends(tmp_path, padding, dtype):
    values = np.array([1.0, -2.5, 3.25])
    stored = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[dtype]
    assert same_bits(take_raw(tmp_path, dtype, values.astype(stored), padding), values.astype(np.float32))


def test_each_tensor_comes_from_its_own_bytes_in_c_order(tmp_path):
    tensors = {
        "z": A,
        "m": B,
        "empty": np.zeros((0, 3), np.float32),
        "half": (B / 2).astype(np.float16),
        "a": -A,
    }
    write_single(tmp_path, tensors)
    checkpoint = Checkpoint.open(tmp_path)
    for name, expected in tensors.items():
        np.testing.assert_array_equal(checkpoint.take(name, expected.shape), expected)


# What is handed out


def test_taken_array_is_a_plain_one_of_the_callers_own(tmp_path):
    write_single(tmp_path, {"a": A})
    before = (tmp_path / "model.safetensors").read_bytes()
    got = Checkpoint.open(tmp_path).take("a", (3, 5))
    assert type(got) is np.ndarray
    assert got.flags.c_contiguous
    assert got.flags.aligned
    got += 1
    assert (tmp_path / "model.safetensors").read_bytes() == before
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("a", (3, 5)), A)


@pytest.mark.parametrize(("dtype", "item_bytes"), [("F32", 4), ("F16", 2), ("BF16", 2), ("F8_E4M3", 1)])
def test_open_reads_no_tensor_and_take_makes_one_copy(tmp_path, dtype, item_bytes):
    shape = (1031, 1021)
    write_raw(tmp_path, dtype, list(shape), bytes(item_bytes * 1031 * 1021))
    tracemalloc.start()
    checkpoint = Checkpoint.open(tmp_path)
    open_peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    taken = checkpoint.take("w", shape)
    take_peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert open_peak_bytes < 200_000
    assert taken.nbytes <= take_peak_bytes < taken.nbytes + 200_000


# Every tensor once


def test_taking_a_tensor_twice_is_our_own_bug(tmp_path):
    write_single(tmp_path, {"a": A})
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.take("a", (3, 5))
    with pytest.raises(AssertionError, match="a was taken or skipped before"):
        checkpoint.take("a", (3, 5))


def test_taking_a_skipped_tensor_is_our_own_bug(tmp_path):
    write_single(tmp_path, {"a": A})
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.skip("a")
    with pytest.raises(AssertionError, match="a was taken or skipped before"):
        checkpoint.take("a", (3, 5))


def test_a_wrong_shape_names_file_tensor_and_both_shapes(tmp_path):
    write_sharded(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    for wrong in [(5, 3), (15,), (3, 5, 1), (3, 7), ()]:
        with pytest.raises(CheckpointError) as caught:
            checkpoint.take("a", wrong)
        assert f"{tmp_path / SHARDS[0]}: expected a of shape {wrong}, got (3, 5);" in str(caught.value)


def test_a_refused_tensor_counts_as_unused(tmp_path):
    write_single(tmp_path, {"a": A, "i": np.arange(3)})
    checkpoint = Checkpoint.open(tmp_path)
    for name, shape in [("a", (5, 3)), ("i", (3,))]:
        with pytest.raises(CheckpointError):
            checkpoint.take(name, shape)
    assert checkpoint.unused == ("a", "i")


def test_a_missing_tensor_is_named_with_the_nearest_there_is(tmp_path):
    write_single(tmp_path, {"transformer.h.0.ln_1.weight": A, "x": B})
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"h\.0\.ln_1\.weight of shape \(3, 5\).*nearest: transformer\.h\.0"
    ):
        checkpoint.take("h.0.ln_1.weight", (3, 5))
    with pytest.raises(CheckpointError, match=r"nearest: none alike"):
        checkpoint.take("lm_head", (3, 5))


def test_finish_is_silent_when_all_is_taken_or_skipped(tmp_path):
    write_single(tmp_path, {"a": A, "b": B, "h.0.attn.bias": A, "h.1.attn.bias": A, "inv_freq": B})
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.take("a", (3, 5))
    checkpoint.skip(lambda name: name.endswith(".attn.bias"), "inv_freq", "b", "not_there")
    checkpoint.finish()
    assert checkpoint.unused == ()


def test_finish_lists_every_leftover_in_one_warning_and_goes_on(tmp_path):
    write_single(tmp_path, {"d": A, "a": A, "c": B, "b": B})
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.take("a", (3, 5))
    checkpoint.skip("b")
    with pytest.warns(CheckpointWarning, match=r"2 without: c, d;") as caught:
        checkpoint.finish()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert checkpoint.unused == ("c", "d")
    np.testing.assert_array_equal(checkpoint.take("c", (7,)), B)


def test_a_predicate_never_claims_what_was_taken(tmp_path):
    write_single(tmp_path, {"a": A, "b": B})
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.take("a", (3, 5))
    asked = []
    checkpoint.skip(lambda name: bool(asked.append(name)))
    assert asked == ["b"]
    assert checkpoint.unused == ("b",)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=13)
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 7]), max_size=3).map(tuple)
fates = st.sampled_from(["take", "skip", "leave"])


@settings(deadline=None, max_examples=60)
@given(
    parameters=st.dictionaries(
        names.filter(lambda name: name != "__metadata__"),
        st.tuples(shapes, st.integers(0, 2), fates),
        max_size=11,
    ),
    order=st.randoms(use_true_random=False),
    indexed=st.booleans(),
)
def test_every_parameter_is_assigned_exactly_once(parameters, order, indexed):
    fill = iter(range(1, 10**6))
    values = {
        name: np.array([next(fill) for _ in range(np.prod(shape, dtype=int))], np.float32).reshape(shape)
        for name, (shape, _, _) in parameters.items()
    }
    fate_of = {name: fate for name, (_, _, fate) in parameters.items()}
    with tempfile.TemporaryDirectory() as folder:
        if indexed and values:
            shard_of = {name: f"part-{shard}.safetensors" for name, (_, shard, _) in parameters.items()}
            for shard in set(shard_of.values()):
                save_file({n: v for n, v in values.items() if shard_of[n] == shard}, Path(folder, shard))
            write_config(folder)
            write_index(folder, shard_of)
        else:
            write_single(folder, values)
        checkpoint = Checkpoint.open(folder)
        assert checkpoint.names == frozenset(values)
        for name in order.sample(sorted(values), len(values)):
            if fate_of[name] == "take":
                assert same_bits(checkpoint.take(name, values[name].shape), values[name])
            elif fate_of[name] == "skip":
                checkpoint.skip(name)
        assert checkpoint.unused == tuple(sorted(name for name in values if fate_of[name] == "leave"))
        for name in values:
            if fate_of[name] == "take":
                with pytest.raises(AssertionError):
                    checkpoint.take(name, values[name].shape)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            checkpoint.finish()
        assert len(caught) == bool(checkpoint.unused)


# Shards


def test_tensors_come_from_the_shards_that_the_index_names(tmp_path):
    write_sharded(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    np.testing.assert_array_equal(checkpoint.take("a", (3, 5)), A)
    np.testing.assert_array_equal(checkpoint.take("b", (7,)), B)
    checkpoint.finish()


def test_an_absent_shard_is_refused_by_name(tmp_path):
    write_sharded(tmp_path)
    (tmp_path / SHARDS[1]).unlink()
    message = refusal(tmp_path)
    assert message.startswith(
        f"{tmp_path / INDEX}: expected the shard {SHARDS[1]!r}, which holds b, got no such file"
    )


@pytest.mark.parametrize(
    "stray", ["consolidated.safetensors", "model.safetensors", "model-00003-of-00003.safetensors"]
)
def test_stray_files_beside_an_index_are_never_read(tmp_path, stray):
    write_sharded(tmp_path)
    save_file({"a": np.zeros_like(A), "b": np.zeros_like(B), "x": B}, tmp_path / stray)
    checkpoint = Checkpoint.open(tmp_path)
    np.testing.assert_array_equal(checkpoint.take("a", (3, 5)), A)
    np.testing.assert_array_equal(checkpoint.take("b", (7,)), B)
    checkpoint.finish()
    (tmp_path / stray).write_bytes(b"not even safetensors")
    assert Checkpoint.open(tmp_path).names == {"a", "b"}


def test_a_stale_copy_in_another_shard_is_ignored(tmp_path):
    write_sharded(tmp_path)
    save_file({"a": A, "b": np.zeros_like(B)}, tmp_path / SHARDS[0])
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("b", (7,)), B)
    save_file({"b": B, "a": np.zeros_like(A)}, tmp_path / SHARDS[1])
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("a", (3, 5)), A)


def test_a_tensor_that_is_not_in_its_shard_is_refused(tmp_path):
    write_sharded(tmp_path)
    save_file({"not_b": B}, tmp_path / SHARDS[1])
    assert refusal(tmp_path).startswith(
        f"{tmp_path / SHARDS[1]}: expected the tensor b, which {INDEX} places there"
    )
    save_file({"a": A, "b": B}, tmp_path / SHARDS[0])
    assert refusal(tmp_path).startswith(f"{tmp_path / SHARDS[1]}: expected the tensor b,")


@pytest.mark.parametrize("in_index", [True, False])
def test_an_unexpected_tensor_is_listed(tmp_path, in_index):
    write_sharded(tmp_path, c=A)
    if not in_index:
        write_index(tmp_path, {"a": SHARDS[0], "b": SHARDS[1]})
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.take("a", (3, 5))
    checkpoint.take("b", (7,))
    with pytest.warns(CheckpointWarning, match=r"1 without: c;"):
        checkpoint.finish()


@pytest.mark.parametrize(
    "path", ["../x.safetensors", "/etc/x", "sub/x.safetensors", ".", "sub\\x", "..\\x", "C:x", "C:\\x"]
)
def test_an_index_cannot_point_out_of_the_folder(tmp_path, path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    write_sharded(folder)
    for outside in [tmp_path, folder / "sub"]:
        save_file({"b": B}, outside / "x.safetensors")
    write_index(folder, {"a": SHARDS[0], "b": path})
    assert refusal(folder).startswith(
        f"{folder / INDEX}: expected a file in the same folder for b, got {path!r};"
    )


@pytest.mark.parametrize("path", ["..", "", "sub", "nul\0"])
def test_an_index_cannot_name_what_is_no_file(tmp_path, path):
    write_sharded(tmp_path)
    (tmp_path / "sub").mkdir()
    write_index(tmp_path, {"a": SHARDS[0], "b": path})
    assert refusal(tmp_path).startswith(
        f"{tmp_path / INDEX}: expected the shard {path!r}, which holds b, got no such file;"
    )


@pytest.mark.parametrize("content", ["{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', "[]", "{"])
def test_an_index_without_a_map_is_refused(tmp_path, content):
    write_sharded(tmp_path)
    (tmp_path / INDEX).write_text(content)
    assert refusal(tmp_path).startswith(f"{tmp_path / INDEX}: expected a ")


# What is not a model folder


def test_what_is_no_folder_is_refused(tmp_path):
    assert f"{tmp_path / 'none'}: expected a model folder, got nothing" in refusal(tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'}: expected a model folder, got a file" in refusal(tmp_path / "file")


def test_a_folder_without_config_is_refused(tmp_path):
    save_file({"a": A}, tmp_path / "model.safetensors")
    assert f"{tmp_path / 'config.json'}: expected a JSON object, got no such file;" in refusal(tmp_path)


@pytest.mark.parametrize("file_name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\xfa", b"[1]", b"null", b"[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(tmp_path, file_name, content):
    write_single(tmp_path, {"a": A})
    (tmp_path / file_name).write_bytes(content)
    assert refusal(tmp_path).startswith(f"{tmp_path / file_name}: expected a JSON object, got ")


def test_a_folder_without_tensors_is_refused(tmp_path):
    assert "got no tensors at all;" in refusal(tmp_path)
    write_config(tmp_path)
    assert "got no tensors at all;" in refusal(tmp_path)


@pytest.mark.parametrize("file_name", ["pytorch_model.bin", "model-q4.gguf"])
def test_another_format_is_refused_with_the_one_that_is_read(tmp_path, file_name):
    write_config(tmp_path)
    (tmp_path / file_name).write_bytes(b"GGUF")
    refused = f"got {file_name}; pass a folder of safetensors, the one format read"
    assert refused in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    assert refused in refusal(tmp_path)


def test_the_only_safetensors_file_is_taken_whatever_its_name(tmp_path):
    write_single(tmp_path, {"a": A}, "weights.safetensors")
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("a", (3, 5)), A)


def test_the_usual_name_goes_before_others(tmp_path):
    write_single(tmp_path, {"a": A})
    save_file({"a": np.zeros_like(A)}, tmp_path / "consolidated.safetensors")
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).take("a", (3, 5)), A)


def test_several_files_without_an_index_are_refused_and_listed(tmp_path):
    for file_name in ["two.safetensors", "six.safetensors", "one.safetensors", "ten.safetensors"]:
        write_single(tmp_path, {"a": A}, file_name)
    listed = "one.safetensors, six.safetensors, ten.safetensors, two.safetensors"
    assert f"got {listed}; add the index" in refusal(tmp_path)


# Damage


def whole_file(folder):
    write_single(folder, {"a": A, "b": B})
    return (folder / "model.safetensors").read_bytes()


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = whole_file(tmp_path)
    data_start = 8 + struct.unpack("<Q", whole[:8])[0]
    cuts = [
        0,
        1,
        7,
        8,
        9,
        data_start // 2,
        data_start - 1,
        data_start,
        data_start + 1,
        len(whole) - 4,
        len(whole) - 1,
    ]
    for num_kept_bytes in cuts:
        (tmp_path / "model.safetensors").write_bytes(whole[:num_kept_bytes])
        assert f"{tmp_path / 'model.safetensors'}: expected a whole safetensors file" in refusal(tmp_path)


def test_a_file_with_bytes_to_spare_is_refused(tmp_path):
    whole = whole_file(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole + b"\0")
    assert "expected a whole safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"garbage" * 31,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n",
        b"\xff" * 97,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 7) + b'{"w": 1',
        struct.pack("<Q", 64) + b'{"w": {"dtype": "F\\n32", "shape": [0], "data_offsets": [0, 0]}} ',
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    write_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "expected a whole safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("shape", "offsets"), [([3], [0, 8]), ([2], [4, 12]), ([2], [8, 0]), ([2**40], [0, 8])]
)
def test_offsets_that_contradict_shape_or_file_are_refused(tmp_path, shape, offsets):
    write_config(tmp_path)
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert "expected a whole safetensors file" in refusal(tmp_path)


def test_a_damaged_shard_is_refused_by_name(tmp_path):
    write_sharded(tmp_path)
    (tmp_path / SHARDS[1]).write_bytes((tmp_path / SHARDS[1]).read_bytes()[:-1])
    assert f"{tmp_path / SHARDS[1]}: expected a whole safetensors file" in refusal(tmp_path)


def test_a_download_that_left_a_dangling_link_is_refused(tmp_path):
    write_config(tmp_path)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert f"{tmp_path / 'model.safetensors'}: expected a whole safetensors file" in refusal(tmp_path)


def test_files_that_are_links_are_followed(tmp_path):
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    write_sharded(tmp_path)
    for file_name in ["config.json", INDEX, *SHARDS]:
        (snapshot / file_name).symlink_to(tmp_path / file_name)
    np.testing.assert_array_equal(Checkpoint.open(snapshot).take("b", (7,)), B)
