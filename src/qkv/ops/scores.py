"""How well each query matches each key: scaled dot products, capped, biased, masked."""

import math

from qkv.errors import OptionError
from qkv.ops.arrays import array_namespace
from qkv.ops.operands import Operands
from qkv.shapes import Keys, Queries, Scores, Visible


def dot_products(q: Queries, k: Keys) -> Scores:
    """Return ``q k^T``, each key head serving its H/G neighbouring query heads.

    The H/G query heads of a group are stacked along T, so one product per key head reads each
    key once and no key is repeated in memory.
    """
    xp = array_namespace(q, k)
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    products = xp.reshape(q, (B, G, H // G * T, D)) @ xp.matrix_transpose(k)
    return xp.reshape(products, (B, H, T, S))


def softcapped(scores: Scores, softcap: float) -> Scores:
    """Squeeze scores smoothly into (-softcap, softcap): ``c tanh(x / c)`` (Gemma 2)."""
    return softcap * array_namespace(scores).tanh(scores / softcap)


def masked_scores(operands: Operands, queries: slice, keys: slice) -> tuple[Scores, Visible | None]:
    """Return the scores of a rectangle of queries and keys, ``-inf`` where hidden, and what is visible.

    The order is the promise: scale, softcap, bias, and only then the mask. Capping after masking
    would turn ``-inf`` into ``-c`` and show what was hidden.
    """
    xp = array_namespace(operands.q)
    scores = dot_products(operands.q[:, :, queries, :], operands.k[:, :, keys, :]) * operands.scale
    if operands.softcap is not None:
        scores = softcapped(scores, operands.softcap)
    visible = operands.visibility.tile(queries, keys)
    bias = operands.bias_tile(queries, keys)
    if bias is not None:
        scores = scores + bias
        # A bias of -inf hides its slot as a mask does, so that a NaN there is not read either.
        visible = bias != -xp.inf if visible is None else visible & (bias != -xp.inf)
    return (scores if visible is None else xp.where(visible, scores, -xp.inf)), visible


def alibi_slopes(num_heads: int) -> list[float]:
    """Return one slope per head for a penalty that grows with distance (ALiBi).

    Powers of two take a geometric series; other head counts take the series of the power of two
    below, then every other slope of the one above (Press et al. 2022, and the authors' code).

    Parameters
    ----------
    num_heads : int
        H, at least 1.

    Returns
    -------
    list of float
        H slopes; ``attend(..., alibi_slopes=xp.asarray(slopes))`` adds ``-slope * distance``.

    Raises
    ------
    OptionError
        If ``num_heads`` is less than 1.

    Examples
    --------
    >>> alibi_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    if num_heads < 1:
        raise OptionError(f"alibi_slopes needs at least one head, not {num_heads}")
    below = 2 ** int(math.log2(num_heads))
    return _geometric_slopes(below) + _geometric_slopes(2 * below)[::2][: num_heads - below]


def _geometric_slopes(num_heads: int) -> list[float]:
    return [2.0 ** (-8.0 * (head + 1) / num_heads) for head in range(num_heads)]
