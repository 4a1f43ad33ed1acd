"""A model folder becomes a model that knows its texts' ends, or is refused with one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qkv
from qkv.errors import CheckpointError
from qkv.models import GPT2, Llama, load
from tiny_models import (
    FAMILIES,
    config_of,
    random_tensors,
    write_folder,
    write_model,
    write_tokenizer,
)

IDS = np.array([11, 3, 97, 42, 3, 58, 7])


def refusal(folder: str | Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_load_is_public():
    assert qkv.load is load


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_model_type_is_read_by_its_family(tmp_path: Path, kind: str):
    model = load(str(write_model(tmp_path, kind)))
    assert type(model) is (GPT2 if kind == "gpt2" else Llama)
    assert model.tokenizer is None
    assert model.end_ids == frozenset()


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
def test_stored_numbers_are_run_in_float32_exactly_as_they_are(tmp_path: Path, kind: str, dtype: Any):
    config = config_of(kind)
    tensors = random_tensors(config)
    rounded = {name: tensor.astype(dtype).astype(np.float32) for name, tensor in tensors.items()}
    stored = load(write_folder(tmp_path / "stored", config, tensors, dtype=dtype))
    widened = load(write_folder(tmp_path / "widened", config, rounded))
    assert stored.embedding.dtype == np.float32
    np.testing.assert_array_equal(stored.logits(IDS), widened.logits(IDS))


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("num_shards", [2, 5])
def test_a_model_in_shards_is_the_model_in_one_file(tmp_path: Path, kind: str, num_shards: int):
    whole = load(write_model(tmp_path / "whole", kind))
    sharded = load(write_model(tmp_path / "sharded", kind, num_shards=num_shards))
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
    message = refusal(folder)
    assert (
        message == f"config.json: model_type '{kind}' is not one qkv runs: gpt2, llama, mistral, qwen2, qwen3"
    )


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
