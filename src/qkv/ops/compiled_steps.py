"""Which of the small steps the compiled kernels run: those on NumPy float32 arrays."""

from functools import cache
from typing import Any

import numpy as np

from qkv.ops.backend import is_compiled

FLOAT32 = np.dtype(np.float32)


def compiled_steps(*arrays: Any) -> Any:
    """Return `qkv.kernels.steps` where it runs a call on these arrays, or None where the formula does.

    The kernels give a row the same bits whatever stands beside it; NumPy's sums may not.
    """
    for array in arrays:
        if type(array) is not np.ndarray or array.dtype != FLOAT32 or not array.ndim:
            return None
    return _steps() if is_compiled() else None


@cache
def _steps() -> Any:
    from qkv.kernels import steps  # the compiler is loaded when it is first needed

    return steps
