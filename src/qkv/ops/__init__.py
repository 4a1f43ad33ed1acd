"""The maths: stateless functions on plain arrays, one step per file."""

from qkv.ops.attention import attend, merge_attended, scaled_dot_product_attention
from qkv.ops.masks import causal_mask, window_mask
from qkv.ops.scores import alibi_slopes
from qkv.ops.weights import softmax

__all__ = [
    "alibi_slopes",
    "attend",
    "causal_mask",
    "merge_attended",
    "scaled_dot_product_attention",
    "softmax",
    "window_mask",
]
