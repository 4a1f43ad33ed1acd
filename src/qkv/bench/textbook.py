"""Attention as most people write it in NumPy."""

from functools import partial

import numpy as np

from qkv.bench.attention_work import AttentionCall, Floats, fold_groups
from qkv.bench.comparison import Way


def textbook(q: Floats, k: Floats, v: Floats, causal: bool = False) -> Floats:
    """Return softmax(q k^T / sqrt(D)) v, with every score written down.

    Parameters
    ----------
    q : (B, H, T, D)
    k, v : (B, H, S, D)
    causal : bool
        Needs T = S.

    Returns
    -------
    (B, H, T, D)

    Examples
    --------
    >>> x = np.zeros((1, 1, 2, 1), np.float32)
    >>> textbook(x, x, x + [[[[2.0], [4.0]]]], causal=True).ravel().tolist()
    [2.0, 3.0]
    """
    scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ v


def numpy_ways(call: AttentionCall, q: Floats, k: Floats, v: Floats) -> list[Way]:
    """Return the formula as a peer; grouped heads are folded, as NumPy has none."""
    if call.H == call.G:
        return [Way("NumPy", partial(textbook, q, k, v, call.causal))]
    folded = fold_groups(q, call.G)
    return [Way("NumPy", lambda: textbook(folded, k, v), "groups folded", lambda y: y.reshape(q.shape))]
