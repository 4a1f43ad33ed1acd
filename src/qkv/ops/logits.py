"""From a token's last vector to one number per vocabulary entry."""

import math

import numpy as np
from numpy.typing import NDArray

from qkv.errors import NumericError
from qkv.ops.projection import project
from qkv.shapes import Array, Hidden, Logits

Row = NDArray[np.float64]
"""(V,) logits; ``-inf`` = may not be chosen."""


def unembed(x: Hidden, head: Array) -> Logits:
    """Compare each vector with every vocabulary row: ``x W^T``.

    Parameters
    ----------
    x : (..., E)
    head : (V, E)
        The output head; the embedding table itself in a model with tied weights.

    Returns
    -------
    (..., V)

    Examples
    --------
    >>> unembed(np.array([2.0, 3.0]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).tolist()
    [2.0, 3.0, 5.0]
    """
    return project(x, head)


def logit_row(logits: NDArray) -> Row:
    """Return V logits of any float type in float64, once they have proved to be numbers.

    Raises
    ------
    NumericError
        If a logit is NaN or infinitely high, or all are infinitely low.

    Examples
    --------
    >>> logit_row(np.array([1.5, -np.inf], np.float16)).tolist()
    [1.5, -inf]
    """
    row = np.asarray(logits, np.float64)
    _check_highest(row.max())  # one NaN makes the maximum NaN
    return row


def likeliest(logits: NDArray) -> int:
    """Return the id of the highest of V logits of any float type, the first of equals.

    Raises
    ------
    NumericError
        As `logit_row`.

    Examples
    --------
    >>> likeliest(np.array([1.5, 3.0, -np.inf, 3.0], np.float16))
    1
    """
    token_id = int(np.argmax(logits))  # where there is a NaN, of the first
    _check_highest(logits[token_id])
    return token_id


def _check_highest(logit: float) -> None:
    if not math.isfinite(logit):
        raise NumericError(
            "a logit is NaN or infinitely high, or all are infinitely low, so no token can be chosen; "
            "check the model's weights"
        )
