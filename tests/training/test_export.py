"""The folder a training leaves: qkv loads it and computes what the trained model computed."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import qkv
from qkv.errors import CheckpointError, NumericError, OptionError
from qkv.models.llama import Llama, LlamaConfig
from qkv.tokens import Tokenizer
from qkv.tokens.bpe import train_bpe
from qkv.training.export import Stored, export, rounded
from qkv.training.llama import TrainableLlama
from qkv.training.presets import preset

SETTINGS = preset("tiny", V=263, E=16, F=22, L=2, H=4, G=2, D=6, T=29)
TEXT = "the cat, the hat and the mat\n" * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe([TEXT], SETTINGS.V)


@pytest.fixture
def model() -> TrainableLlama:
    begun = TrainableLlama.begin(LlamaConfig.from_dict(SETTINGS.config()), seed=3)
    begun.parameters.vector[:] *= 5
    return begun


@pytest.mark.parametrize(("stored", "bits"), [("bfloat16", 8), ("float16", 11), ("float32", 24)])
def test_qkv_loads_it_and_computes_what_was_trained(
    tmp_path: Path, model: TrainableLlama, tokenizer: Tokenizer, stored: Stored, bits: int
):
    export(tmp_path / "new" / "folder", model.parameters, SETTINGS, tokenizer, "# card\n", stored)
    loaded = qkv.load(tmp_path / "new" / "folder")
    as_stored = TrainableLlama(model.config, rounded(model.parameters, stored))
    off = np.abs(as_stored.parameters.vector - model.parameters.vector)
    assert (off <= np.abs(model.parameters.vector) * 2.0**-bits + 1e-7).all()
    assert off.any() == (stored != "float32")
    ids = tokenizer.encode("the cat\nand")
    logits = loaded.logits(ids).astype(np.float64)
    nats = np.log(np.exp(logits).sum(-1))[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]
    expected = as_stored.nats(np.array([ids[:-1]]), np.array([ids[1:]]))[0]
    assert np.allclose(nats, expected, atol=1e-5)


def test_the_folder_says_what_begins_and_ends_a_text(
    tmp_path: Path, model: TrainableLlama, tokenizer: Tokenizer
):
    export(tmp_path, model.parameters, SETTINGS, tokenizer, "# card\n")
    loaded = qkv.load(tmp_path)
    assert isinstance(loaded, Llama) and loaded.tokenizer is not None
    assert loaded.end_ids == {0} and loaded.context_length == 29
    assert loaded.tokenizer.encode("the") == tokenizer.encode("the") and tokenizer.encode("the")[0] == 0
    assert (tmp_path / "README.md").read_text() == "# card\n"
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "bfloat16"
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 0)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        names = set(file.keys())
    assert names == set(model.parameters) and "lm_head.weight" not in names


def test_a_model_of_ids_that_are_no_text_has_no_tokenizer(tmp_path: Path, model: TrainableLlama):
    export(tmp_path, model.parameters, SETTINGS, None, "# card\n")
    loaded = qkv.load(tmp_path)
    assert loaded.tokenizer is None and loaded.end_ids == frozenset()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_numbers_out_of_reach_are_refused_before_anything_is_written(
    tmp_path: Path, model: TrainableLlama, tokenizer: Tokenizer
):
    model.parameters.vector[7] = 1e5
    with pytest.raises(NumericError, match="a parameter is not finite as float16"):
        export(tmp_path, model.parameters, SETTINGS, tokenizer, "", "float16")
    export(tmp_path / "wide", model.parameters, SETTINGS, tokenizer, "", "bfloat16")
    wrong: Stored = "int8"  # pyright: ignore[reportAssignmentType]
    with pytest.raises(OptionError, match="bfloat16, float16, float32, got 'int8'"):
        export(tmp_path, model.parameters, SETTINGS, tokenizer, "", wrong)
    assert [file.name for file in tmp_path.iterdir()] == ["wide"]


def test_a_full_disk_leaves_the_model_that_was_there(
    tmp_path: Path, model: TrainableLlama, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    export(tmp_path, model.parameters, SETTINGS, tokenizer, "# card\n")
    before = (tmp_path / "model.safetensors").read_bytes()
    model.parameters.vector[:] *= 2

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; .* make room"):
        export(tmp_path, model.parameters, SETTINGS, tokenizer, "# card\n")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_file_where_a_folder_should_be_is_a_clear_error(tmp_path: Path, model: TrainableLlama):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file cannot be a folder: File exists; try another"):
        export(tmp_path / "file", model.parameters, SETTINGS, None, "")
