"""Other libraries' attention by their own names: their layouts, masks, alignments and hidden rows.

Each adapter takes arrays of any kind and imports nothing of the library it is named after.
"""

from qkv.compat.flash_attn import flash_attn, flash_attn_varlen
from qkv.compat.jax import jax_attention
from qkv.compat.onnx import onnx_attention
from qkv.compat.onnx_rotary import onnx_rotary_embedding
from qkv.compat.torch import torch_sdpa

__all__ = [
    "flash_attn",
    "flash_attn_varlen",
    "jax_attention",
    "onnx_attention",
    "onnx_rotary_embedding",
    "torch_sdpa",
]
