"""Linear attention: one state of fixed size in place of all keys and values.

Softmax weighs a key by ``exp(q . k)``, which has to be worked out for every pair. Let the weight be
``phi(q) . phi(k)`` instead, with a map ``phi`` to positive numbers, and what concerns the queries can be
taken out of the sums over the keys::

    o_t = sum_{s<=t} (phi(q_t) . phi(k_s)) v_s / sum_{s<=t} phi(q_t) . phi(k_s)
        = phi(q_t) A_t / (phi(q_t) . z_t)

    A_t = A_{t-1} + phi(k_t) v_t^T,   z_t = z_{t-1} + phi(k_t)

So a text of any length is remembered in ``A``, (D, D of the values), and ``z``, (D,), per head. It is another
function than softmax attention, and a model has to be trained with it: what many keys have put into one
matrix cannot all be told apart again.

Source: Katharopoulos et al. 2020 (Transformers are RNNs), sections 3.2 to 3.4.
"""

from dataclasses import dataclass
from typing import Any

from array_api_compat import device

from qkv.errors import ShapeError
from qkv.ops.arrays import array_namespace, narrow, widen
from qkv.ops.tiles import spans
from qkv.ops.weights import nonzero
from qkv.shapes import Array, Keys, Queries, Values

CHUNK = 64
"""Tokens whose weights on each other are written down at once: beyond it, the state is the cheaper way."""


@dataclass(frozen=True, eq=False)
class LinearState:
    """Everything that linear attention remembers of the tokens so far.

    Attributes
    ----------
    kv : (B, H, D, D of the values)
        ``A``, the sum of ``phi(k) v^T``.
    k : (B, H, D)
        ``z``, the sum of ``phi(k)``.
    """

    kv: Array
    k: Array

    @property
    def nbytes(self) -> int:
        """Bytes of both sums, whatever the number of tokens in them."""
        return self.kv.nbytes + self.k.nbytes


def attend_linear(
    q: Queries, k: Keys, v: Values, state: LinearState | None = None
) -> tuple[Array, LinearState]:
    """Let every query take the mean of its own and all earlier values, weighed by ``phi(q) . phi(k)``.

    A single token costs one update of the state; a longer text is worked through in chunks, inside of which
    the weights are written down.

    Parameters
    ----------
    q, k : (B, H, T, D)
        Queries and keys; each head has its own keys. Leading axes may be absent, from all alike.
    v : (B, H, T, D)
        Values, whose D may be another one.
    state : LinearState, optional
        Of the tokens before these; none when left out. It is not changed.

    Returns
    -------
    output : (B, H, T, D of the values)
        In q's dtype. A query whose weights are all 0 gets exactly 0.
    state : LinearState
        With these tokens in it; in float32, or float64 for float64.

    Raises
    ------
    ShapeError
        If q, k and v do not fit together, or the state is of other heads.
    TypeError
        If they are not of a floating dtype.

    Examples
    --------
    The second query is 1, so ``phi`` makes 2 of it, as of every number of these keys: a plain mean.

    >>> import numpy as np
    >>> ones, v = np.ones((2, 3)), np.array([[4.0], [8.0]])
    >>> output, state = attend_linear(ones, ones, v)
    >>> output.tolist(), state.k.tolist(), state.nbytes
    ([[4.0], [6.0]], [4.0, 4.0, 4.0], 48)
    """
    _check(q, k, v)
    xp = array_namespace(q, k, v)
    q_map, k_map, values = feature_map(widen(q, "q")), feature_map(widen(k, "k")), widen(v, "v")
    state = _empty(k_map, values) if state is None else _checked(state, k_map, values)
    outputs = []
    for tokens in spans(range(q.shape[-2]), CHUNK):
        output, state = _chunk(q_map[..., tokens, :], k_map[..., tokens, :], values[..., tokens, :], state)
        outputs.append(output)
    return narrow(xp.concat(outputs, axis=-2), q.dtype), state


def feature_map(x: Array) -> Array:
    """Return ``phi(x) = elu(x) + 1``, which is positive (section 3.2.1 of the paper).

    Examples
    --------
    >>> import numpy as np
    >>> feature_map(np.array([-np.log(2.0), 0.0, 2.0])).tolist()
    [0.5, 1.0, 3.0]
    """
    xp = array_namespace(x)
    return xp.where(x > 0, x + 1, xp.exp(xp.where(x > 0, xp.zeros_like(x), x)))


def _chunk(q: Array, k: Array, v: Array, state: LinearState) -> tuple[Array, LinearState]:
    """Attend to earlier chunks through their state, and within this one by its weights."""
    xp = array_namespace(q)
    weights = xp.tril(q @ xp.matrix_transpose(k))  # B H T T
    mixed = weights @ v + q @ state.kv  # B H T D
    totals = xp.sum(weights, axis=-1, keepdims=True) + q @ state.k[..., None]  # B H T 1
    grown = LinearState(state.kv + xp.matrix_transpose(k) @ v, state.k + xp.sum(k, axis=-2))
    return mixed / nonzero(totals), grown


def _empty(k: Array, v: Array) -> LinearState:
    xp = array_namespace(k)
    *leading, _, D = k.shape
    kinds: dict[str, Any] = {"dtype": k.dtype, "device": device(k)}
    return LinearState(xp.zeros((*leading, D, v.shape[-1]), **kinds), xp.zeros((*leading, D), **kinds))


def _check(q: Array, k: Array, v: Array) -> None:
    if tuple(q.shape) != tuple(k.shape) or tuple(q.shape[:-1]) != tuple(v.shape[:-1]):
        shapes = ", ".join(str(tuple(one.shape)) for one in (q, k, v))
        raise ShapeError(
            "linear attention takes q and k of one shape (B, H, T, D) and v of as many heads and tokens, "
            f"not {shapes}; repeat keys that several heads share"
        )


def _checked(state: LinearState, k: Array, v: Array) -> LinearState:
    *leading, _, D = k.shape
    wanted = (*leading, D, v.shape[-1])
    if tuple(state.kv.shape) != wanted or tuple(state.k.shape) != wanted[:-1]:
        raise ShapeError(
            f"expected a state of (B, H, D, D of the values) = {wanted}, not {tuple(state.kv.shape)}"
        )
    return state
