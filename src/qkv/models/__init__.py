"""Weights and wiring, one model family per file."""

from qkv.models.deepseek import DeepSeek
from qkv.models.gpt2 import GPT2
from qkv.models.llama import Llama
from qkv.models.loading import load
from qkv.models.model import Model, load_cache, new_cache
from qkv.models.multihead import CachedMultiHeadAttention, MultiHeadAttention

__all__ = [
    "GPT2",
    "CachedMultiHeadAttention",
    "DeepSeek",
    "Llama",
    "Model",
    "MultiHeadAttention",
    "load",
    "load_cache",
    "new_cache",
]
