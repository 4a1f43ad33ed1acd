"""Linear maps, and the fold of a wide vector into heads and back."""

from functools import cache
from typing import TYPE_CHECKING, Any

from qkv.ops.arrays import array_namespace, dtype_name, widen
from qkv.ops.backend import is_compiled
from qkv.shapes import Array, Hidden

if TYPE_CHECKING:
    from qkv.kernels.panels import Form


def project(x: Hidden, weight: Array, bias: Array | None = None) -> Hidden:
    """Map each row linearly: ``x W^T + b``, the weight stored as checkpoints store it, out by in.

    Parameters
    ----------
    x : (..., E_in)
    weight : (E_out, E_in)
        An array, or what `prepare` made of one.
    bias : (E_out,), optional

    Returns
    -------
    (..., E_out)

    Examples
    --------
    >>> import numpy as np
    >>> project(np.array([1.0, 2.0]), np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]])).tolist()
    [1.0, 3.0, 6.0]
    """
    if is_packed(weight):
        return _matmul()(x, weight, bias)
    xp = array_namespace(x, weight)
    mapped = x @ xp.matrix_transpose(weight)
    return mapped if bias is None else mapped + bias


@cache
def _matmul() -> Any:
    from qkv.kernels.matmul import matmul  # the compiler is loaded when it is first needed

    return matmul


def prepare(weight: Array, form: "Form | None" = None) -> Any:
    """Lay a weight out as the kernels read it, where they are in use: for `project` and `embed` alone.

    Parameters
    ----------
    weight : (E_out, E_in) float32 or bfloat16
    form : "float32", "bfloat16" or "int8", optional
        How to keep it: `qkv.kernels.panels.pack` says what is lost. In its own type when left out.

    Returns
    -------
    PackedWeight or (E_out, E_in)
        Without the kernels the very numbers that are kept, in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from qkv import use_backend
    >>> with use_backend("numpy"):
    ...     prepare(np.array([[127.0, -63.6, 0.4]], np.float32), "int8").tolist()
    [[127.0, -64.0, 0.0]]
    """
    own = "bfloat16" if dtype_name(weight) == "bfloat16" else "float32"
    form = form or own
    if not is_compiled() and form in (own, "float32"):
        return widen(weight, "weight")
    from qkv.kernels.panels import pack

    packed = pack(weight, form)
    return packed if is_compiled() else packed.unpack()


def is_packed(weight: Any) -> bool:
    """Whether a weight is laid out for the kernels."""
    return hasattr(weight, "panels")


def split_heads(x: Array, num_heads: int) -> Array:
    """Fold a wide vector into heads: ``(B, T, H*D)`` to ``(B, H, T, D)``.

    Examples
    --------
    >>> import numpy as np
    >>> split_heads(np.arange(12).reshape(1, 2, 6), 3)[0, 2].tolist()
    [[4, 5], [10, 11]]
    """
    xp = array_namespace(x)
    B, T, width = x.shape
    return xp.permute_dims(xp.reshape(x, (B, T, num_heads, width // num_heads)), (0, 2, 1, 3))


def merge_heads(x: Array) -> Array:
    """Lay the heads side by side again: ``(B, H, T, D)`` to ``(B, T, H*D)``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(12).reshape(1, 2, 6)
    >>> (merge_heads(split_heads(x, 3)) == x).all().item()
    True
    """
    xp = array_namespace(x)
    B, H, T, D = x.shape
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (B, T, H * D))
