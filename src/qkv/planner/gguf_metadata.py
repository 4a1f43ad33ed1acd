"""GGUF files: their metadata under the names of a config.json, so that one reader serves both."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.errors import PlanError
from qkv.planner.config import read_model
from qkv.planner.layers import ModelMemory

MODEL_TYPES = {
    "gptneox": "gpt_neox",
    "starcoder": "gpt_bigcode",
    "phi2": "phi",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gpt-oss": "gpt_oss",
    "llama4": "llama4_text",
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text",
    "qwen3moe": "qwen3_moe",
    "qwen3vl": "qwen3_vl_text",
    "glm4moe": "glm4_moe",
    "ernie4_5-moe": "ernie4_5_moe",
    "minimax-m2": "minimax_m2",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
}
"""Names of architectures that config.json spells otherwise; the rest are spelled alike."""

FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "value_length",
    "attention.key_length_swa": "swa_head_dim",
    "attention.value_length_swa": "swa_v_head_dim",
    "attention.indexer.key_length": "index_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.chunk_size": "attention_chunk_size",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "vocab_size": "vocab_size",
}
"""Metadata keys, after the architecture's name, and what config.json calls the same."""


def read_gguf(path: Path) -> ModelMemory:
    """Read what a model keeps from the metadata of a GGUF file; its weights take what its tensors take.

    Raises
    ------
    PlanError
        If the ``gguf`` package is missing, or the file is no GGUF or lacks what the size depends on.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise PlanError("reading .gguf files needs the extra: pip install 'qkv[gguf]'") from None
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items() if _is_small(field)}
        weights = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    except Exception as error:  # a damaged file fails in any way
        raise PlanError(f"{path} cannot be read as GGUF ({type(error).__name__}: {error})") from error
    memory = read_model(config_of_metadata(metadata), path.stem)
    return replace(memory, weight_bytes=weights or memory.weight_bytes)


def config_of_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json that GGUF metadata speak of.

    Examples
    --------
    >>> config_of_metadata({"general.architecture": "llama", "llama.block_count": 32})
    {'model_type': 'llama', 'num_hidden_layers': 32}
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise PlanError("the GGUF file does not name its general.architecture")
    config: dict[str, Any] = {"model_type": MODEL_TYPES.get(architecture, architecture)}
    for key, value in metadata.items():
        part = key.removeprefix(f"{architecture}.")
        if part != key:  # what config.json has no name for is kept, as it may speak of further memory
            config[FIELDS.get(part, part.replace(".", "_"))] = value
    return _with_rules_of_gguf(config, metadata.get(f"{architecture}.attention.sliding_window_pattern"))


def _with_rules_of_gguf(config: dict[str, Any], pattern: object) -> dict[str, Any]:
    """Say in config.json's way what GGUF says in its own."""
    if "swa_head_dim" in config and config["model_type"] == "gemma4_text":
        config |= {"global_head_dim": config.get("head_dim"), "head_dim": config["swa_head_dim"]}
    if isinstance(pattern, list):
        kinds = {True: "sliding_attention", False: "full_attention"}
        config["layer_types"] = [kinds[bool(windowed)] for windowed in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern
    if config["model_type"].startswith("qwen2") or config["model_type"].startswith("qwen3"):
        config["use_sliding_window"] = False  # the converter writes no window for these
    if config["model_type"] == "falcon":  # the converter writes the key heads that are really there
        config["model_type"] = "llama"
    if config["model_type"] == "gpt_bigcode":
        config["multi_query"] = config.get("num_key_value_heads") == 1
    return config


def _is_small(field: Any) -> bool:
    """Leave out vocabularies, which take seconds to read."""
    return len(field.data) <= 4096
