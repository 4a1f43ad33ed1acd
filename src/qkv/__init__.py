"""Transformer attention you can read, see, measure and run.

The public names, in the order in which a token meets them.
"""

# ruff: noqa: I001, RUF022 - the order is the lesson: text, tokens, the formula, memory, models, generation

from qkv.tokens import Tokenizer
from qkv.ops import (
    softmax,
    causal_mask,
    window_mask,
    alibi_slopes,
    attend,
    scaled_dot_product_attention,
    merge_attended,
)
from qkv.ops.backend import use_backend
from qkv.ops.sampling import Sampling
from qkv.cache import ContiguousCache
from qkv.models import MultiHeadAttention, CachedMultiHeadAttention, load, new_cache, load_cache
from qkv.planner import plan
from qkv.engine import Engine, compare, generate
from qkv.errors import (
    QKVError,
    ShapeError,
    OptionError,
    PromptError,
    CheckpointError,
    NumericError,
    CacheFull,
    CacheFileError,
    TrimError,
    PlanError,
    CheckpointWarning,
)

__all__ = [
    "Tokenizer",
    "softmax",
    "causal_mask",
    "window_mask",
    "alibi_slopes",
    "attend",
    "scaled_dot_product_attention",
    "merge_attended",
    "use_backend",
    "Sampling",
    "ContiguousCache",
    "MultiHeadAttention",
    "CachedMultiHeadAttention",
    "load",
    "new_cache",
    "load_cache",
    "plan",
    "Engine",
    "compare",
    "generate",
    "QKVError",
    "ShapeError",
    "OptionError",
    "PromptError",
    "CheckpointError",
    "NumericError",
    "CacheFull",
    "CacheFileError",
    "TrimError",
    "PlanError",
    "CheckpointWarning",
]
