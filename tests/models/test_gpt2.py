"""GPT-2 computes what its paper says, from files that store weights the other way round."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from qkv.cache.contiguous import CacheShape
from qkv.errors import CheckpointError, PromptError
from qkv.models import GPT2, load, new_cache
from qkv.ops.projection import project
from tiny_models import config_of, random_tensors, tensor_shapes, write_folder, write_model

IDS = [11, 3, 97, 42, 3, 58, 7]


def loaded(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> GPT2:
    model = load(write_folder(folder, config, dict(tensors)))
    assert isinstance(model, GPT2)
    return model


# The formula, in loops

ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def linear(tensors: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    """The file's weight is in by out."""
    return x @ tensors[f"{name}.weight"].astype(np.float64) + tensors[f"{name}.bias"]


def norm(tensors: Mapping[str, np.ndarray], name: str, x: np.ndarray, eps: float) -> np.ndarray:
    return reference.layer_norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)


def logits_by_loops(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], ids: list[int]
) -> np.ndarray:
    """GPT-2 in float64, written from the papers against the names in the checkpoint."""
    eps, H = config.get("layer_norm_epsilon", 1e-5), config["n_head"]
    activation = np.vectorize(ACTIVATIONS[config.get("activation_function", "gelu_new")])
    wte, wpe = tensors["transformer.wte.weight"], tensors["transformer.wpe.weight"]
    x = np.array([wte[token_id].astype(np.float64) + wpe[place] for place, token_id in enumerate(ids)])
    for layer in range(config["n_layer"]):
        prefix = f"transformer.h.{layer}"
        normed = norm(tensors, f"{prefix}.ln_1", x, eps)
        qkv = np.split(linear(tensors, f"{prefix}.attn.c_attn", normed), 3, axis=1)
        q, k, v = (np.stack(np.split(part, H, axis=1))[None] for part in qkv)
        scale = 1 / math.sqrt(q.shape[-1]) if config.get("scale_attn_weights", True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx"):
            scale /= layer + 1
        mixed, _, _ = reference.attend(q, k, v, causal=True, scale=scale)
        x = x + linear(tensors, f"{prefix}.attn.c_proj", np.concatenate(mixed[0], axis=1))
        normed = norm(tensors, f"{prefix}.ln_2", x, eps)
        widened = activation(linear(tensors, f"{prefix}.mlp.c_fc", normed))
        x = x + linear(tensors, f"{prefix}.mlp.c_proj", widened)
    x = norm(tensors, "transformer.ln_f", x, eps)
    return x @ tensors.get("lm_head.weight", wte).T.astype(np.float64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "gelu"},
        {"activation_function": "silu"},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"tie_word_embeddings": False},
        {"layer_norm_epsilon": 0.1},
        {"n_head": 7},
    ],
    ids=str,
)
def test_logits_are_those_of_the_formula_in_loops(tmp_path: Path, changes: dict[str, Any]):
    config = config_of("gpt2", **changes)
    tensors = random_tensors(config)
    got = loaded(tmp_path, config, tensors).logits(np.array(IDS))
    np.testing.assert_allclose(got, logits_by_loops(config, tensors, IDS), rtol=0, atol=2e-5)


# Weights


def test_weights_stored_in_by_out_are_applied_in_by_out(tmp_path: Path):
    """[1, 2] through [[1, 2, 3], [4, 5, 6]] plus 0.5; and a square one, which would load either way."""
    config = config_of("gpt2", n_embd=2, n_head=1, n_inner=3, n_layer=1)
    tensors = random_tensors(config)
    widen, square = "transformer.h.0.mlp.c_fc", "transformer.h.0.attn.c_proj"
    tensors[f"{widen}.weight"] = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    tensors[f"{widen}.bias"] = np.full(3, 0.5, np.float32)
    tensors[f"{square}.weight"] = np.array([[1, 2], [3, 4]], np.float32)
    tensors[f"{square}.bias"] = np.zeros(2, np.float32)
    layer = loaded(tmp_path, config, tensors).layers[0]
    x = np.array([1, 2], np.float32)
    assert project(x, layer.w_in, layer.b_in).tolist() == [9.5, 12.5, 15.5]
    assert project(x, layer.w_o, layer.b_o).tolist() == [7, 10]


