"""One call of each operation, on NumPy inputs that a test turns into arrays of another library."""

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from attention_paths import normal, tiled_by
from qkv.ops import (
    attend,
    causal_mask,
    merge_attended,
    scaled_dot_product_attention,
    softmax,
    window_mask,
)
from qkv.ops.embedding import embed
from qkv.ops.latent import AbsorbedWeights, attend_absorbed, attend_up_projected
from qkv.ops.logits import unembed
from qkv.ops.mlp import gated_mlp, gelu, gelu_tanh, mlp, silu
from qkv.ops.norm import layer_norm, rms_norm
from qkv.ops.projection import merge_heads, project, split_heads
from qkv.ops.rotary import rotary_frequencies, rotary_table, rotate, scale_yarn

B, H, G, T, S, D, WIDE, E, F, V = 2, 6, 3, 5, 7, 8, 13, 6, 11, 17

Q, K, VALUES = normal(1, B, H, T, D), normal(2, B, G, S, D), normal(3, B, G, S, WIDE)
MASK = np.random.default_rng(4).random((B, 1, T, S)) < 0.7
BIAS = np.where(MASK[:1], normal(5, H, T, S), -np.inf)
PER_HEAD = normal(6, H) ** 2
X, W_IN, W_GATE_UP, W_OUT = normal(7, B, T, E), normal(8, F, E), normal(9, 2 * F, E), normal(10, E, F)
GRID = np.linspace(-9, 9, 41)
LENGTHS = {"q_lengths": [T, 3], "kv_lengths": [4, S]}


def every_rule(run: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a call by ``run`` with all rules of `attend` at once."""

    def call(q: Any, k: Any, v: Any, mask: Any, bias: Any, sinks: Any, slopes: Any) -> Any:
        return run(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            causal=True,
            window=4,
            scale=0.4,
            softcap=3.0,
            sinks=sinks,
            alibi_slopes=slopes,
            **LENGTHS,
            **options,
        )

    return call


def rotated(x: Any, positions: Any) -> tuple[Any, ...]:
    """Return ``x`` turned as both pairings and as a part, by a plain and by a YaRN table."""
    plain = rotary_table(rotary_frequencies(x.shape[-1]), positions)
    yarn = rotary_table(scale_yarn(4, 10000.0, 4.0, 64), positions)
    return rotate(x, *plain), rotate(x, *plain, interleaved=True), rotate(x, *yarn)


def latent(q_nope: Any, q_rope: Any, keys: Any, w_kv: Any) -> tuple[Any, Any]:
    """Return latent attention in both of its forms."""
    weights = AbsorbedWeights.of(w_kv, H, q_nope.shape[-1])
    absorbed = attend_absorbed(q_nope, q_rope, keys, weights, attend)
    return absorbed, attend_up_projected(q_nope, q_rope, keys, w_kv, attend)


ALL_RULES = Q, K, VALUES, MASK, BIAS, PER_HEAD, PER_HEAD
LATENTS = normal(12, B, H, T, 7), normal(13, B, H, T, 4), normal(14, B, 1, S, 11 + 4), normal(15, H * 12, 11)
POSITIONS = np.array([40, 0, 7, 7, 100])

CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "attend": (attend, (Q, K, VALUES)),
    "attend by all rules": (every_rule(attend, return_weights=True, return_lse=True), ALL_RULES),
    "attend in tiles": (tiled_by(3, 4), (Q, K, VALUES)),
    "attend in tiles by all rules": (every_rule(tiled_by(3, 4)), ALL_RULES),
    "attend to no key": (tiled_by(3, 4), (Q, K[:, :, :0], VALUES[:, :, :0])),
    "scaled dot product": (scaled_dot_product_attention, (Q, K, VALUES, MASK)),
    "latent attention": (latent, LATENTS),
    "merge": (merge_attended, (VALUES, K[..., 0], VALUES[::-1], K[..., 1])),
    "softmax": (lambda x: softmax(x, axis=1), (BIAS,)),
    "rotate": (rotated, (Q, POSITIONS)),
    "rms norm": (lambda x, weight: rms_norm(x, weight, 1e-6), (X, X[0, 0])),
    "layer norm": (lambda x, weight, bias: layer_norm(x, weight, bias, 1e-6), (X, X[0, 0], X[0, 1])),
    "project": (project, (X, W_IN, W_IN[:, 0])),
    "heads": (lambda x: (split_heads(x, 3), merge_heads(split_heads(x, 3))), (X,)),
    "mlp": (mlp, (X, W_IN, W_OUT, W_IN[:, 0], X[0, 0])),
    "gated mlp": (gated_mlp, (X, W_GATE_UP, W_OUT)),
    "silu": (silu, (GRID,)),
    "gelu": (gelu, (GRID,)),
    "gelu tanh": (gelu_tanh, (GRID,)),
    "logits": (unembed, (X, normal(11, V, E))),
}
"""Calls that take float arrays first and whose results are differentiable in them."""

WHOLE_NUMBERS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "embed": (embed, (np.array([[16, 0, 3], [3, 3, 1]]), normal(11, V, E))),
    "causal mask": (lambda x: causal_mask(T, S, xp=array_namespace(x)), (X,)),
    "window mask": (lambda x: window_mask(T, S, window=3, xp=array_namespace(x)), (X,)),
    "rotary table": (lambda positions: rotary_table(rotary_frequencies(6), positions), (POSITIONS,)),
}
"""Calls on ids and positions, and calls that give booleans."""


def flat(result: Any) -> list[Any]:
    """Return the arrays of a result: those of a tuple, or the one there is."""
    return list(result) if isinstance(result, tuple) else [result]
