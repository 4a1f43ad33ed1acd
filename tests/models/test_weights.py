"""Matrices in the form that was asked for: the same numbers on both backends, in the memory that it takes."""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiny_deepseek
import tiny_models
from qkv import load, new_cache, use_backend
from qkv.errors import OptionError
from qkv.kernels.host import HOST_TILE, set_num_threads
from qkv.models import Llama
from qkv.models.weights import FORMS, Weights, form_of, weight_nbytes
from qkv.ops.backend import is_compiled
from qkv.ops.embedding import embed
from qkv.ops.projection import is_packed
from tiny_models import Tensors, config_of, random_tensors, write_folder

IDS = np.array([11, 3, 97, 42, 3, 58, 7])
TINY = {
    **dict.fromkeys(tiny_models.FAMILIES, tiny_models),
    **dict.fromkeys(tiny_deepseek.KINDS, tiny_deepseek),
}
"""What writes small folders of each model type."""

compiled_only = pytest.mark.skipif(not is_compiled(), reason="NumPy keeps every weight in float32")


def rounded(matrix: np.ndarray, weights: str) -> np.ndarray:
    """A matrix, out by in, with the numbers that a form leaves of it, each group of 32 by itself."""
    if weights == "bf16":
        return matrix.astype(ml_dtypes.bfloat16).astype(np.float32)
    if weights != "int8":
        return matrix
    left = np.zeros_like(matrix)
    for row, start in np.ndindex(len(matrix), -(-matrix.shape[1] // 32)):
        group = matrix[row, 32 * start :][:32]
        scale = np.float32(np.abs(group).max() / 127)
        left[row, 32 * start :][:32] = np.rint(group / np.float64(scale)).astype(np.float32) * scale
    return left


def is_matrix(name: str, tensor: np.ndarray) -> bool:
    return tensor.ndim == 2 and not name.endswith("wpe.weight")


def rounded_tensors(config: Mapping[str, Any], tensors: Tensors, weights: str) -> Tensors:
    """What a folder would have to hold for a float32 model to be what the form makes of this one."""
    left = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("kv_b_proj.weight"):
            left[name] = rounded_up_projection(config, tensor, weights)
        elif is_matrix(name, tensor):
            inwards = config["model_type"] == "gpt2" and "h." in name  # stored in by out
            left[name] = rounded(tensor.T, weights).T if inwards else rounded(tensor, weights)
    return left


def rounded_up_projection(config: Mapping[str, Any], w_kv: np.ndarray, weights: str) -> np.ndarray:
    """Of each head, W_UK is used the other way round, so its groups run down its columns."""
    nope = config["qk_nope_head_dim"]
    heads = w_kv.reshape(config["num_attention_heads"], -1, w_kv.shape[1])
    sides = [[rounded(head[:nope].T, weights).T, rounded(head[nope:], weights)] for head in heads]
    return np.concatenate([part for head in sides for part in head])


def write_half(folder: Path, kind: str) -> Path:
    """A folder of a model type, in bfloat16."""
    config = TINY[kind].config_of(kind)
    return write_folder(folder, config, TINY[kind].random_tensors(config), dtype=ml_dtypes.bfloat16)


# What the forms are


def test_the_forms_have_the_names_of_the_kernels():
    assert [form_of(name) for name in ("as stored", "float32", "bf16", "int8")] == [
        None,
        "float32",
        "bfloat16",
        "int8",
    ]


@pytest.mark.parametrize("wrong", ["int4", "bfloat16", ""])
def test_another_form_is_refused_before_anything_is_read(tmp_path: Path, wrong: Any):
    tiny_models.write_model(tmp_path, "llama")
    with pytest.raises(OptionError, match=f"one of as stored, float32, bf16, int8, not '{wrong}'"):
        load(tmp_path, weights=wrong)


@compiled_only
@pytest.mark.parametrize(
    ("dtype", "form"),
    [
        (np.float32, "float32"),
        (np.float16, "float32"),
        (np.float64, "float32"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.float8_e4m3fn, "bfloat16"),
        (ml_dtypes.float8_e5m2, "bfloat16"),
    ],
    ids=str,
)
def test_as_stored_is_bfloat16_where_that_holds_every_number(tmp_path: Path, dtype: Any, form: str):
    config = config_of("llama")
    model = load(write_folder(tmp_path, config, random_tensors(config), dtype=dtype))
    assert isinstance(model, Llama)
    assert model.embedding.form == model.head.form == form
    assert model.final_norm.dtype == np.float32


@compiled_only
@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
def test_every_matrix_has_the_form_and_all_else_is_float32(tmp_path: Path, kind: str, weights: Weights):
    folder = write_half(tmp_path, kind)
    parts = list(parts_of(load(folder, weights)))
    assert {part.form for part in parts if is_packed(part)} == {FORMS[weights]}
    others = [part for part in parts if not is_packed(part)]
    assert {part.dtype for part in others} == {np.dtype(np.float32)}
    assert all(part.ndim == 1 or part.shape == (67, 21) for part in others)  # 67: GPT-2's positions


def parts_of(part: Any) -> Any:
    if isinstance(part, tuple):
        for one in part:
            yield from parts_of(one)
    elif hasattr(part, "__dataclass_fields__") and not is_packed(part):
        for name in part.__dataclass_fields__:
            if name != "config":
                yield from parts_of(getattr(part, name))
    elif hasattr(part, "nbytes"):
        yield part


# The same numbers


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_a_form_is_the_float32_model_of_what_it_leaves(tmp_path: Path, kind: str, weights: Weights):
    config = TINY[kind].config_of(kind)
    tensors = TINY[kind].random_tensors(config)
    model = load(write_folder(tmp_path / "model", config, tensors), weights)
    left = rounded_tensors(config, tensors, weights)
    expected = load(write_folder(tmp_path / "left", config, left), "float32")
    np.testing.assert_allclose(model.logits(IDS), expected.logits(IDS), rtol=2e-4, atol=2e-4)
    full = load(tmp_path / "model", "float32").logits(IDS)
    assert np.abs(model.logits(IDS) - full).max() > 2e-3


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("weights", FORMS)
def test_both_backends_keep_the_same_numbers(tmp_path: Path, kind: str, weights: Weights):
    folder = write_half(tmp_path, kind)
    with use_backend("numpy"):
        plain = load(folder, weights)
        expected = plain.logits(IDS)
    assert plain.embedding.dtype == np.float32
    model = load(folder, weights)
    np.testing.assert_array_equal(embed(IDS, model.embedding), plain.embedding[IDS])
    np.testing.assert_allclose(model.logits(IDS), expected, rtol=2e-4, atol=2e-4)
    assert model.fingerprint == plain.fingerprint


@compiled_only
@pytest.mark.parametrize("kind", TINY)
def test_bfloat16_weights_give_the_bits_of_the_same_weights_in_float32(tmp_path: Path, kind: str):
    folder = write_half(tmp_path, kind)
    expected = load(folder, "float32").logits(IDS)
    for weights in ("as stored", "bf16"):
        assert load(folder, weights).logits(IDS).tobytes() == expected.tobytes()


def test_a_saved_cache_is_of_the_numbers_and_not_of_the_form_that_keeps_them(tmp_path: Path):
    half = tiny_models.write_model(tmp_path / "half", "llama", dtype=ml_dtypes.bfloat16)
    prints = [load(half, weights).fingerprint for weights in ("as stored", "bf16", "float32")]
    full = tiny_models.write_model(tmp_path / "full", "llama")
    prints += [load(full, weights).fingerprint for weights in ("float32", "int8")]
    assert [prints.index(one) for one in prints] == [0, 0, 0, 3, 4]


def test_int8_of_what_is_not_finite_is_refused(tmp_path: Path):
    config = config_of("llama")
    tensors = random_tensors(config)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf
    folder = write_folder(tmp_path, config, tensors)
    load(folder, "bf16")
    with pytest.raises(OptionError, match="int8 weights must be finite"):
        load(folder, "int8")


# Memory

WIDE: dict[str, Any] = {
    "vocab_size": 1031,
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_hidden_layers": 7,
    "head_dim": 32,
}


def packed_nbytes(E_out: int, E_in: int, weights: str) -> int:
    """Of one matrix, its columns filled up to whole panels."""
    columns = -(-E_out // HOST_TILE.columns) * HOST_TILE.columns
    return columns * {"float32": 4 * E_in, "bf16": 2 * E_in, "int8": E_in + 4 * -(-E_in // 32)}[weights]


@compiled_only
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
def test_weights_take_the_bytes_that_their_form_says(tmp_path: Path, tied: bool, weights: Weights):
    """By hand: 192 x 192 queries, 64 x 192 keys and values; 15 norms of 192; the table once if it is tied."""
    folder = tiny_models.write_model(tmp_path, "llama", **WIDE, tie_word_embeddings=tied)
    layer = [(192, 192), (64, 192), (64, 192), (192, 192), (320, 192), (320, 192), (192, 320)]
    expected = 7 * sum(packed_nbytes(*shape, weights) for shape in layer) + 15 * 192 * 4
    expected += (1 if tied else 2) * packed_nbytes(1031, 192, weights)
    assert weight_nbytes(load(folder, weights)) == expected


@compiled_only
def test_bfloat16_halves_the_memory_of_matrices(tmp_path: Path):
    full = weight_nbytes(load(tiny_models.write_model(tmp_path / "full", "llama", **WIDE)))
    half = tiny_models.write_model(tmp_path / "half", "llama", **WIDE, dtype=ml_dtypes.bfloat16)
    norms = 15 * 192 * 4
    assert 2 * (weight_nbytes(load(half)) - norms) == full - norms


@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
@compiled_only
def test_loading_takes_little_more_than_the_model(tmp_path: Path, dtype: Any, weights: Weights):
    """One matrix as it is stored, beside those that are laid out; the tables, a third each, come first."""
    folder = tiny_models.write_model(tmp_path, "llama", **{**WIDE, "vocab_size": 8209}, dtype=dtype)
    load(folder, weights)  # what loading needs once and keeps is no part of it
    tracemalloc.start()
    model = load(folder, weights)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    stored_bytes = np.dtype(dtype).itemsize
    assert peak_bytes < weight_nbytes(model) + 8209 * 192 * stored_bytes
    if weights != "int8" or stored_bytes == 2:
        assert peak_bytes < 1.5 * weight_nbytes(model)


# Determinism


@compiled_only
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "deepseek_v3"])
@pytest.mark.parametrize("weights", ["bf16", "int8"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_bits_do_not_depend_on_neighbours_chunks_or_threads(
    tmp_path: Path, kind: str, weights: Weights, num_threads: int
):
    model = load(TINY[kind].write_model(tmp_path, kind), weights)
    ids = np.random.default_rng(0).integers(0, 101, 41)
    alone = model.logits(ids)
    set_num_threads(num_threads)
    try:
        for chunk, batch_size in ((1, 1), (1, 8), (7, 3), (41, 5)):
            rows = np.stack([np.roll(ids, row) for row in range(batch_size)])
            cache = new_cache(model, batch_size=batch_size)
            chunks = [model.logits(rows[:, start : start + chunk], cache)[0] for start in range(0, 41, chunk)]
            assert np.concatenate(chunks).tobytes() == alone.tobytes()
    finally:
        set_num_threads(None)
