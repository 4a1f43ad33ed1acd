"""A Llama of random weights, in the files that each library reads: the same numbers in all of them.

`write_folder` writes what qkv and transformers read, `write_gguf` what llama.cpp reads.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

DTYPES = {"float32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}

GGUF_KINDS = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

NORM_EPS, ROTARY_BASE = 1e-5, 10_000.0


@dataclass(frozen=True)
class Sizes:
    """By the dimension key; the head is the embedding table."""

    E: int
    L: int
    H: int
    G: int
    D: int
    F: int
    V: int
    context: int

    @property
    def parameters(self):
        a_layer = self.E * (2 * self.H * self.D + 2 * self.G * self.D + 3 * self.F + 2)
        return self.L * a_layer + self.E * (self.V + 1)


LARGE = Sizes(E=576, L=30, H=9, G=3, D=64, F=1536, V=49152, context=2048)
"""134.5 million parameters."""

SMALL = Sizes(E=128, L=4, H=4, G=2, D=32, F=384, V=1536, context=2048)
"""1 million parameters."""


def draw(sizes, seed=0):
    """Return every tensor in float32 by its name in a checkpoint; rows that keep a vector's size."""
    rng = np.random.default_rng(seed)
    E, F, heads, key_heads = sizes.E, sizes.F, sizes.H * sizes.D, sizes.G * sizes.D

    def matrix(width_out, width_in):
        return rng.standard_normal((width_out, width_in), np.float32) / np.float32(width_in**0.5)

    tensors = {"model.embed_tokens.weight": matrix(sizes.V, E)}
    for layer in range(sizes.L):
        parts = {
            "input_layernorm": np.ones(E, np.float32),
            "self_attn.q_proj": matrix(heads, E),
            "self_attn.k_proj": matrix(key_heads, E),
            "self_attn.v_proj": matrix(key_heads, E),
            "self_attn.o_proj": matrix(E, heads),
            "post_attention_layernorm": np.ones(E, np.float32),
            "mlp.gate_proj": matrix(F, E),
            "mlp.up_proj": matrix(F, E),
            "mlp.down_proj": matrix(E, F),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": array for name, array in parts.items()}
    return tensors | {"model.norm.weight": np.ones(E, np.float32)}


def write_folder(folder, sizes, tensors, dtype="float32"):
    """Write config.json and model.safetensors, all tensors in one type."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes.E,
        "num_hidden_layers": sizes.L,
        "num_attention_heads": sizes.H,
        "num_key_value_heads": sizes.G,
        "head_dim": sizes.D,
        "intermediate_size": sizes.F,
        "vocab_size": sizes.V,
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROTARY_BASE,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": {"float32": "float32", "bf16": "bfloat16"}[dtype],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    stored = {name: array.astype(DTYPES[dtype]) for name, array in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_gguf(path, sizes, tensors, kind="f32"):
    """Write a GGUF file without a vocabulary: matrices of one kind, norms in float32 always."""
    quantization, file_type = GGUF_KINDS[kind]
    writer = gguf.GGUFWriter(Path(path), "llama")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.E)
    writer.add_block_count(sizes.L)
    writer.add_feed_forward_length(sizes.F)
    writer.add_head_count(sizes.H)
    writer.add_head_count_kv(sizes.G)
    writer.add_key_length(sizes.D)
    writer.add_value_length(sizes.D)
    writer.add_rope_dimension_count(sizes.D)
    writer.add_rope_freq_base(ROTARY_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_vocab_size(sizes.V)
    writer.add_tokenizer_model("none")
    writer.add_file_type(file_type)
    for name, array in tensors.items():
        kept = quantization if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(as_gguf(name, array, sizes), kept)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def gguf_name(name):
    """Return what GGUF calls a tensor of a checkpoint: blk.3.attn_q.weight, say."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def as_gguf(name, array, sizes):
    """Return a tensor's rows in GGUF's order.

    Rotary positions turn pairs of numbers. Checkpoints pair the first half of a head with the second,
    GGUF's llama each number with its neighbour, so the rows that make queries and keys change places.
    """
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return array
    halves = array.reshape(-1, 2, sizes.D // 2, array.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
