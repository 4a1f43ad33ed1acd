"""A DeepSeek model saved by transformers gives the logits and the greedy text that it gives there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedModel,
)

from qkv import load, new_cache
from qkv.cache.attending import held_keys
from qkv.errors import CheckpointError
from qkv.models.deepseek import DeepSeek
from qkv.models.model import Model

IDS = np.random.default_rng(0).integers(0, 101, 29)
CLOSE = {"rtol": 0, "atol": 3e-5}
SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 13,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
    "max_position_embeddings": 97,
    "bos_token_id": None,
    "eos_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.4,
    "mscale_all_dim": 0.7,
}


def v3(**changes: Any) -> PreTrainedModel:
    return DeepseekV3ForCausalLM(DeepseekV3Config(**{**SIZES, **changes}))


def v2(**changes: Any) -> PreTrainedModel:
    # Its rotation takes the parts apart in pairs, so they must begin at even places.
    even = {"qk_nope_head_dim": 8, "kv_lora_rank": 10}
    return DeepseekV2ForCausalLM(DeepseekV2Config(**{**SIZES, **even, **changes}))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "v3": v3,
    "v3, plain queries": lambda: v3(q_lora_rank=None),
    "v3, halves": lambda: v3(rope_interleave=False),
    "v3, interleave null": lambda: v3(rope_interleave=None),
    "v3, plain queries, halves": lambda: v3(q_lora_rank=None, rope_interleave=False),
    "v3, biases": lambda: v3(attention_bias=True),
    "v3, plain queries, biases, tied": lambda: v3(
        q_lora_rank=None, attention_bias=True, tie_word_embeddings=True
    ),
    "v3, another eps": lambda: v3(rms_norm_eps=0.1),
    "v3, one head": lambda: v3(num_attention_heads=1, num_key_value_heads=1, v_head_dim=19),
    "v3, yarn": lambda: v3(rope_parameters=YARN),
    "v3, yarn, halves": lambda: v3(rope_parameters=YARN, rope_interleave=False),
    "v3, yarn of the rotary part alone": lambda: v3(rope_parameters={**YARN, "mscale_all_dim": 0}),
    "v3, yarn of the scale alone": lambda: v3(rope_parameters={**YARN, "mscale": 0}),
    "v3, yarn by attention factor": lambda: v3(rope_parameters={**YARN, "attention_factor": 1.3}),
    "v3, linear scaling with mscale": lambda: v3(
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5, "mscale_all_dim": 2.0}
    ),
    "v2": v2,
    "v2, plain queries": lambda: v2(q_lora_rank=None),
    "v2, biases": lambda: v2(attention_bias=True, mlp_bias=True),
    "v2, plain queries, yarn": lambda: v2(q_lora_rank=None, rope_parameters=YARN),
    "v2, tied": lambda: v2(tie_word_embeddings=True),
}


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    """No progress bar for a file of some kilobytes, no remark on sizes that no real model has."""
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()
    transformers.utils.logging.set_verbosity(level)


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Weights large enough that a wrong one shows, biases and norms included."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.25 if parameter.ndim > 1 else parameter.data + noise * 0.1
    model.generation_config.pad_token_id = 0
    return model.eval()


def saved(model: PreTrainedModel, folder: Path, **options: Any) -> Model:
    model.save_pretrained(folder, **options)
    return load(folder)


def their_logits(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0].float().numpy()


def their_greedy_ids(model: PreTrainedModel, num_tokens: int) -> list[int]:
    ids = torch.from_numpy(IDS)[None]
    with torch.no_grad():
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False
        )
    return text[0, len(IDS) :].tolist()


def greedy_ids(model: Model, num_tokens: int, *, cached: bool) -> list[int]:
    cache = new_cache(model) if cached else None
    unseen, ids = IDS, list(IDS)
    for _ in range(num_tokens):
        ids.append(int(np.argmax(model.next_logits(unseen, cache))))
        unseen = np.array(ids[-1:] if cached else ids)
    return ids[len(IDS) :]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_text_are_those_of_transformers(name: str, tmp_path: Path):
    theirs = randomised(MODELS[name]())
    ours = saved(theirs, tmp_path)
    assert type(ours) is DeepSeek
    expected = their_logits(theirs, IDS)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(ours.logits(IDS), expected, **CLOSE)
    cache = new_cache(ours)
    chunks = [ours.logits(chunk, cache) for chunk in np.split(IDS, [10, 11, 12])]
    np.testing.assert_allclose(np.concatenate(chunks), expected, **CLOSE)
    text = their_greedy_ids(theirs, 48)
    assert greedy_ids(ours, 48, cached=True) == text
    assert greedy_ids(ours, 12, cached=False) == text[:12]


@pytest.mark.parametrize("name", ["v3", "v3, plain queries, halves", "v2"])
def test_rows_of_a_left_padded_batch_are_theirs(name: str, tmp_path: Path):
    theirs = randomised(MODELS[name]())
    ours = saved(theirs, tmp_path)
    ids, mask = np.stack([IDS[:13], IDS[13:26]]), np.ones((2, 13), bool)
    mask[0, :4] = False
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    with torch.no_grad():
        expected = theirs(
            torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask.astype(np.int64)),
            position_ids=torch.from_numpy(positions),
        ).logits.numpy()
    for cache in (None, new_cache(ours, batch_size=2)):
        np.testing.assert_allclose(ours.logits(ids, cache, mask)[mask], expected[mask], **CLOSE)


@pytest.mark.parametrize("name", ["v3, yarn", "v2, plain queries, yarn"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_saved_in_half_precision_are_read_as_they_are(name: str, dtype: torch.dtype, tmp_path: Path):
    theirs = randomised(MODELS[name]()).to(dtype)
    ours = saved(theirs, tmp_path)
    # Widening the saved model is not the same: that would keep its rotary frequencies rounded.
    widened = type(theirs).from_pretrained(tmp_path, dtype=torch.float32).eval()
    np.testing.assert_allclose(ours.logits(IDS), their_logits(widened, IDS), **CLOSE)


def test_a_model_saved_in_shards_is_read_whole(tmp_path: Path):
    theirs = randomised(v3())
    ours = saved(theirs, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    np.testing.assert_allclose(ours.logits(IDS), their_logits(theirs, IDS), **CLOSE)


def test_their_cache_of_latents_holds_what_ours_does(tmp_path: Path):
    theirs = randomised(v3(rope_interleave=False))
    ours = saved(theirs, tmp_path)
    cache = new_cache(ours)
    ours.logits(IDS, cache)
    with torch.no_grad():
        remembered = theirs(torch.from_numpy(IDS)[None], use_cache=True).past_key_values
    for layer in range(3):
        latents, rotated = remembered.layers[layer].keys, remembered.layers[layer].values
        expected = torch.cat([latents, rotated], dim=-1).numpy()
        keys, _ = held_keys(cache.sequences[0].pages, layer, len(IDS))
        np.testing.assert_allclose(keys[None], expected, **CLOSE)


@pytest.mark.parametrize("make", [v2, v3])
def test_their_mixtures_of_experts_are_refused(make: Callable[..., PreTrainedModel], tmp_path: Path):
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 5, "num_experts_per_tok": 2}
    make(first_k_dense_replace=1, n_group=2, topk_group=1, **experts).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="every layer must be dense"):
        load(tmp_path)
