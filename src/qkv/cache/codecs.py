"""Three ways to store numbers in fewer bytes, on arrays: what is stored, and what comes back.

Each has the same verbs: ``forms`` says what is stored for P rows of D numbers, ``encode`` gives it for
rows ``(..., T, D)`` of float32, ``decode`` gives rows back. `qkv.cache.elements` says who uses which.
Compiled kernels give the same bits, so every step of the arithmetic below is part of the format.
Infinities and NaN go through it without a warning, as what they become is part of the format too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError

CHANNELS_PER_GROUP = 32
"""Neighbouring channels of a value that share a step."""

Parts: TypeAlias = dict[str, NDArray[Any]]
"""What is stored of some rows: ``codes``, and ``scale`` or ``step`` and ``low`` where there are any."""

Forms: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The dtype and shape of each part."""

_LARGEST_HALF = np.float32(65504)
_LARGEST_SINGLE = np.finfo(np.float32).max


@dataclass(frozen=True)
class Rounded:
    """Each number on its own, rounded to the nearest of a narrower float type, ties to even.

    Parameters
    ----------
    dtype : numpy.dtype
    largest : float, optional
        What larger numbers become; without it they become infinity.
    """

    dtype: np.dtype[Any]
    largest: float | None = None

    def forms(self, P: int, D: int) -> Forms:
        """Return dtype and shape of what is stored for P rows of D numbers."""
        return {"codes": (self.dtype, (P, D))}

    @np.errstate(over="ignore", invalid="ignore")
    def encode(self, x: NDArray[np.float32]) -> Parts:
        """Return what is stored for rows ``x`` of shape ``(..., T, D)``.

        Examples
        --------
        >>> Rounded(np.dtype(np.float16), 65504).encode(np.float32([[1.5, 1e5]]))["codes"].tolist()
        [[1.5, 65504.0]]
        """
        within = x if self.largest is None else np.clip(x, -self.largest, self.largest)
        return {"codes": within.astype(self.dtype)}

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, parts: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the rows ``(..., T, D)`` that ``parts`` stand for."""
        return parts["codes"].astype(np.float32)


@dataclass(frozen=True)
class Symmetric:
    """Whole multiples -127..127 of one float32 scale per row: ``scale = max|x| / 127``.

    A row of zeros has scale 0, and comes back as zeros.
    """

    def forms(self, P: int, D: int) -> Forms:
        """Return dtype and shape of what is stored for P rows of D numbers."""
        return {"scale": (np.dtype(np.float32), (P,)), "codes": (np.dtype(np.int8), (P, D))}

    @np.errstate(over="ignore", invalid="ignore")
    def encode(self, x: NDArray[np.float32]) -> Parts:
        """Return what is stored for rows ``x`` of shape ``(..., T, D)``; ``scale`` is ``(..., T)``.

        Examples
        --------
        >>> Symmetric().encode(np.float32([[0.5, -1.27, 0.014]]))["codes"]
        array([[  50, -127,    1]], dtype=int8)
        """
        scale = np.abs(x).max(axis=-1) / np.float32(127)  # ... T
        codes = _nearest_codes(x, scale[..., None], -127, 127)  # ... T D
        return {"scale": scale, "codes": codes.astype(np.int8)}

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, parts: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the rows ``(..., T, D)`` that ``parts`` stand for: ``code * scale`` in float32."""
        return parts["codes"].astype(np.float32) * parts["scale"][..., None]


