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
)

PER_ROW, PER_CHANNEL, PER_GROUP = "per row", "per channel", "per group"


class Codes(NamedTuple):
    """How a row of codes is read that are floats.

    Attributes
    ----------
    load : Load
        Reads a vector of codes.
    code_bytes : int
        From one code to the next.
    unit : float
        How many times a number what is read of its code is, a power of two that products make up for.
    in_pairs : bool
        Whether two neighbouring vectors are less work at once, where a register holds their codes as
        integers of 16 bits.
    """

    load: Load
    code_bytes: int = 1
    unit: float = 1.0
    in_pairs: bool = False

    @property
    def bits(self) -> int:
        """Of a code."""
        return 8 * self.code_bytes


class IntegerCodes(NamedTuple):
    """How a row of integer codes is read.

    Attributes
    ----------
    most : int
        The largest code; negative ones reach as far, if there are any.
    steps : str
        What belongs to a code beside it. `PER_ROW`: a factor of its row. `PER_CHANNEL`: a factor of its
        channel in a page, and what a code 0 stands for. `PER_GROUP`: the same of `GROUP` channels of its row.
    is_signed : bool
    halves : int
        2 where a row's first half is in the low bits of its bytes and the second in the high ones, or 1.
    """

    most: int
    steps: str
    is_signed: bool = False
    halves: int = 1

    @property
    def bits(self) -> int:
        """Of a code."""
        return 8 // self.halves


INTEGERS: Mapping[str, tuple[IntegerCodes, IntegerCodes]] = {
    "int8": (IntegerCodes(127, PER_ROW, is_signed=True), IntegerCodes(127, PER_ROW, is_signed=True)),
    "int8-kivi": (IntegerCodes(255, PER_CHANNEL), IntegerCodes(127, PER_ROW, is_signed=True)),
    "int4": (IntegerCodes(15, PER_CHANNEL, halves=2), IntegerCodes(15, PER_GROUP, halves=2)),
}
"""Keys and values of the elements whose codes are whole numbers."""


def _both(codes: Codes) -> tuple[Codes, Codes]:
    return codes, codes


CODES: Mapping[str, tuple[Codes, Codes]] = {
    "fp16": _both(Codes(half_numbers, 2)),
    "bf16": _both(Codes(bfloat16_numbers, 2)),
    "fp8-e4m3": _both(Codes(e4m3_numbers, unit=E4M3_UNIT, in_pairs=True)),
    "fp8-e5m2": _both(Codes(e5m2_numbers, in_pairs=True)),
}
"""Keys and values of the elements whose codes are floats, in the formats of `qkv.cache.elements`."""
