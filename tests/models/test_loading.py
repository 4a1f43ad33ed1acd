"""A model folder becomes a model that knows its texts' ends, or is refused with one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qkv
import tiny_deepseek
import tiny_models
from qkv.errors import CheckpointError
from qkv.models import GPT2, DeepSeek, Llama, load
from qkv.ops.embedding import embed
from tiny_models import config_of, random_tensors, write_folder, write_model, write_tokenizer

IDS = np.array([11, 3, 97, 42, 3, 58, 7])
TINY = {
    **dict.fromkeys(tiny_models.FAMILIES, tiny_models),
    **dict.fromkeys(tiny_deepseek.KINDS, tiny_deepseek),
}
"""What writes small folders of each model type."""


def refusal(folder: str | Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("folder", [None, 5, ["verse"]], ids=str)
def test_a_model_is_named_by_text_or_a_path(folder: Any):
    assert refusal(folder) == f"a model is named by a folder, or as 'verse' is, not by {folder!r}"


def test_load_is_public():
    assert qkv.load is load


@pytest.mark.parametrize("kind", TINY)
def test_each_model_type_is_read_by_its_family(tmp_path: Path, kind: str):
    model = load(str(TINY[kind].write_model(tmp_path, kind)))
    assert type(model) is {"gpt2": GPT2, **dict.fromkeys(tiny_deepseek.KINDS, DeepSeek)}.get(kind, Llama)
    assert model.tokenizer is None
    assert model.end_ids == frozenset()


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
def test_stored_numbers_are_run_in_float32_exactly_as_they_are(tmp_path: Path, kind: str, dtype: Any):
    config = TINY[kind].config_of(kind)
    tensors = TINY[kind].random_tensors(config)
    rounded = {name: tensor.astype(dtype).astype(np.float32) for name, tensor in tensors.items()}
    stored = load(write_folder(tmp_path / "stored", config, tensors, dtype=dtype))
    widened = load(write_folder(tmp_path / "widened", config, rounded))
    np.testing.assert_array_equal(stored.logits(IDS), widened.logits(IDS))


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("num_shards", [2, 5])
def test_a_model_in_shards_is_the_model_in_one_file(tmp_path: Path, kind: str, num_shards: int):
    config = TINY[kind].config_of(kind)
    tensors = TINY[kind].random_tensors(config)
    whole = load(write_folder(tmp_path / "whole", config, tensors))
    sharded = load(write_folder(tmp_path / "sharded", config, tensors, num_shards=num_shards))
    np.testing.assert_array_equal(sharded.logits(IDS), whole.logits(IDS))


# Ends of text


def end_ids(
    folder: Path, config_ids: Any = None, generation_ids: Any = None, tokenizer: bool = False
) -> set[int]:
    config = config_of("llama", eos_token_id=config_ids)
    write_folder(folder, config, random_tensors(config))
    if generation_ids is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_ids}))
    if tokenizer:
        write_tokenizer(folder)
    return set(load(folder).end_ids)


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "tokenizer", "expected"),
    [
        (2, [2, 7], True, {1, 2, 7}),
        ([4, 5], 9, False, {4, 5, 9}),
        (None, [], True, {1}),
        ([None, 3], None, False, {3}),
        (0, None, False, {0}),
        (None, None, False, set()),
    ],
    ids=str,
)
def test_every_end_id_of_both_configs_and_the_tokenizer_ends_a_text(
    tmp_path: Path, config_ids: Any, generation_ids: Any, tokenizer: bool, expected: set[int]
):
    assert end_ids(tmp_path, config_ids, generation_ids, tokenizer) == expected


@pytest.mark.parametrize("wrong", ["2", 2.0, True, [[2]], {"id": 2}], ids=str)
def test_a_mistyped_end_id_is_refused(tmp_path: Path, wrong: Any):
    for place in ({"config_ids": wrong}, {"generation_ids": wrong}):
        with pytest.raises(CheckpointError, match="eos_token_id must be an integer"):
            end_ids(tmp_path, **place)


# The tokenizer


def test_a_tokenizer_in_the_folder_comes_with_the_model(tmp_path: Path):
    model = load(write_tokenizer(write_model(tmp_path, "llama", vocab_size=263)))
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode("Grüße")) == "Grüße"
    assert model.tokenizer.encode("ab")[0] == model.tokenizer.bos_id == 0


def test_a_damaged_tokenizer_is_refused_and_named(tmp_path: Path):
    folder = write_model(tmp_path, "llama")
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in refusal(folder)


# What is refused


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma2", "mixtral"])
def test_a_model_type_that_is_not_known_is_refused_before_its_tensors_are_read(tmp_path: Path, kind: str):
    layers = {"layer_types": ["sliding_attention", "full_attention"], "rope_local_base_freq": 1e4}
    folder = write_folder(tmp_path, config_of("llama", **layers) | {"model_type": kind}, {"w": np.ones(3)})
    known = "deepseek_v2, deepseek_v3, gpt2, llama, mistral, qwen2, qwen3"
    assert refusal(folder) == f"config.json: model_type {kind!r} is not one qkv runs: {known}"


BLOCK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("ending", "quantization", "found"),
    [
        ("weight_scale_inv", BLOCK_FP8, "quantization_config in config.json (fp8) and 3 tensors of scales"),
        ("weight_scale_inv", None, "got 3 tensors of scales"),
        ("weight_scale", {"quant_method": "compressed-tensors"}, "config.json (compressed-tensors) and 3"),
        ("weight_scale", {}, "got 3 tensors of scales"),
        (None, BLOCK_FP8, "got a quantization_config in config.json (fp8); "),
        (None, {"bits": 4}, "got a quantization_config in config.json (unnamed); "),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_weights_that_need_scales_are_refused_by_what_was_found(
    tmp_path: Path, kind: str, ending: str | None, quantization: dict[str, Any] | None, found: str
):
    config = TINY[kind].config_of(kind, quantization_config=quantization)
    tensors = TINY[kind].random_tensors(config)
    for layer in range(3 if ending else 0):
        tensors[f"model.layers.{layer}.mlp.up_proj.{ending}"] = np.ones((1, 1), np.float32)
    message = refusal(write_folder(tmp_path, config, tensors, dtype=ml_dtypes.float8_e4m3fn))
    assert message.startswith(f"{tmp_path}: expected weights stored as they are, got ")
    assert found in message
    assert (ending is None) == ("such as model.layers.0.mlp.up_proj." not in message)
    assert message.endswith("; get the model in float32, float16 or bfloat16")


@pytest.mark.parametrize("quantization", [None, {}], ids=str)
def test_floats_of_eight_bits_without_scales_are_the_weights_themselves(tmp_path: Path, quantization: Any):
    config = config_of("llama", quantization_config=quantization)
    tensors = {name: np.ones_like(tensor) for name, tensor in random_tensors(config).items()}
    model = load(write_folder(tmp_path, config, tensors, dtype=ml_dtypes.float8_e4m3fn))
    assert (embed(IDS, model.embedding) == 1).all()


@pytest.mark.parametrize("wrong", ["fp8", 8, [BLOCK_FP8]], ids=str)
def test_a_quantization_config_that_is_no_object_is_refused(tmp_path: Path, wrong: Any):
    folder = write_model(tmp_path, "llama", quantization_config=wrong)
    assert "quantization_config must be an object" in refusal(folder)


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def break_tensors(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (break_config, "config.json"),
        (break_tensors, "model.safetensors"),
        (lose("config.json"), "config.json"),
        (lose("model.safetensors"), "model.safetensors"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_file(tmp_path: Path, damage: Callable[[Path], None], named: str):
    folder = write_model(tmp_path, "llama")
    damage(folder)
    assert named in refusal(folder)


def test_a_missing_folder_is_refused(tmp_path: Path):
    assert "nothing at that path" in refusal(tmp_path / "none")


def test_an_untied_head_that_is_missing_is_refused(tmp_path: Path):
    for kind in ("llama", "gpt2"):
        config = config_of(kind, tie_word_embeddings=False)
        tensors = random_tensors(config)
        del tensors["lm_head.weight"]
        assert "lm_head.weight" in refusal(write_folder(tmp_path / kind, config, tensors))


# A real model


def test_a_real_model_loads_with_its_sizes_and_ends(stories260k: Path):
    model = load(stories260k)
    assert isinstance(model, Llama)
    config = model.config
    assert (config.V, config.E, config.F, config.L) == (512, 64, 172, 5)
    assert (config.H, config.G, config.D, config.context_length) == (8, 4, 8, 512)
    assert config.tied
    assert model.end_ids == {1, 2}
    assert model.tokenizer is not None
    assert model.tokenizer.encode("") == [1]