def test_mask_buffers_are_skipped_and_the_bias_beside_them_is_loaded(tmp_path: Path):
    config = config_of("gpt2")
    tensors = random_tensors(config)
    buffers = {}
    for layer in range(3):
        attention = f"transformer.h.{layer}.attn"
        buffers[f"{attention}.bias"] = np.tril(np.ones((1, 1, 67, 67), np.float32))
        buffers[f"{attention}.masked_bias"] = np.array(-1e4, np.float32)
    model = loaded(tmp_path, config, tensors | buffers)
    np.testing.assert_array_equal(model.layers[1].b_qkv, tensors["transformer.h.1.attn.c_attn.bias"])
    np.testing.assert_allclose(
        model.logits(np.array(IDS)), logits_by_loops(config, tensors, IDS), rtol=0, atol=2e-5
    )


def test_names_may_come_without_the_prefix(tmp_path: Path):
    config = config_of("gpt2", tie_word_embeddings=False)
    tensors = random_tensors(config)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
    with_prefix, without = (
        loaded(tmp_path / "with", config, tensors),
        loaded(tmp_path / "without", config, bare),
    )
    np.testing.assert_array_equal(with_prefix.logits(np.array(IDS)), without.logits(np.array(IDS)))


def test_every_tensor_of_the_checkpoint_changes_the_logits(tmp_path: Path):
    config = config_of("gpt2", tie_word_embeddings=False)
    tensors = random_tensors(config)
    before = loaded(tmp_path, config, tensors).logits(np.array(IDS))
    rng = np.random.default_rng(1)
    for name in tensor_shapes(config):
        changed = tensors[name] + rng.normal(size=tensors[name].shape).astype(np.float32)
        after = loaded(tmp_path, config, {**tensors, name: changed}).logits(np.array(IDS))
        assert np.abs(after - before).max() > 1e-2, name


def test_no_tensor_may_be_missing(tmp_path: Path):
    config = config_of("gpt2", tie_word_embeddings=False)
    tensors = random_tensors(config)
    for name in tensors:
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(CheckpointError) as caught:
            loaded(tmp_path, config, rest)
        # Without the table the prefix cannot be told.
        assert f" {name.removeprefix('transformer.') if '.wte.' in name else name} " in str(caught.value)


def test_a_transposed_weight_is_refused(tmp_path: Path):
    config = config_of("gpt2")
    tensors = random_tensors(config)
    name = "transformer.h.2.mlp.c_fc.weight"
    with pytest.raises(CheckpointError, match=r"h\.2\.mlp\.c_fc\.weight of shape \(21, 31\), got \(31, 21\)"):
        loaded(tmp_path, config, {**tensors, name: tensors[name].T})


# Learned positions


def test_a_token_behind_fifty_cached_ones_stands_at_position_fifty(tmp_path: Path):
    """The last token runs in a copy of the model in which every other position's vector is NaN."""
    config = config_of("gpt2")
    tensors = random_tensors(config)
    model = loaded(tmp_path / "model", config, tensors)
    text = np.arange(51)
    cache = new_cache(model)
    model.logits(text[:50], cache)
    wpe = tensors["transformer.wpe.weight"].copy()
    wpe[np.arange(67) != 50] = np.nan
    only_fifty = loaded(tmp_path / "fifty", config, {**tensors, "transformer.wpe.weight": wpe})
    np.testing.assert_allclose(
        only_fifty.logits(text[50:], cache)[0], model.logits(text)[50], rtol=0, atol=1e-5
    )
    assert cache.length == 51


def test_a_text_may_fill_the_learned_positions_and_no_more(tmp_path: Path):
    model = load(write_model(tmp_path, "gpt2"))
    cache = new_cache(model)
    assert model.context_length == 67
    assert model.logits(np.zeros(67, int), cache).shape == (67, 101)
    for beyond in (
        lambda: model.logits(np.zeros(68, int)),
        lambda: model.next_logits(np.zeros(1, int), cache),
    ):
        with pytest.raises(PromptError, match="the text has 68 tokens, but GPT-2 has learned 67 positions"):
            beyond()
    assert cache.length == 67


def test_padding_counts_neither_as_position_nor_as_length(tmp_path: Path):
    model = load(write_model(tmp_path, "gpt2"))
    ids, mask = np.zeros((2, 70), int), np.zeros((2, 70), bool)
    ids[0, 63:], mask[0, 63:] = IDS, True
    ids[1, :1], mask[1, :1] = 42, True
    logits = model.logits(ids, None, mask)
    np.testing.assert_allclose(logits[0, 63:], model.logits(np.array(IDS)), rtol=0, atol=1e-5)


def test_a_cache_for_the_model_has_its_layers_heads_and_head_size(tmp_path: Path):
    model = load(write_model(tmp_path, "gpt2"))
    assert model.cache_shape == CacheShape(num_layers=3, num_kv_heads=3, head_dim=7)
