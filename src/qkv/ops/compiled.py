"""The compiled path: NumPy float32 arrays, handed to the kernels."""

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


def _flat(per_head: Array | None) -> NDArray[Any] | None:
    return None if per_head is None else per_head.reshape(-1)
