"""From scores to weights that sum to one, and the normaliser that makes partial results mergeable."""

from qkv.ops.arrays import array_namespace, narrow, widen
from qkv.shapes import Array, LogSumExp, Scores


def softmax(x: Array, axis: int = -1) -> Array:
    """Turn scores into weights: positive numbers that sum to one along ``axis``.

    ``softmax(x)_i = exp(x_i) / sum_j exp(x_j)``, computed after subtracting the maximum, which
    changes nothing but keeps ``exp`` from overflowing. A row of nothing but ``-inf`` may choose
    nothing: its weights are all 0, not NaN.

    Parameters
    ----------
    x : Array
        Scores of any shape; float16 and bfloat16 are summed in float32.
    axis : int
        The axis along which the weights sum to one.

    Returns
    -------
    Array
        Weights of the same shape and dtype.

    Raises
    ------
    TypeError
        If ``x`` is not floating point.

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.array([0.0, np.log(3.0)])).tolist()
    [0.25, 0.75]
    >>> softmax(np.array([-np.inf, -np.inf])).tolist()
    [0.0, 0.0]
    """
    xp = array_namespace(x)
    shifted = xp.moveaxis(widen(x, "x"), axis, -1)
    weights, _ = normalise(shifted)
    return narrow(xp.moveaxis(weights, -1, axis), x.dtype)


def normalise(scores: Scores, sinks: Array | None = None) -> tuple[Scores, LogSumExp]:
    """Return the softmax over the last axis and the log of its denominator.

    Parameters
    ----------
    scores : (..., S)
        Scores; ``-inf`` = hidden.
    sinks : (..., 1), optional
        One more logit per row that takes part in the denominator and selects no value.

    Returns
    -------
    weights : (..., S)
    log_sum_exp : (...)
        ``-inf`` where nothing may be seen.

    Examples
    --------
    >>> import numpy as np
    >>> weights, lse = normalise(np.log(np.array([1.0, 2.0])), sinks=np.log(np.array([5.0])))
    >>> weights.round(3).tolist(), np.exp(lse).round(3).item()
    ([0.125, 0.25], 8.0)
    """
    xp = array_namespace(scores)
    highest = row_max(scores) if sinks is None else xp.maximum(row_max(scores), sinks)
    shift = finite_shift(highest)
    exponentials = xp.exp(scores - shift)
    denominator = xp.sum(exponentials, axis=-1, keepdims=True)
    if sinks is not None:
        denominator = denominator + xp.exp(sinks - shift)
    weights = exponentials / nonzero(denominator)
    return weights, log_sum_exp(highest, denominator)[..., 0]


def row_max(scores: Scores) -> Array:
    """Return the largest score of each row, ``(..., 1)``; ``-inf`` for a row without keys."""
    xp = array_namespace(scores)
    if scores.shape[-1] == 0:
        return xp.full((*scores.shape[:-1], 1), -xp.inf, dtype=scores.dtype)
    return xp.max(scores, axis=-1, keepdims=True)


def finite_shift(highest: Array) -> Array:
    """Return what to subtract before ``exp``: the row maximum, or 0 for a row that sees nothing.

    ``-inf - (-inf)`` would be NaN; ``exp(-inf - 0)`` is the 0 that is meant.
    """
    xp = array_namespace(highest)
    return xp.where(highest == -xp.inf, 0.0, highest)


def nonzero(denominator: Array) -> Array:
    """Return the denominator with 1 in place of 0, so that a row that sees nothing gives 0/1 = 0."""
    return array_namespace(denominator).where(denominator == 0, 1.0, denominator)


def log_sum_exp(highest: Array, denominator: Array) -> Array:
    """Return ``log(sum(exp(scores)))`` from a row's maximum and its shifted sum."""
    return highest + array_namespace(denominator).log(nonzero(denominator))
