"""Numbers left out at random while a model learns, so that it does not lean on any single one."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError
from qkv.ops.backend import is_compiled

RANGE = 1 << 32
"""How many hashes there are."""


@dataclass(frozen=True)
class Dropout:
    """Leaves each number out with a chance of ``rate``, and scales the others up to keep the mean.

    Source: Srivastava et al. 2014; scaled while learning ("inverted"), so that a model in use needs none.

    Parameters
    ----------
    rate : float
        From 0 to below 1.
    generator : numpy.random.Generator
        Where the masks come from.

    Raises
    ------
    OptionError
        If the rate is outside its range.

    Examples
    --------
    >>> factors = Dropout(0.5, np.random.default_rng(0)).draw((2, 500))
    >>> np.unique(factors).tolist(), bool(abs(factors.mean() - 1) < 0.1)
    ([0.0, 2.0], True)
    """

    rate: float
    generator: np.random.Generator

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise OptionError(f"a dropout rate must be from 0 to below 1, not {self.rate}; try 0.1")

    def draw(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return what to multiply by, on the way there and on the way back: 1 / (1 - rate), or 0.

        The generator gives two keys; a hash of them and of a number's place says whether it stays.

        Parameters
        ----------
        shape : tuple of int

        Returns
        -------
        (shape)
        """
        first_key, second_key = self.generator.integers(0, RANGE, 2).tolist()
        size, limit = math.prod(shape), min(round(self.rate * RANGE), RANGE - 1)
        kept = 1 / (1 - self.rate)
        if is_compiled():
            from qkv.kernels.dropout import keep_factors  # the compiler is loaded when it is first needed

            return keep_factors(size, (first_key, second_key), limit, kept).reshape(shape)
        numbers = _mixed(
            _mixed(np.arange(size, dtype=np.uint32) ^ np.uint32(first_key)) + np.uint32(second_key)
        )
        return ((numbers >= limit) * np.float32(kept)).reshape(shape)


def _mixed(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return 32-bit hashes, each bit of which depends on all bits.

    Source: the last step of MurmurHash3 (Appleby 2011).
    """
    numbers = (numbers ^ (numbers >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    numbers = (numbers ^ (numbers >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return numbers ^ (numbers >> np.uint32(16))
