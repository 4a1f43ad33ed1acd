"""A model that was trained here is the same model in transformers: tokens, logits, and where a text ends."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import qkv
from qkv.models.llama import LlamaConfig
from qkv.tokens.bpe import train_bpe
from qkv.training.export import Stored, export
from qkv.training.llama import TrainableLlama
from qkv.training.presets import preset

SETTINGS = preset("tiny", V=263, E=16, F=22, L=2, H=4, G=2, D=6, T=29)
TEXT = "the cat, the hat and  the mat\n\n 世界\n"


@pytest.fixture(params=["bfloat16", "float16", "float32"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    stored: Stored = request.param
    model = TrainableLlama.begin(LlamaConfig.from_dict(SETTINGS.config()), seed=3)
    model.parameters.vector[:] *= 5
    export(tmp_path, model.parameters, SETTINGS, train_bpe([TEXT * 3], SETTINGS.V), "# card\n", stored)
    return tmp_path


def test_its_tokens_are_the_same(folder: Path):
    ours, theirs = qkv.Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in [TEXT, "", "\n\n\n", " and<|endoftext|>the"]:
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode(text)
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.model_max_length) == (0, 0, 29)


def test_its_logits_are_the_same(folder: Path):
    ours = qkv.load(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = ours.tokenizer.encode(TEXT)[:29]
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(logits - ours.logits(ids)).max() < 1e-4
    assert theirs.generation_config.eos_token_id == 0
