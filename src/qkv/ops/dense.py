"""The dense path: the formula as it stands in the paper, with all T x S weights in memory."""

from array_api_compat import device, is_jax_array

from qkv.ops.arrays import array_namespace
from qkv.ops.operands import Operands
from qkv.ops.scores import masked_scores
from qkv.ops.weights import normalise
from qkv.shapes import Array, LogSumExp, Scores, Values, Visible


def attend_dense(operands: Operands) -> tuple[Array, Scores, LogSumExp]:
    """Return ``softmax(q k^T / sqrt(D)) v`` with its weights and log-sum-exp.

    Source: Vaswani et al. 2017, equation 1.
    """
    everything = slice(0, operands.num_queries), slice(0, operands.num_keys)
    scores, visible = masked_scores(operands, *everything)
    weights, lse = normalise(scores, operands.sinks)
    return mix(weights, operands.v, visible), weights, lse


def mix(weights: Scores, v: Values, visible: Visible | None) -> Array:
    """Return ``weights @ v``, in which a hidden slot contributes nothing, not even ``0 * NaN``.

    A hidden slot may be memory that was never written. Its weight is 0, but 0 times NaN is NaN,
    so non-finite values are left out of the product and put back only where they are visible.
    """
    xp = array_namespace(weights, v)
    finite = xp.isfinite(v)
    # Even where all is finite: the copy has another memory layout, and so another order of sums.
    clean = grouped_product(weights, xp.where(finite, v, 0.0))
    if not is_jax_array(v) and xp.all(finite):  # inside jax.jit no value may decide the way
        return clean
    spoilt = _visible_nonfinite(weights, v, visible)
    return xp.where(spoilt != 0, spoilt, clean)


def grouped_product(weights: Scores, v: Values) -> Array:
    """Return ``weights @ v``, each key head's values serving its H/G query heads."""
    xp = array_namespace(weights, v)
    (B, H, T, S), (_, G, _, D) = weights.shape, v.shape
    product = xp.reshape(weights, (B, G, H // G * T, S)) @ v
    return xp.reshape(product, (B, H, T, D))


def _visible_nonfinite(weights: Scores, v: Values, visible: Visible | None) -> Array:
    """Return NaN, +inf or -inf where a query sees one, and 0 elsewhere: ``(B, H, T, D)``."""
    xp = array_namespace(weights, v)
    seen = xp.ones_like(weights) if visible is None else xp.astype(visible, weights.dtype)
    seen = xp.broadcast_to(seen, weights.shape)
    nans, highs, lows = (
        grouped_product(seen, xp.astype(kind, v.dtype)) > 0
        for kind in (xp.isnan(v), v == xp.inf, v == -xp.inf)
    )
    zeros = xp.zeros(nans.shape, dtype=weights.dtype, device=device(weights))
    infinite = xp.where(highs, xp.inf, xp.where(lows, -xp.inf, zeros))
    return xp.where(nans | (highs & lows), xp.nan, infinite)
