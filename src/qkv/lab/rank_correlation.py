"""Whether two lists of numbers put the same things first."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Return the rank of each of N numbers from 0; equal numbers share their mean rank.

    Examples
    --------
    >>> ranks([0.5, 0.1, 0.5]).tolist()
    [1.5, 0.0, 1.5]
    """
    x = np.asarray(values)
    below = (x[:, None] > x).sum(axis=-1)
    alike = (x[:, None] == x).sum(axis=-1)
    return below + (alike - 1) / 2


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Return Spearman's rank correlation, from -1 to 1; 0 where one list is all alike.

    Examples
    --------
    >>> spearman([1, 2, 3], [10, 20, 400]), spearman([1, 2, 3], [3, 2, 1]), spearman([1, 2], [5, 5])
    (1.0, -1.0, 0.0)
    """
    x, y = (ranks(values) - ranks(values).mean() for values in (one, other))
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else 0.0


def kendall(one: ArrayLike, other: ArrayLike) -> float:
    """Return Kendall's tau-b: pairs in the same order less those in opposite; 0 where a list is all alike.

    Examples
    --------
    >>> kendall([1, 2, 3, 4], [1, 2, 4, 3])  # five pairs agree, one does not
    0.6666666666666666
    """
    x, y = (np.sign(np.subtract.outer(values, values)) for values in (np.asarray(one), np.asarray(other)))
    pairs = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / pairs if pairs else 0.0


def partial_spearman(one: ArrayLike, other: ArrayLike, given: ArrayLike) -> float:
    """Return how two lists go together beyond what both owe to a third; 0 where it explains one wholly.

    Examples
    --------
    >>> partial_spearman([1, 2, 3, 4], [2, 1, 3, 4], given=[1, 2, 3, 4])
    0.0
    """
    between, first, second = spearman(one, other), spearman(one, given), spearman(other, given)
    rest = (1 - first**2) * (1 - second**2)
    return float((between - first * second) / np.sqrt(rest)) if rest > 1e-12 else 0.0
