"""The loss: how surprised a model is by the token that came, in nats."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.errors import NumericError, ShapeError
from qkv.ops.compiled_steps import compiled_steps

Floats = NDArray[np.floating]

IGNORED = -1
"""A target that is not counted, such as padding."""


def cross_entropy(logits: Floats, targets: NDArray[np.integer]) -> tuple[float, Floats]:
    """Return the mean of ``-log softmax(logits)[target]``, and its gradient, which overwrites the logits.

    ::

        d_logits = (softmax(logits) - [is the target]) / number of counted targets

    Parameters
    ----------
    logits : (..., T, V)
        Become the gradient: at B T V numbers a second copy would be the largest array of a step.
    targets : (..., T) integers
        Each from 0 to V - 1, or `IGNORED`.

    Returns
    -------
    nats : float
        Mean over the targets that are counted.
    d_logits : (..., T, V)
        ``logits`` itself, now the gradient of ``nats``; 0 where the target is ignored.

    Raises
    ------
    ShapeError
        If there is not one target for each row, or one is outside the vocabulary.
    NumericError
        If no target is counted.

    Examples
    --------
    >>> import numpy as np
    >>> nats, d_logits = cross_entropy(np.array([[0.0, 0.0], [5.0, 7.0]]), np.array([1, IGNORED]))
    >>> round(nats, 4), d_logits.tolist()
    (0.6931, [[0.5, -0.5], [0.0, 0.0]])
    """
    num_counted = _num_counted(logits, targets)
    if compiled_steps(logits) and logits.flags.carray:
        from qkv.kernels import cross_entropy as kernel  # the compiler is loaded when it is first needed

        nats = kernel.cross_entropy(*_flat(logits, targets), 1 / num_counted)
        return float(np.sum(nats, dtype=np.float64)) / num_counted, logits
    counted, chosen = _counted(targets)
    logits -= logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits)
    sums = weights.sum(axis=-1, keepdims=True)
    nats = np.log(sums) - np.take_along_axis(logits, chosen, -1)
    np.divide(weights, sums, out=logits)
    np.put_along_axis(logits, chosen, np.take_along_axis(logits, chosen, -1) - 1, -1)
    logits /= logits.dtype.type(num_counted)
    logits[~counted[..., 0]] = 0
    return float(np.sum(nats, where=counted, dtype=np.float64)) / num_counted, logits


def token_nats(logits: Floats, targets: NDArray[np.integer]) -> Floats:
    """Return ``-log softmax(logits)[target]`` for each target, 0 where it is `IGNORED`; writes no logits.

    Parameters
    ----------
    logits : (..., T, V)
    targets : (..., T) integers
        Each from 0 to V - 1, or `IGNORED`.

    Returns
    -------
    (..., T)

    Raises
    ------
    ShapeError
        If there is not one target for each row, or one is outside the vocabulary.

    Examples
    --------
    >>> import numpy as np
    >>> token_nats(np.array([[0.0, 0.0], [5.0, 7.0]]), np.array([1, IGNORED])).round(4).tolist()
    [0.6931, 0.0]
    """
    _check(logits, targets)
    if compiled_steps(logits):
        from qkv.kernels import cross_entropy as kernel  # the compiler is loaded when it is first needed

        rows, flat = _flat(np.require(logits, None, ["C", "A", "W"]), targets)
        return kernel.token_nats(rows, flat).reshape(targets.shape)
    counted, chosen = _counted(targets)
    highest = logits.max(axis=-1, keepdims=True)
    sums = np.exp(logits - highest).sum(axis=-1, keepdims=True)
    nats = np.log(sums) - (np.take_along_axis(logits, chosen, -1) - highest)
    return np.where(counted, nats, logits.dtype.type(0))[..., 0]


def _check(logits: Floats, targets: NDArray[np.integer]) -> None:
    V = logits.shape[-1]
    if logits.shape[:-1] != targets.shape:
        raise ShapeError(f"logits must be {(*targets.shape, 'V')} for these targets, got {logits.shape}")
    if targets.size and not (targets.min() >= IGNORED and targets.max() < V):
        raise ShapeError(
            f"targets must be from 0 to {V - 1}, or {IGNORED} where not counted, "
            f"but range from {targets.min()} to {targets.max()}"
        )


def _num_counted(logits: Floats, targets: NDArray[np.integer]) -> int:
    _check(logits, targets)
    count = int(np.count_nonzero(targets != IGNORED))
    if not count:
        raise NumericError(f"no target is counted, all are {IGNORED}: a mean needs at least one")
    return count


def _counted(targets: NDArray[np.integer]) -> tuple[NDArray[np.bool_], NDArray[np.integer]]:
    """Return where a target counts, and a place for each row, both (..., T, 1)."""
    counted = (targets != IGNORED)[..., None]
    return counted, np.where(counted, targets[..., None], 0)


def _flat(logits: Floats, targets: NDArray[np.integer]) -> tuple[Any, Any]:
    """Return rows of logits, which share their memory, and a target for each."""
    return logits.reshape(targets.size, logits.shape[-1]), targets.reshape(-1).astype(np.int64)
