"""The compiled path: NumPy float32 arrays, handed to the kernels."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.ops.backend import is_compiled
from qkv.ops.operands import Operands
from qkv.shapes import Array, LogSumExp


def takes(operands: Operands) -> bool:
    """Whether the kernels run this call: NumPy, in float32, and not turned off."""
    return type(operands.q) is np.ndarray and operands.q.dtype == np.float32 and is_compiled()


def attend_compiled(operands: Operands, **cut: Any) -> tuple[Array, LogSumExp]:
    """Return what `attend_dense` returns, but the weights; memory does not grow with T*S.

    ``cut`` says how the work is cut, which changes no bit: see `qkv.kernels.attention.attend`.
    """
    from qkv.kernels.attention import attend  # the compiler is loaded when it is first needed

    visibility = operands.visibility
    return attend(
        operands.q,
        operands.k,
        operands.v,
        scale=operands.scale,
        softcap=operands.softcap,
        left=visibility.left,
        right=visibility.right,
        mask=visibility.mask,
        bias=operands.bias,
        offsets=visibility.offsets,
        q_lengths=visibility.q_lengths,
        kv_lengths=visibility.kv_lengths,
        slopes=_flat(operands.slopes),
        sinks=_flat(operands.sinks),
        **cut,
    )


def takes_plainly(q: Array, k: Array, v: Array) -> bool:
    """Whether the kernels run a call whose rules are numbers only, without looking at it closely again."""
    arrays = q, k, v
    return (
        all(type(x) is np.ndarray and x.dtype == np.float32 and x.ndim == 4 for x in arrays) and is_compiled()
    )


def attend_plainly(q: Array, k: Array, v: Array, **rules: Any) -> tuple[Array, LogSumExp]:
    """Return what `attend_compiled` does for causal, window, scale and softcap; checked once per shape.

    A short text is done in less time than its arguments take to check.
    """
    from qkv.kernels.attention import attend

    return attend(q, k, v, **_checked(q.shape, k.shape, v.shape, **rules))


@lru_cache(maxsize=256, typed=True)
def _checked(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...], **rules: Any
) -> dict[str, Any]:
    """Check shapes and rules against each other and return what the kernels are told of them."""
    q, k, v = (np.broadcast_to(np.float32(0), shape) for shape in (q_shape, k_shape, v_shape))
    operands = Operands.of(q, k, v, **rules)
    seen = operands.visibility
    return {
        "scale": operands.scale,
        "softcap": operands.softcap,
        "left": seen.left,
        "right": seen.right,
        "offsets": seen.offsets,
    }


def _flat(per_head: Array | None) -> NDArray[Any] | None:
    return None if per_head is None else per_head.reshape(-1)
