"""A loaded model as one that learns: the same weights, whatever they were kept in, and the same function."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.errors import OptionError
from qkv.models import Llama, load
from qkv.models.llama import LlamaConfig
from qkv.models.weights import Weights
from qkv.training.llama import EMBEDDING, TrainableLlama
from qkv.training.loaded import make_trainable
from tiny_models import config_of

SIZES = config_of(
    "llama", vocab_size=43, hidden_size=20, intermediate_size=29, head_dim=6, tie_word_embeddings=True
)


def saved(folder: Path, **changes: object) -> TrainableLlama:
    """A model that was never trained, in a folder as one is kept."""
    model = TrainableLlama.begin(LlamaConfig.from_dict(SIZES | changes), seed=1, deviation=0.2)
    for array in model.parameters.values():
        array += np.random.default_rng(2).normal(size=array.shape) * 0.05
    tensors = {name: array.copy() for name, array in model.parameters.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SIZES | changes))
    return model


def loaded(folder: Path, weights: Weights = "as stored") -> Llama:
    model = load(folder, weights)
    assert isinstance(model, Llama)
    return model


def test_every_parameter_comes_back_under_its_name(tmp_path: Path):
    begun = saved(tmp_path)
    back = make_trainable(loaded(tmp_path))
    assert back.parameters.shapes == begun.parameters.shapes
    np.testing.assert_array_equal(back.parameters.vector, begun.parameters.vector)


def test_what_is_kept_in_codes_is_learned_from_what_the_codes_say(tmp_path: Path):
    begun = saved(tmp_path)
    model = loaded(tmp_path, "int8")
    back, ids = make_trainable(model), np.random.default_rng(3).integers(0, 43, (2, 7))
    logits = model.logits(ids[:, :-1])
    expected = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(back.nats(ids[:, :-1], ids[:, 1:]), expected, atol=1e-4)
    assert np.any(back.parameters[EMBEDDING] != begun.parameters[EMBEDDING])


def test_learning_leaves_the_loaded_model_as_it_was(tmp_path: Path):
    saved(tmp_path)
    model = loaded(tmp_path)
    before = model.logits([1, 2, 3])
    make_trainable(model).parameters.vector[:] = 0
    np.testing.assert_array_equal(model.logits([1, 2, 3]), before)


def test_a_model_with_parts_that_are_not_learned_is_refused(tmp_path: Path):
    saved(tmp_path)
    model = loaded(tmp_path)
    tensors = {"lm_head.weight": np.ones((43, 20), np.float32)}
    whole = dict(make_trainable(model).parameters)
    save_file({name: array.copy() for name, array in whole.items()} | tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"tie_word_embeddings": False}))
    with pytest.raises(OptionError, match="tied head"):
        make_trainable(loaded(tmp_path))
