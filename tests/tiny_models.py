"""Small random model folders in the Hugging Face layout, written with NumPy and safetensors alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, processors

Tensors = dict[str, np.ndarray]

LLAMA_SIZES = {
    "vocab_size": 101,
    "hidden_size": 23,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "max_position_embeddings": 97,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
}
GPT2_SIZES = {"vocab_size": 101, "n_embd": 21, "n_head": 3, "n_layer": 3, "n_inner": 31, "n_positions": 67}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama": LLAMA_SIZES,
    "mistral": {**LLAMA_SIZES, "sliding_window": 5},
    "qwen2": {**LLAMA_SIZES, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {**LLAMA_SIZES, "tie_word_embeddings": True},
    "gpt2": GPT2_SIZES,
}
"""A config.json for each model type; only sizes of heads and groups are no primes."""

FAMILIES = tuple(CONFIGS)
VOCAB_SIZE_WITH_TOKENIZER = 263
"""The first prime that has room for 256 bytes and two special tokens."""


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    """A valid config.json of a model type, with some fields changed."""
    return {"model_type": kind, **CONFIGS[kind], **changes}


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape by its name in a checkpoint."""
    return _gpt2_shapes(config) if config["model_type"] == "gpt2" else _llama_shapes(config)


def _llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    V, E, F = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    D = config["head_dim"]
    queries, keys = config["num_attention_heads"] * D, config["num_key_value_heads"] * D
    kind = config["model_type"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, E), "model.norm.weight": (E,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, E)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (E,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (E,)
        for name, width_out, width_in in [
            ("q", queries, E),
            ("k", keys, E),
            ("v", keys, E),
            ("o", E, queries),
        ]:
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (width_out, width_in)
            if config.get("attention_bias") or (kind == "qwen2" and name != "o"):
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (width_out,)
        for name, width_out, width_in in [("gate", F, E), ("up", F, E), ("down", E, F)]:
            shapes[f"{prefix}.mlp.{name}_proj.weight"] = (width_out, width_in)
            if config.get("mlp_bias"):
                shapes[f"{prefix}.mlp.{name}_proj.bias"] = (width_out,)
        if kind == "qwen3":
            shapes |= {f"{prefix}.self_attn.{name}_norm.weight": (D,) for name in "qk"}
    return shapes


def _gpt2_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    V, E, F = config["vocab_size"], config["n_embd"], config["n_inner"]
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (V, E),
        "transformer.wpe.weight": (config["n_positions"], E),
    }
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (V, E)
    norms = ["transformer.ln_f"]
    for layer in range(config["n_layer"]):
        prefix = f"transformer.h.{layer}"
        norms += [f"{prefix}.ln_1", f"{prefix}.ln_2"]
        linear = {"attn.c_attn": (E, 3 * E), "attn.c_proj": (E, E), "mlp.c_fc": (E, F), "mlp.c_proj": (F, E)}
        for name, (width_in, width_out) in linear.items():
            shapes[f"{prefix}.{name}.weight"] = (width_in, width_out)
            shapes[f"{prefix}.{name}.bias"] = (width_out,)
    return shapes | {f"{name}.{part}": (E,) for name in norms for part in ("weight", "bias")}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Random float32 parameters, large enough that a wrong one shows in the logits."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        is_norm = "norm.weight" in name or ("ln_" in name and name.endswith("weight"))
        values = rng.normal(scale=0.1 if len(shape) == 1 else 0.3, size=shape) + (1.0 if is_norm else 0.0)
        tensors[name] = values.astype(np.float32)
    return tensors


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    *,
    dtype: DTypeLike = np.float32,
    num_shards: int = 1,
) -> Path:
    """Write config.json and the tensors: in one file, or in shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: np.ascontiguousarray(tensor.astype(dtype)) for name, tensor in tensors.items()}
    if num_shards == 1:
        save_file(stored, folder / "model.safetensors")
        return folder
    names = sorted(stored)
    shard_of = {}
    for index in range(num_shards):
        file_name = f"model-{index + 1:05}-of-{num_shards:05}.safetensors"
        save_file({name: stored[name] for name in names[index::num_shards]}, folder / file_name)
        shard_of |= dict.fromkeys(names[index::num_shards], file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of}))
    return folder


def write_model(
    folder: Path,
    kind: str,
    *,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
    num_shards: int = 1,
    **changes: Any,
) -> Path:
    """Write a random model of a model type, with some config fields changed."""
    config = config_of(kind, **changes)
    return write_folder(folder, config, random_tensors(config, seed), dtype=dtype, num_shards=num_shards)


def write_tokenizer(folder: Path, *, begins_text: bool = True) -> Path:
    """Write a byte-level tokenizer.json: ``<s>``, ``</s>`` and one token per byte, nothing merged."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: token_id for token_id, token in enumerate(["<s>", "</s>", *letters])}
    core = Core(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>"])
    if begins_text:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    core.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder
