"""Which library an array belongs to, which float types attention takes, which one it adds up in."""

from functools import cache
from typing import Any

import array_api_compat
import numpy as np

from qkv.shapes import Array

ACCUMULATES_IN = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
}


def array_namespace(*arrays: Array) -> Any:
    """Return the library the arrays belong to, by the names of the Array API.

    NumPy, which has those names itself, is recognised at once: a decode step asks hundreds of times.
    """
    for array in arrays:
        if type(array) is not np.ndarray:
            return array_api_compat.array_namespace(*arrays)
    return np


def dtype_name(array: Array) -> str:
    """Name an array's dtype without its library: ``torch.bfloat16`` gives ``bfloat16``."""
    return _name_of(type(array.dtype), array.dtype)


@cache
def _name_of(_kind: type, dtype: Any) -> str:  # by kind too: dtypes of two libraries refuse comparison
    return str(dtype).rpartition(".")[2]


def accumulation_dtype(array: Array, role: str) -> Any:
    """Return the dtype that sums over ``array`` are kept in: float32, or float64 for float64.

    A product of two float16 numbers can exceed float16's largest (65504); in float32 it cannot.
    """
    name = dtype_name(array)
    if name not in ACCUMULATES_IN:
        raise TypeError(
            f"{role} must be float64, float32, float16 or bfloat16, not {name}; "
            f"convert it first, for example to float32"
        )
    return getattr(array_namespace(array), ACCUMULATES_IN[name])


def widen(array: Array, role: str) -> Array:
    """Return ``array`` in its accumulation dtype, itself when it is there already."""
    return narrow(array, accumulation_dtype(array, role))


def narrow(array: Array, dtype: Any) -> Array:
    """Return ``array`` in ``dtype``, itself when it is there already."""
    return array if array.dtype == dtype else array_namespace(array).astype(array, dtype)
