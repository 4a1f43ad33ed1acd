"""What a model's class knows beside its config.json, by ``model_type``.

Config files leave out what their class fills in: Gemma 3 4B states no number of heads at all, Gemma 2
does not say which layers are local. What is in the table below was read from the classes of
`transformers`. Two things are never filled in from a class, because files of several models share a
class and a wrong guess would be too small: the number of layers, and the width of a window.
"""

from dataclasses import dataclass
from typing import Literal

Windows = Literal["none", "all", "upper", "pattern", "chunks"]
"""Which layers look at a window of tokens when the file has no list of layer types.

none     no layer, even where the file has a ``sliding_window``
all      every layer, where the file gives a window
upper    layers from ``max_window_layers`` on, where ``use_sliding_window`` is true
pattern  all but each ``period``-th layer
chunks   the same with ``attention_chunk_size``: a token sees its own chunk
"""

Structure = Literal["decoder", "latent", "encoder-decoder", "speech", "encoder", "unknown"]


@dataclass(frozen=True)
class Family:
    """What is true of all models of a type.

    Parameters
    ----------
    structure : str
        ``latent`` keeps one compressed vector per token (MLA).
    windows : str
    period : int
        Of a pattern: every ``period``-th layer sees all tokens.
    head_dim : int, optional
        D where the file leaves it out; E / H when ``None``.
    widened_head_dim : int
        What D often is in spite of E / H; a file without D is then counted with the larger of both.
    heads : (int, int), optional
        H and G where the file gives neither.
    max_context : int, optional
        Where the file leaves it out.
    state : str, optional
        The kind of fixed state some layers keep, by its name in `qkv.planner.recurrence.STATES`.
    has_attention : bool
        Whether any layer keeps keys and values.
    attention_everywhere : bool
        Whether layers with a fixed state keep keys and values too.
    grouped : bool
        Whether a model of this type can have fewer key heads than query heads.
    """

    structure: Structure = "decoder"
    windows: Windows = "none"
    period: int = 0
    head_dim: int | None = None
    widened_head_dim: int = 0
    heads: tuple[int, int] | None = None
    max_context: int | None = None
    state: str | None = None
    has_attention: bool = True
    attention_everywhere: bool = False
    grouped: bool = True


def _named(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


FAMILIES: dict[str, Family] = {
    **_named(
        "gpt2 gptj gpt_neox codegen opt bloom persimmon biogpt xglm baichuan xverse qwen",
        Family(grouped=False),
    ),
    **_named(
        "llama mpt phi stablelm olmo olmo2 olmoe granite granitemoe granitemoeshared cohere arcee apertus "
        "internlm2 dbrx exaone bitnet smollm3 nanochat deepseek minicpm chatglm openelm gpt_bigcode hunyuan "
        "mllama_text_model",
        Family(),
    ),
    "falcon": Family(max_context=2048),
    **_named(
        "glm glm4 internlm3 helium nemotron ernie4_5 seed_oss minimax_m2 qwen3_vl_text qwen3_vl_moe_text "
        "ministral3",
        Family(head_dim=128),
    ),
    **_named("glm4_moe ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe", Family(widened_head_dim=128)),
    "gemma": Family(head_dim=256, max_context=8192),
    **_named("mistral mixtral phi3 phimoe starcoder2 ministral", Family(windows="all")),
    **_named("qwen2 qwen2_moe qwen2_vl_text qwen2_5_vl_text dots1", Family(windows="upper")),
    "qwen3": Family(windows="upper", head_dim=128),
    "qwen3_moe": Family(windows="upper", widened_head_dim=128),
    **_named("gemma2 vaultgemma", Family(windows="pattern", period=2, head_dim=256, max_context=8192)),
    "gemma3_text": Family(windows="pattern", period=6, head_dim=256, heads=(8, 4), max_context=131_072),
    "gemma3n_text": Family(windows="pattern", period=5, head_dim=256, heads=(8, 2), max_context=32_768),
    "gemma4_text": Family(windows="pattern", period=6, head_dim=256, max_context=131_072),
    "gpt_oss": Family(windows="pattern", period=2, head_dim=64, max_context=131_072),
    **_named("cohere2 exaone4", Family(windows="pattern", period=4, widened_head_dim=128)),
    "afmoe": Family(windows="pattern", period=4, head_dim=128),
    "olmo3": Family(windows="pattern", period=4),
    "llama4_text": Family(windows="chunks", period=4, head_dim=128, heads=(40, 8)),
    **_named("mimo_v2_flash mimo_v2", Family(windows="pattern", period=6, head_dim=192)),
    **_named("deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite longcat_flash minicpm3", Family("latent")),
    **_named("deepseek_v32 glm_moe_dsa", Family("latent")),
    **_named("mamba falcon_mamba", Family(state="mamba", has_attention=False)),
    "mamba2": Family(state="mamba2", has_attention=False),
    "jamba": Family(state="mamba"),
    **_named("bamba granitemoehybrid", Family(state="mamba2")),
    "nemotron_h": Family(state="mamba2", head_dim=128),
    "falcon_h1": Family(state="mamba2", attention_everywhere=True),
    "zamba2": Family(state="mamba2"),
    **_named("qwen3_next qwen3_5_text qwen3_5_moe_text", Family(state="delta", head_dim=256)),
    **_named("lfm2 lfm2_moe", Family(state="convolution")),
    "recurrent_gemma": Family(state="gated", head_dim=256),
    **_named("t5 mt5 umt5 longt5 switch_transformers", Family("encoder-decoder")),
    **_named("bart mbart m2m_100 marian pegasus blenderbot plbart", Family("encoder-decoder")),
    "whisper": Family("speech"),
    **_named("bert roberta distilbert electra deberta-v2 modernbert xlm-roberta albert", Family("encoder")),
}
"""Every model type whose cache is known exactly."""

LANGUAGE_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
"""Under which names a model of several parts holds its language model."""

SECTION_TYPES = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""The type of a model's language part where the part does not say; also for files without parts."""

SPELLINGS = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "num_query_groups", "num_attention_groups"),
    "hidden_size": ("n_embd", "d_model", "model_dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    "head_dim": ("attention_head_dim", "kv_channels", "d_kv"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx"),
}
"""Older and other names of the same fields."""

UNSEEN_STATE_WORDS = (
    "ssm", "mamba", "conv", "linear_attn", "linear_num", "wkv", "recurrent", "lru", "state_size", "kda"
)  # fmt: skip
"""Words in a file's field names that speak of memory beside keys and values."""
