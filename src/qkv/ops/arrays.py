"""Which float types attention takes, and which type it adds up in."""

from typing import Any

from array_api_compat import array_namespace

from qkv.shapes import Array

ACCUMULATES_IN = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
}


def dtype_name(array: Array) -> str:
    """Name an array's dtype without its library: ``torch.bfloat16`` gives ``bfloat16``."""
    return str(array.dtype).rpartition(".")[2]


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
    xp = array_namespace(array)
    return xp.astype(array, accumulation_dtype(array, role), copy=False)


def narrow(array: Array, dtype: Any) -> Array:
    """Return ``array`` in ``dtype``, itself when it is there already."""
    return array_namespace(array).astype(array, dtype, copy=False)
