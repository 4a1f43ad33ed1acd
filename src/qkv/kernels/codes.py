"""How rows of codes become numbers, for each element that pages can hold."""

from collections.abc import Mapping
from typing import NamedTuple

from qkv.kernels.widening import (
    E4M3_UNIT,
    Load,
    bfloat16_numbers,
    e4m3_numbers,
    e5m2_numbers,
    half_numbers,
    high_nibbles,
    high_nibbles_in_place,
    int8_numbers,
    low_nibbles,
    uint8_numbers,
)

EXACT, PER_ROW, PER_CHANNEL, PER_GROUP = "exact", "per row", "per channel", "per group"


class Codes(NamedTuple):
    """How a row of D codes is read.

    Attributes
    ----------
    loads : tuple of Load
        Reads a vector of codes. Where there are two, a row's first half is in the low bits of its bytes and
        the second in the high ones.
    code_bytes : int
        From one code to the next of the same half.
    steps : str
        What belongs to row r and channel d beside the code, in float32. `EXACT`: nothing. `PER_ROW`: a factor
        ``steps[r]``. `PER_CHANNEL`: a factor ``steps[d]`` and what is added, ``steps[D + d]``. `PER_GROUP`:
        a factor ``steps[r, d // GROUP, 0]`` of a block of rows, and what is added beside it.
    units : tuple of float
        How many times a code what is read of it is, for each half. Factors are told in so many parts; where
        there are none, it is a power of two that products make up for.
    in_pairs : bool
        Whether two neighbouring vectors are less work at once, where a register holds their codes as
        integers of 16 bits.
    """

    loads: tuple[Load, ...]
    code_bytes: int = 1
    steps: str = EXACT
    units: tuple[float, ...] = (1, 1)
    in_pairs: bool = False

    @property
    def halves(self) -> int:
        """2 where two codes share a byte, or 1."""
        return len(self.loads)


def _both(codes: Codes) -> tuple[Codes, Codes]:
    return codes, codes


CODES: Mapping[str, tuple[Codes, Codes]] = {
    "fp16": _both(Codes((half_numbers,), 2)),
    "bf16": _both(Codes((bfloat16_numbers,), 2)),
    "fp8-e4m3": _both(Codes((e4m3_numbers,), units=(E4M3_UNIT, E4M3_UNIT), in_pairs=True)),
    "fp8-e5m2": _both(Codes((e5m2_numbers,), in_pairs=True)),
    "int8": _both(Codes((int8_numbers,), steps=PER_ROW)),
    "int8-kivi": (Codes((uint8_numbers,), steps=PER_CHANNEL), Codes((int8_numbers,), steps=PER_ROW)),
    "int4": (
        Codes((low_nibbles, high_nibbles_in_place), steps=PER_CHANNEL, units=(1, 16)),
        Codes((low_nibbles, high_nibbles), steps=PER_GROUP),
    ),
}
"""Keys and values of each element, in the formats of `qkv.cache.elements`."""
