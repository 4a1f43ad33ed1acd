"""Rotary positions: each pair of a head's numbers turned by an angle that grows with position.

Two turned vectors match by the difference of their positions only, so attention sees distance.
Source: Su et al. 2021 (RoFormer), section 3.2.2. The scalings stretch a model trained on short
texts to longer ones by turning some pairs more slowly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from qkv.errors import OptionError, ShapeError
from qkv.ops.arrays import array_namespace, narrow, widen
from qkv.ops.compiled_steps import compiled_steps
from qkv.shapes import Array


@dataclass(frozen=True)
class Rotary:
    """How fast each pair turns, and what the turned vectors are multiplied by.

    Attributes
    ----------
    frequencies : tuple of float
        Radians per position, one per pair; twice as many numbers of each head are turned.
    magnitude : float
        Multiplies cosine and sine: 1, or YaRN's attention factor.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0

    @cached_property
    def in_numpy(self) -> NDArray[np.float32]:
        """The frequencies as an array, made once and not at each token."""
        return np.array(self.frequencies, np.float32)


def rotary_frequencies(size: int, theta: float = 10000.0) -> Rotary:
    """Return the frequencies ``theta^(-2i/size)`` of pairs i = 0 .. size/2 - 1.

    Parameters
    ----------
    size : int
        How many numbers of each head are turned: D, or less for a partial rotation. Even.
    theta : float
        The base: the larger, the more slowly the last pairs turn.

    Returns
    -------
    Rotary

    Raises
    ------
    OptionError
        If ``size`` is odd or negative.

    Examples
    --------
    >>> rotary_frequencies(4).frequencies
    (1.0, 0.01)
    """
    if size < 0 or size % 2:
        raise OptionError(f"the rotated part of a head must have an even size, not {size}")
    return Rotary(tuple(theta ** (-2 * pair / size) for pair in range(size // 2)))


def scale_linearly(rotary: Rotary, factor: float) -> Rotary:
    """Turn every pair ``factor`` times more slowly (position interpolation, Chen et al. 2023).

    Examples
    --------
    >>> scale_linearly(rotary_frequencies(4), factor=4.0).frequencies
    (0.25, 0.0025)
    """
    return Rotary(tuple(f / factor for f in rotary.frequencies), rotary.magnitude)


def scale_dynamically(size: int, theta: float, factor: float, trained_length: int, length: int) -> Rotary:
    """Raise the base as the text outgrows the length trained on (dynamic NTK).

    Up to ``trained_length`` nothing changes; beyond, the base grows so that the slowest pair just
    covers ``length``. The frequencies therefore depend on how long the text is.

    Parameters
    ----------
    size, theta
        As `rotary_frequencies`; ``size`` > 2.
    factor : float
        The stretch.
    trained_length, length : int
        Tokens trained on, tokens now.

    Returns
    -------
    Rotary

    Examples
    --------
    >>> scale_dynamically(4, 10000.0, factor=2.0, trained_length=8, length=8).frequencies
    (1.0, 0.01)
    >>> scale_dynamically(4, 10000.0, factor=2.0, trained_length=8, length=16).frequencies
    (1.0, 0.0033333333333333335)
    """
    stretch = factor * max(length, trained_length) / trained_length - (factor - 1)
    return rotary_frequencies(size, theta * stretch ** (size / (size - 2)))


def scale_llama3(
    rotary: Rotary, factor: float, low_freq_factor: float, high_freq_factor: float, trained_length: int
) -> Rotary:
    """Slow down only the pairs whose full turn is long against the length trained on (Llama 3.1).

    Pairs that turn more than ``high_freq_factor`` times within ``trained_length`` stay as they
    are, those that turn fewer than ``low_freq_factor`` times are slowed ``factor`` times, those
    between are blended.

    Parameters
    ----------
    rotary : Rotary
        The unscaled frequencies.
    factor, low_freq_factor, high_freq_factor : float
        As in the model's ``rope_scaling``.
    trained_length : int
        ``original_max_position_embeddings``.

    Returns
    -------
    Rotary

    Examples
    --------
    >>> plain = rotary_frequencies(64, theta=500000.0)
    >>> scaled = scale_llama3(plain, 32.0, 1.0, 4.0, 8192)
    >>> [round(scaled.frequencies[i] / plain.frequencies[i], 6) for i in (14, 15, 16, 17, 18)]
    [1.0, 0.605573, 0.303743, 0.103448, 0.03125]
    """

    def scaled(frequency: float) -> float:
        turns = trained_length * frequency / (2 * math.pi)
        kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        return kept * frequency + (1 - kept) * frequency / factor

    return Rotary(tuple(scaled(f) for f in rotary.frequencies), rotary.magnitude)


def scale_yarn(
    size: int,
    theta: float,
    factor: float,
    trained_length: int,
    *,
    fast_turns: float = 32.0,
    slow_turns: float = 1.0,
    magnitude: float | None = None,
    whole_pairs: bool = True,
) -> Rotary:
    """Slow down the slow pairs, keep the fast ones, and sharpen the scores a little (YaRN).

    Source: Peng et al. 2023, sections 3.2 and 3.4.

    Parameters
    ----------
    size, theta
        As `rotary_frequencies`.
    factor : float
        The stretch: new length over length trained on.
    trained_length : int
        Tokens trained on.
    fast_turns, slow_turns : float
        Pairs that turn more often than ``fast_turns`` (beta_fast) within ``trained_length`` are
        kept, those that turn less often than ``slow_turns`` (beta_slow) are slowed fully.
    magnitude : float, optional
        Multiplies cosine and sine; ``0.1 ln(factor) + 1`` when left out.
    whole_pairs : bool
        Round the borders of the blend outwards to whole pairs (``truncate``).

    Returns
    -------
    Rotary

    Examples
    --------
    >>> rotary = scale_yarn(8, 10000.0, factor=4.0, trained_length=64)
    >>> [round(f, 6) for f in rotary.frequencies], round(rotary.magnitude, 6)
    ([1.0, 0.0625, 0.0025, 0.00025], 1.138629)
    """
    plain = rotary_frequencies(size, theta).frequencies

    def pair_that_turns(times: float) -> float:
        return size * math.log(trained_length / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_that_turns(fast_turns), pair_that_turns(slow_turns)
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    span = last - first if last != first else 0.001  # avoids 0/0 where the blend has no width

    def scaled(pair: int) -> float:
        slowed = min(max((pair - first) / span, 0.0), 1.0)
        return (1 - slowed) * plain[pair] + slowed * plain[pair] / factor

    sharpened = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return Rotary(
        tuple(scaled(pair) for pair in range(size // 2)), sharpened if magnitude is None else magnitude
    )


def rotary_table(rotary: Rotary, positions: Array | Sequence[int]) -> tuple[Array, Array]:
    """Return cosine and sine of every position's angles.

    Parameters
    ----------
    rotary : Rotary
        Frequencies.
    positions : (..., T)
        Token positions, as a sequence or an array of any kind; they need not be consecutive.

    Returns
    -------
    cosines, sines : (..., T, pairs)
        float32, of the library ``positions`` came in.

    Examples
    --------
    >>> cosines, sines = rotary_table(rotary_frequencies(4), [0, 1])
    >>> cosines.round(3).tolist()
    [[1.0, 1.0], [0.5400000214576721, 1.0]]
    """
    if isinstance(positions, Sequence):
        positions = np.asarray(positions)
    xp = array_namespace(positions)
    frequencies = (
        rotary.in_numpy
        if xp is np
        else xp.asarray(rotary.frequencies, dtype=xp.float32, device=device(positions))
    )
    angles = xp.astype(positions, xp.float32)[..., None] * frequencies
    return xp.cos(angles) * rotary.magnitude, xp.sin(angles) * rotary.magnitude


def rotate(x: Array, cosines: Array, sines: Array, *, interleaved: bool = False) -> Array:
    """Turn the pairs of each head by the angles of its position.

    Parameters
    ----------
    x : (..., T, D)
        Queries or keys.
    cosines, sines : (..., T, pairs)
        From `rotary_table`; leading axes broadcast against those of ``x``. With fewer pairs than
        D/2 only the first numbers of each head are turned, the rest passes through.
    interleaved : bool
        Whether a pair is two neighbours (GPT-J, the original Llama files) rather than one number
        of each half (GPT-NeoX, Hugging Face Llama).

    Returns
    -------
    (..., T, D)
        In x's dtype.

    Raises
    ------
    ShapeError
        If there are more pairs than D/2.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> rotate(x, *rotary_table(rotary_frequencies(4), [1])).round(4)
    array([[-1.9841,  1.9599,  2.4624,  4.0198]])
    """
    xp = array_namespace(x, cosines, sines)
    pairs, D = cosines.shape[-1], x.shape[-1]
    if 2 * pairs > D:
        raise ShapeError(f"{pairs} rotary pairs need a head size of at least {2 * pairs}, not D = {D}")
    steps = compiled_steps(x, cosines, sines)
    if steps and cosines.shape == sines.shape and _spreads(cosines.shape[:-1], x.shape[:-1]):
        return steps.rotate(x, cosines, sines, interleaved=interleaved)
    wide = widen(x, "x")
    cosines, sines = narrow(cosines, wide.dtype), narrow(sines, wide.dtype)
    first, second = _pairs(wide, pairs, interleaved)
    turned = first * cosines - second * sines, first * sines + second * cosines
    parts = [_interleave(xp, *turned)] if interleaved else list(turned)
    return narrow(xp.concat([*parts, wide[..., 2 * pairs :]], axis=-1), x.dtype)


@lru_cache
def _spreads(axes: tuple[int, ...], leading: tuple[int, ...]) -> bool:
    """Whether axes broadcast to the leading ones of x, and no further."""
    beside = zip(reversed(axes), reversed(leading), strict=False)
    return len(axes) <= len(leading) and all(size in (1, along) for size, along in beside)


def _pairs(x: Array, pairs: int, interleaved: bool) -> tuple[Array, Array]:
    """Return the first and the second number of each pair: two times ``(..., T, pairs)``."""
    if interleaved:
        return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    return x[..., :pairs], x[..., pairs : 2 * pairs]


def _interleave(xp: Any, first: Array, second: Array) -> Array:
    stacked = xp.stack([first, second], axis=-1)
    return xp.reshape(stacked, (*first.shape[:-1], 2 * first.shape[-1]))
