"""A model saved by transformers gives the logits and the greedy text that it gives there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from qkv.models import GPT2, Llama, load, new_cache
from qkv.tokens import Tokenizer

IDS = np.random.default_rng(0).integers(0, 101, 29)
CLOSE = {"rtol": 0, "atol": 1e-4}
SIZES = {
    "vocab_size": 101,
    "hidden_size": 30,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "max_position_embeddings": 97,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2_SIZES = {
    "vocab_size": 101,
    "n_embd": 21,
    "n_head": 3,
    "n_layer": 3,
    "n_positions": 97,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def mistral(**changes: Any) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**{**SIZES, **changes}))


def qwen2(**changes: Any) -> PreTrainedModel:
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**{**sizes, "hidden_size": 36, **changes}))


def qwen3(**changes: Any) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, **changes}))


def gpt2(**changes: Any) -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(**{**GPT2_SIZES, **changes}))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "llama, no head_dim": lambda: llama(hidden_size=36, head_dim=None),
    "llama, biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "llama, one key head": lambda: llama(num_key_value_heads=1, rms_norm_eps=1e-2),
    "llama, llama3 scaling": lambda: llama(rope_parameters=LLAMA3),
    "llama, linear scaling": lambda: llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}
    ),
    "llama, yarn": lambda: llama(rope_parameters=YARN),
    "llama, yarn by mscale": lambda: llama(rope_parameters={**YARN, "mscale": 1.4, "mscale_all_dim": 0.7}),
    "llama, yarn, not whole": lambda: llama(
        rope_parameters={
            **YARN,
            "truncate": False,
            "beta_fast": 2.0,
            "beta_slow": 0.3,
            "attention_factor": 1.3,
        }
    ),
    "llama, dynamic within its length": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    ),
    "mistral, window": lambda: mistral(sliding_window=7),
    "mistral, no window": lambda: mistral(sliding_window=None),
    "qwen2": qwen2,
    "qwen2, upper windows": lambda: qwen2(use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen2, windows not used": lambda: qwen2(use_sliding_window=False, sliding_window=5, max_window_layers=0),
    "qwen2, windows by layer": lambda: qwen2(
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": qwen3,
    "qwen3, tied, biases": lambda: qwen3(tie_word_embeddings=True, attention_bias=True),
    "gpt2": gpt2,
    "gpt2, exact gelu": lambda: gpt2(activation_function="gelu"),
    "gpt2, gelu_pytorch_tanh": lambda: gpt2(activation_function="gelu_pytorch_tanh"),
    "gpt2, scaled by depth": lambda: gpt2(scale_attn_by_inverse_layer_idx=True),
    "gpt2, unscaled": lambda: gpt2(scale_attn_weights=False, layer_norm_epsilon=1e-2),
    "gpt2, inner size, untied": lambda: gpt2(n_inner=31, tie_word_embeddings=False),
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


def saved(model: PreTrainedModel, folder: Path, **options: Any) -> Llama | GPT2:
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


def greedy_ids(model: Llama | GPT2, num_tokens: int, *, cached: bool = True) -> list[int]:
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
    expected = their_logits(theirs, IDS)
    np.testing.assert_allclose(ours.logits(IDS), expected, **CLOSE)
    cache = new_cache(ours)
    chunks = [ours.logits(chunk, cache) for chunk in np.split(IDS, [10, 11, 12])]
    np.testing.assert_allclose(np.concatenate(chunks), expected, **CLOSE)
    assert greedy_ids(ours, 64) == their_greedy_ids(theirs, 64)


def test_dynamic_positions_beyond_the_trained_length_are_theirs(tmp_path: Path):
    """Without a cache: with one, keys keep the angles of the length at which they came, here and there."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    theirs = randomised(llama(max_position_embeddings=16, rope_parameters=dynamic))
    ours = saved(theirs, tmp_path)
    for length in (16, 17, 23, 29):
        np.testing.assert_allclose(ours.logits(IDS[:length]), their_logits(theirs, IDS[:length]), **CLOSE)


@pytest.mark.parametrize("name", ["llama", "mistral, window", "qwen2", "qwen3", "gpt2"])
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


@pytest.mark.parametrize("name", ["llama", "llama, tied", "mistral, window", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_saved_in_half_precision_are_read_as_they_are(name: str, dtype: torch.dtype, tmp_path: Path):
    theirs = randomised(MODELS[name]()).to(dtype)
    ours = saved(theirs, tmp_path)
    # Widening the saved model is not the same: that would keep its rotary frequencies rounded.
    widened = type(theirs).from_pretrained(tmp_path, dtype=torch.float32).eval()
    np.testing.assert_allclose(ours.logits(IDS), their_logits(widened, IDS), **CLOSE)


@pytest.mark.parametrize("name", ["llama", "llama, tied", "qwen2", "qwen3", "gpt2, inner size, untied"])
def test_a_model_saved_in_shards_is_read_whole(name: str, tmp_path: Path):
    theirs = randomised(MODELS[name]())
    ours = saved(theirs, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    np.testing.assert_allclose(ours.logits(IDS), their_logits(theirs, IDS), **CLOSE)


def test_end_ids_are_those_transformers_saves(tmp_path: Path):
    theirs = llama(eos_token_id=[3, 5])
    theirs.generation_config.eos_token_id = [5, 7]
    assert saved(theirs, tmp_path).end_ids == {3, 5, 7}


def test_a_real_model_is_theirs(stories260k: Path):
    theirs = LlamaForCausalLM.from_pretrained(stories260k).eval()
    ours = load(stories260k)
    ids = np.array(Tokenizer.from_folder(stories260k).encode("Once upon a time, there was a dog. The dog"))
    np.testing.assert_allclose(ours.logits(ids), their_logits(theirs, ids), **CLOSE)
