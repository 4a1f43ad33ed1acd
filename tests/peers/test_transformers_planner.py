"""The planner against the caches that transformers really fills: small random models of every family.

Each configuration goes to the planner twice: as given, and as `transformers` writes it to a file, with
everything its class fills in. Numbers are counted, so that dtypes do not matter.
"""

import json
import warnings

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

from qkv import plan
from qkv.planner import find_model

transformers.logging.set_verbosity_error()

TOKENS = 23
"""In the prompt; one more is generated."""

SMALL = {
    **{
        "vocab_size": 53,
        "hidden_size": 48,
        "intermediate_size": 32,
        "num_hidden_layers": 6,
        "pad_token_id": 0,
    },
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 97},
}
WIDE = {**SMALL, "head_dim": 14}
"""Heads whose size is not width by heads."""
LOCAL = {**WIDE, "sliding_window": 7}
GPT = {"vocab_size": 53, "n_embd": 48, "n_head": 6, "n_layer": 5, "n_positions": 97}
EXPERTS = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    **{"num_key_value_heads": 6, "kv_lora_rank": 18, "q_lora_rank": None, "qk_rope_head_dim": 6},
    **{
        "qk_nope_head_dim": 10,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
    },
    **{"topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_shared_experts": 1},
}
FALCON = {"vocab_size": 53, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6}
MAMBA_2 = {
    **{"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_expand": 2},
    **{"mamba_n_groups": 1, "mamba_ngroups": 1, "n_mamba_heads": 8},
}
GEMMA = {"vocab_size_per_layer_input": 53, "hidden_size_per_layer_input": 8, "num_hidden_layers": 12}

MODELS = {
    "multi-head: gpt2": ("gpt2", GPT),
    "multi-head: gptj": ("gptj", {**GPT, "rotary_dim": 4}),
    "multi-head: bloom": ("bloom", {"vocab_size": 53, "hidden_size": 48, "n_layer": 5, "n_head": 6}),
    "multi-head: mpt": (
        "mpt",
        {"vocab_size": 53, "d_model": 48, "n_heads": 6, "n_layers": 5, "max_seq_len": 97},
    ),
    "multi-query: gpt_bigcode": ("gpt_bigcode", {**GPT, "multi_query": True}),
    "multi-query: falcon 7b": ("falcon", {**FALCON, "multi_query": True, "new_decoder_architecture": False}),
    "repeated heads: falcon 40b": (
        "falcon",
        {**FALCON, "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "multi-head: falcon rw": ("falcon", {**FALCON, "multi_query": False, "new_decoder_architecture": False}),
    **{
        f"grouped: {name}": (name, WIDE)
        for name in ("llama", "olmo2", "glm", "nemotron", "gemma", "seed_oss")
    },
    **{f"grouped: {name}": (name, SMALL) for name in ("phi", "stablelm", "olmo", "granite", "cohere")},
    **{f"window everywhere: {name}": (name, LOCAL) for name in ("mistral",)},
    "window everywhere: phi3": ("phi3", {**SMALL, "sliding_window": 7}),
    "window everywhere: starcoder2": ("starcoder2", {**SMALL, "sliding_window": 7}),
    "no window: mistral": ("mistral", {**WIDE, "sliding_window": None}),
    "upper windows: qwen2": ("qwen2", {**LOCAL, "use_sliding_window": True, "max_window_layers": 2}),
    "windows off: qwen2": ("qwen2", {**LOCAL, "use_sliding_window": False, "max_window_layers": 2}),
    "upper windows: qwen3": ("qwen3", {**LOCAL, "use_sliding_window": True, "max_window_layers": 2}),
    **{
        f"pattern: {name}": (name, LOCAL) for name in ("gemma2", "gemma3_text", "cohere2", "olmo3", "exaone4")
    },
    "pattern: gpt_oss": ("gpt_oss", {**LOCAL, **EXPERTS}),
    "chunks: llama4": (
        "llama4_text",
        {**WIDE, "attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 32},
    ),
    "two geometries: gemma4": ("gemma4_text", {**LOCAL, **GEMMA, "global_head_dim": 18}),
    "equal keys and values: gemma4": (
        "gemma4_text",
        {**LOCAL, **GEMMA, "global_head_dim": 18, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "shared layers: gemma4": (
        "gemma4_text",
        {**LOCAL, **GEMMA, "global_head_dim": 18, "num_kv_shared_layers": 5},
    ),
    "long keys: mimo": (
        "mimo_v2_flash",
        {**LOCAL, **LATENT, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 24},
    ),
    **{f"latent: {name}": (name, {**SMALL, **LATENT}) for name in ("deepseek_v2", "deepseek_v3", "minicpm3")},
    "state: mamba": ("mamba", {**SMALL, "state_size": 5, "expand": 2, "conv_kernel": 4}),
    "hybrid: bamba": ("bamba", {**SMALL, **MAMBA_2, "attn_layer_indices": [2, 5]}),
    "hybrid: falcon_h1": ("falcon_h1", {**WIDE, **MAMBA_2, "mamba_d_ssm": 96}),
    "hybrid: qwen3_next": (
        "qwen3_next",
        {
            **{
                **WIDE,
                **EXPERTS,
                "num_hidden_layers": 8,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
            },
            **{"linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_conv_kernel_dim": 4},
            "shared_expert_intermediate_size": 16,
        },
    ),
    "hybrid: lfm2": ("lfm2", {**SMALL, "layer_types": ["conv", "full_attention"] * 3, "conv_L_cache": 3}),
}


def filled(model_type, config):
    """Numbers of keys and values, and of states, after a prompt and one more token."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = CONFIG_MAPPING[model_type](**config)
        torch.manual_seed(0)
        model, cache = AutoModelForCausalLM.from_config(made).eval(), DynamicCache(config=made)
        with torch.no_grad():
            cache = getattr(model(torch.arange(TOKENS)[None], use_cache=True, cache=cache), "cache", cache)
            cache = getattr(model(torch.tensor([[3]]), use_cache=True, cache=cache), "cache", cache)
    kept = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    states = [
        state
        for layer in cache.layers
        for name in ("conv_states", "recurrent_states")
        for state in getattr(layer, name, {}).values()
    ]
    return made, _numbers(kept), _numbers(states)


def _numbers(tensors):
    return sum(tensor.numel() for tensor in tensors if tensor is not None)


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_holds_the_numbers_that_were_planned(name):
    model_type, config = MODELS[name]
    made, kept, states = filled(model_type, config)
    for source in ({**config, "model_type": model_type}, json.loads(json.dumps(made.to_dict(), default=str))):
        model = find_model(source)
        planned = plan(model, context=TOKENS + 1, engine="transformers", cache="float32")
        state = [(s.count, s.recurrent_numbers, s.channels * s.kernel) for s in model.states]
        state_bytes = sum(count * (4 * recurrent + 2 * looked_at) for count, recurrent, looked_at in state)
        assert planned.bytes - state_bytes == 4 * kept
        assert sum(count * (recurrent + looked_at) for count, recurrent, looked_at in state) == states
        assert not model.bounds