@dataclass(frozen=True)
class Asymmetric:
    """Whole steps above the least number of a group: ``low + code * step``, codes 0..levels.

    ``low = min`` and ``step = (max - min) / levels`` are stored as float16, saturated so that they are
    finite, and the codes are worked out against what is stored. A group of equal numbers has step 0.

    Parameters
    ----------
    levels : {255, 15}
        The largest code. Two codes up to 15 share a byte: byte j of a row holds channel j in its low
        nibble and channel j + D/2 in its high nibble.
    group : {"tokens", "channels"}
        What shares a step: one channel over all the tokens of a page, or 32 neighbouring channels of
        one token (the last group may be shorter).
    """

    levels: Literal[255, 15]
    group: Literal["tokens", "channels"]

    def forms(self, P: int, D: int) -> Forms:
        """Return dtype and shape of what is stored for P rows of D numbers.

        Raises
        ------
        OptionError
            If two codes should share a byte and D is odd.
        """
        if self._packs and D % 2:
            raise OptionError(
                f"int4 stores two numbers a byte and takes an even head size D, not {D}; try int8"
            )
        grouped = (D,) if self.group == "tokens" else (P, -(-D // CHANNELS_PER_GROUP))
        half, byte = np.dtype(np.float16), np.dtype(np.uint8)
        return {
            "step": (half, grouped),
            "low": (half, grouped),
            "codes": (byte, (P, D // 2 if self._packs else D)),
        }

    @np.errstate(over="ignore", invalid="ignore")
    def encode(self, x: NDArray[np.float32]) -> Parts:
        """Return what is stored for rows ``x`` of shape ``(..., T, D)``.

        ``step`` and ``low`` are ``(..., D)`` for groups of tokens, of which ``x`` must then have the
        whole page, and ``(..., T, ceil(D / 32))`` for groups of channels.

        Examples
        --------
        >>> stored = Asymmetric(15, "tokens").encode(np.float32([[1, 8], [2, 8], [4, 8]]))
        >>> stored["step"], stored["low"]
        (array([0.2, 0. ], dtype=float16), array([1., 8.], dtype=float16))
        >>> stored["codes"]  # channel 0 in the low nibble: 0, 5, 15
        array([[ 0], [ 5], [15]], dtype=uint8)
        """
        x = np.clip(x, -_LARGEST_SINGLE, _LARGEST_SINGLE)
        least, greatest = self._reduce(np.minimum, x), self._reduce(np.maximum, x)
        step = _half((greatest - least) / np.float32(self.levels))
        low = _half(least)
        steps, lows = (self._spread(part, x.shape[-1]).astype(np.float32) for part in (step, low))
        codes = _nearest_codes(x - lows, steps, 0, self.levels).astype(np.uint8)
        return {"step": step, "low": low, "codes": _pack(codes) if self._packs else codes}

    @np.errstate(over="ignore", invalid="ignore")
    def decode(self, parts: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the rows ``(..., T, D)`` that ``parts`` stand for: ``low + code * step`` in float32.

        The product has 8 + 11 binary digits and is exact, so that a fused multiply-add gives the same bits.
        """
        codes = _unpack(parts["codes"]) if self._packs else parts["codes"]
        step, low = (self._spread(parts[name], codes.shape[-1]) for name in ("step", "low"))
        return codes.astype(np.float32) * step.astype(np.float32) + low.astype(np.float32)

    @property
    def _packs(self) -> bool:
        return self.levels == 15

    def _reduce(self, extreme: np.ufunc, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the least or greatest of each group; a 0 without its sign, as no order tells -0 from 0."""
        if self.group == "tokens":
            return extreme.reduce(x, axis=-2) + np.float32(0)
        return extreme.reduceat(x, range(0, x.shape[-1], CHANNELS_PER_GROUP), axis=-1) + np.float32(0)

    def _spread(self, part: NDArray[Any], D: int) -> NDArray[Any]:
        """Return one number per row and channel, or what broadcasts to it."""
        if self.group == "tokens":
            return part[..., None, :]
        return np.repeat(part, CHANNELS_PER_GROUP, axis=-1)[..., :D]


Codec: TypeAlias = Rounded | Symmetric | Asymmetric


def _nearest_codes(
    x: NDArray[np.float32], step: NDArray[np.float32], lowest: int, highest: int
) -> NDArray[np.float32]:
    """Return ``x / step`` as whole numbers, ties to even; 0 where the step is 0, NaN or infinite."""
    usable = np.isfinite(step) & (step > 0)
    ratio = np.divide(x, step, out=np.zeros(x.shape, np.float32), where=usable)
    return np.clip(np.rint(ratio), lowest, highest)


def _half(x: NDArray[np.float32]) -> NDArray[np.float16]:
    return np.clip(x, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)


def _pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    assert codes.shape[-1] % 2 == 0, "forms refuses an odd D"
    half = codes.shape[-1] // 2
    return codes[..., :half] | codes[..., half:] << np.uint8(4)


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
