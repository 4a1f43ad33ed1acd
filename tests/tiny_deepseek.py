"""Small random DeepSeek folders, as `tiny_models` has them of the other families."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tiny_models import Tensors, write_folder

KINDS = ("deepseek_v2", "deepseek_v3")
SIZES = {
    "vocab_size": 101,
    "hidden_size": 23,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 3,
    "n_routed_experts": 64,
    "num_attention_heads": 3,
    "q_lora_rank": 13,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "max_position_embeddings": 97,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
}
"""Only the rotary part, which is pairs, is no prime."""


def config_of(kind: str = "deepseek_v3", **changes: Any) -> dict[str, Any]:
    """A valid config.json of a model type, with some fields changed."""
    return {"model_type": kind, **SIZES, **changes}


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape by its name in a checkpoint."""
    V, E = config["vocab_size"], config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, E), "model.norm.weight": (E,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, E)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{name}": shape for name, shape in layer_shapes(config).items()}
    return shapes


def layer_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    E, F, H = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    nope, rope, value = (config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent, query_latent = config["kv_lora_rank"], config["q_lora_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (E,),
        "self_attn.kv_a_proj_with_mqa.weight": (latent + rope, E),
        "self_attn.kv_a_layernorm.weight": (latent,),
        "self_attn.kv_b_proj.weight": (H * (nope + value), latent),
        "self_attn.o_proj.weight": (E, H * value),
        "post_attention_layernorm.weight": (E,),
        "mlp.gate_proj.weight": (F, E),
        "mlp.up_proj.weight": (F, E),
        "mlp.down_proj.weight": (E, F),
    }
    if query_latent is None:
        shapes["self_attn.q_proj.weight"] = (H * (nope + rope), E)
    else:
        shapes["self_attn.q_a_proj.weight"] = (query_latent, E)
        shapes["self_attn.q_a_layernorm.weight"] = (query_latent,)
        shapes["self_attn.q_b_proj.weight"] = (H * (nope + rope), query_latent)
    biased = []
    if config.get("attention_bias"):
        biased += ["self_attn.kv_a_proj_with_mqa", "self_attn.o_proj"]
        biased += [] if query_latent is None else ["self_attn.q_a_proj"]
    if config.get("mlp_bias"):
        biased += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    return shapes | {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in biased}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Random float32 parameters, large enough that a wrong one shows in the logits."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        values = rng.normal(scale=0.1 if len(shape) == 1 else 0.3, size=shape)
        tensors[name] = (values + name.endswith("norm.weight")).astype(np.float32)
    return tensors


def write_model(folder: Path, kind: str = "deepseek_v3", *, seed: int = 0, **changes: Any) -> Path:
    """Write a random model of a model type, with some config fields changed."""
    config = config_of(kind, **changes)
    return write_folder(folder, config, random_tensors(config, seed))
