"""What one call of `attend` works on: checked, widened, four axes each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from array_api_compat import device

from qkv.arguments import as_number, check_array, finite_number, shown
from qkv.errors import OptionError, ShapeError
from qkv.ops.arrays import array_namespace, dtype_name, widen
from qkv.ops.masks import (
    Causal,
    Visibility,
    Window,
    check_broadcast,
    check_mask,
    slice_broadcast,
)
from qkv.shapes import Array, Keys, Queries, Values, Visible


class AttendOptions(TypedDict, total=False):
    """The rules `attend` takes besides q, k and v; its docstring explains each."""

    mask: Array | None
    bias: Array | None
    causal: Causal
    window: Window
    scale: float | None
    softcap: float | None
    sinks: Array | Sequence[float] | None
    alibi_slopes: Array | Sequence[float] | None
    q_lengths: Sequence[int] | None
    kv_lengths: Sequence[int] | None


@dataclass(frozen=True)
class Operands:
    """Queries, keys and values with every rule of the call, ready for the dense or the tiled path.

    ``q`` is ``(B, H, T, D)``, ``k`` and ``v`` are ``(B, G, S, D)``, all in the accumulation dtype.
    """

    q: Queries
    k: Keys
    v: Values
    scale: float
    softcap: float | None
    bias: Array | None
    slopes: Array | None
    """ALiBi slopes, ``(1, H, 1, 1)``."""
    sinks: Array | None
    """Sink logits, ``(1, H, 1, 1)``."""
    visibility: Visibility

    @classmethod
    def of(
        cls,
        q: Array,
        k: Array,
        v: Array,
        *,
        mask: Visible | None = None,
        bias: Array | None = None,
        causal: Causal = False,
        window: Window = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Array | Sequence[float] | None = None,
        alibi_slopes: Array | Sequence[float] | None = None,
        q_lengths: Sequence[int] | None = None,
        kv_lengths: Sequence[int] | None = None,
    ) -> "Operands":
        """Check the arguments of `attend` against each other and bring them into one form."""
        check_shapes(q, k, v)
        check_same_dtype(q, k, v)
        q, k, v = (_four_axes(widen(x, name)) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        B, H, T, D = q.shape
        shape = (B, H, T, k.shape[2])
        return cls(
            q,
            k,
            v,
            scale=D**-0.5 if scale is None else finite_number("scale", scale),
            softcap=None if softcap is None else _checked_cap(softcap),
            bias=None if bias is None else _checked_bias(bias, shape, like=q),
            slopes=_per_head("alibi_slopes", alibi_slopes, H, like=q),
            sinks=_per_head("sinks", sinks, H, like=q),
            visibility=Visibility.of(
                q,
                k,
                mask=None if mask is None else check_mask(mask, shape),
                causal=causal,
                window=window,
                q_lengths=q_lengths,
                kv_lengths=kv_lengths,
            ),
        )

    @property
    def num_queries(self) -> int:
        """T."""
        return self.q.shape[2]

    @property
    def num_keys(self) -> int:
        """S."""
        return self.k.shape[2]

    def bias_tile(self, queries: slice, keys: slice) -> Array | None:
        """Return what is added to a rectangle of scores: the bias plus the ALiBi penalty."""
        bias = None if self.bias is None else slice_broadcast(self.bias, queries, keys)
        if self.slopes is None:
            return bias
        xp = array_namespace(self.q)
        distance = xp.astype(xp.abs(self.visibility.distance(queries, keys)), self.q.dtype)
        penalty = -self.slopes * distance
        return penalty if bias is None else bias + penalty


def check_shapes(q: Array, k: Array, v: Array) -> None:
    """Raise `ShapeError` unless q ``(B, H, T, D)``, k ``(B, G, S, D)`` and v ``(B, G, S, D)`` fit.

    Leading axes may be absent, from all three alike. The values' D may differ from the keys'.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_array(name, x, "(B, H, T, D)" if name == "q" else "(B, G, S, D)")
    got = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.ndim == k.ndim == v.ndim and 2 <= q.ndim <= 4):
        raise ShapeError(f"q, k and v must all have 2, 3 or 4 axes ending in (positions, D), not {got}")
    if q.shape[-1] == 0:
        raise ShapeError(f"the head size D, the last axis of q and k, must be at least 1: {got}")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"q and k must share the head size D, their last axis: {got}")
    if k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"k and v must share the key positions S, their second last axis: {got}")
    if k.shape[:-2] != v.shape[:-2]:
        raise ShapeError(f"k and v must share the batch and the key heads G: {got}")
    if q.ndim == 4 and q.shape[0] != k.shape[0]:
        raise ShapeError(f"q, k and v must share the batch B, their first axis: {got}")
    if q.ndim > 2 and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        raise ShapeError(
            f"the query heads H = {q.shape[-3]} must be a multiple of the key heads G = {k.shape[-3]}: {got}"
        )


def check_same_dtype(q: Array, k: Array, v: Array) -> None:
    """Raise `TypeError` unless the three share one dtype."""
    names = [dtype_name(x) for x in (q, k, v)]
    if len(set(names)) > 1:
        raise TypeError(f"q, k and v must share one dtype, not {', '.join(names)}; convert them first")


def _four_axes(x: Array) -> Array:
    return array_namespace(x).reshape(x, (1,) * (4 - x.ndim) + tuple(x.shape))


def _checked_cap(softcap: float) -> float:
    cap = as_number(softcap)
    if cap is None or not 0 < cap < math.inf:
        raise OptionError(f"softcap must be positive and finite, not {shown(softcap)}; None means no cap")
    return cap


def _checked_bias(bias: Array, shape: tuple[int, int, int, int], like: Array) -> Array:
    check_array("bias", bias, "that broadcasts to (B, H, T, S)")
    if dtype_name(bias) == "bool":
        raise TypeError("bias is added to the scores and must be floating point; a bool array goes to mask=")
    return _as(check_broadcast("bias", widen(bias, "bias"), shape), like)


def _per_head(name: str, values: Array | Sequence[float] | None, H: int, like: Array) -> Array | None:
    if values is None:
        return None
    xp = array_namespace(like)
    if isinstance(values, list | tuple):
        numbers = [as_number(value) for value in values]
        if None in numbers:
            raise ShapeError(f"{name} must be numbers, one per query head, not {shown(values)}")
        row = xp.asarray(numbers, dtype=like.dtype, device=device(like))
    else:
        check_array(name, values, f"of one number per query head, ({H},)")
        row = _as(values, like)
    if tuple(row.shape) != (H,):
        raise ShapeError(f"{name} must hold one number per query head, ({H},), not {tuple(row.shape)}")
    return xp.reshape(row, (1, H, 1, 1))


def _as(x: Array, like: Array) -> Array:
    return array_namespace(x, like).astype(x, like.dtype, copy=False)
