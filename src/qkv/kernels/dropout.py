"""Which numbers are left out: a hash of their place and of a key, so that any thread can tell.

The ladder, against drawing a random number for each place (NumPy's generator, float32), by processor time
on one thread of AVX-512, all in turn within one run, for 8192 x 192 numbers: the hash in NumPy is 0.9 times
as fast, this loop, in which the compiler finds its vectors, 4.5 times. A generator's numbers come one after
another; a hash asks for no other, so that any number of threads share the work and draw the same.
"""

from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from qkv.kernels.compiler import compiled
from qkv.kernels.row_calls import ALONE_UP_TO_NUMBERS

BLOCK = 1 << 14
"""Numbers that one thread takes at a time."""


def keep_factors(size: int, keys: tuple[int, int], limit: int, kept: float) -> NDArray[np.float32]:
    """Return ``kept`` where the hash of a place reaches a limit, else 0, as `qkv.training.dropout` does.

    Parameters
    ----------
    size : int
    keys : (int, int)
    limit : int
        These three below ``2^32``.
    kept : float

    Returns
    -------
    (size,)
    """
    factors = np.empty(size, np.float32)
    draw = _draw if size > ALONE_UP_TO_NUMBERS else _draw.alone
    draw(factors, *np.array([*keys, limit], np.uint32), np.float32(kept))
    return factors


@compiled(parallel=True)
def _draw(factors: Any, first_key: Any, second_key: Any, limit: Any, kept: Any) -> None:
    for block in prange(-(-len(factors) // BLOCK)):
        start = block * BLOCK
        part = factors[start : start + BLOCK]
        for place in range(len(part)):
            number = _mixed(np.uint32(start + place) ^ first_key)
            number = _mixed(np.uint32(number + second_key))
            part[place] = kept if number >= limit else np.float32(0)


@compiled()
def _mixed(number: Any) -> Any:
    number = np.uint32((number ^ (number >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    number = np.uint32((number ^ (number >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(number ^ (number >> np.uint32(16)))
