"""Amounts of memory and speed as people write them: 80GiB, 3.35TB/s, 990TFLOP/s."""

import re
from dataclasses import dataclass

from qkv.errors import PlanError

MIB, GIB = 2**20, 2**30

_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)
_BINARY = {f"{letter}ib": 2 ** (10 * power) for power, letter in enumerate("kmgt", start=1)}
_DECIMAL = {f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", start=1)}
_BYTES = {"": 1, "b": 1, "bytes": 1, **_BINARY, **_DECIMAL}
_LARGEST = 2**60
"""An exbibyte: more is a slip of the keyboard."""


def parse_bytes(amount: int | str) -> int:
    """Return an amount of memory in bytes.

    Parameters
    ----------
    amount : int or str
        Bytes, or a number with a unit: GiB is 2**30 bytes and GB 10**9, likewise for K, M and T.

    Raises
    ------
    PlanError
        If it is no positive amount, or its unit could mean either, like G alone.

    Examples
    --------
    >>> parse_bytes("80GiB"), parse_bytes("1.5 GB"), parse_bytes(4096)
    (85899345920, 1500000000, 4096)
    >>> parse_bytes("24G")
    Traceback (most recent call last):
    qkv.errors.PlanError: expected memory such as 80GiB (2**30 bytes each) or 80GB (10**9), not '24G'
    """
    if type(amount) is int and 1 <= amount <= _LARGEST:
        return amount
    found = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
    unit = _BYTES.get(found[2].lower()) if found else None
    if found is None or unit is None or not 1 <= float(found[1]) * unit <= _LARGEST:
        shown = repr(amount) if isinstance(amount, str | float) else f"this {type(amount).__name__}"
        raise PlanError(f"expected memory such as 80GiB (2**30 bytes each) or 80GB (10**9), not {shown}")
    return int(found[1]) * unit if found[1].isdigit() else int(float(found[1]) * unit)


def parse_memory(amount: int | str) -> int:
    """Return the memory of a device in bytes: as `parse_bytes`, but a few bytes in text want their unit.

    Raises
    ------
    PlanError
        If it is no amount, or a text without a unit that would be less than a MiB.

    Examples
    --------
    >>> parse_memory("80GiB"), parse_memory(80), parse_memory("80 bytes")
    (85899345920, 80, 80)
    >>> parse_memory("80")
    Traceback (most recent call last):
    qkv.errors.PlanError: expected memory with its unit, such as 80GiB, not '80', which is 80 bytes
    """
    size = parse_bytes(amount)
    if isinstance(amount, str) and size < MIB and not any(map(str.isalpha, amount)):
        raise PlanError(
            f"expected memory with its unit, such as {amount.strip()}GiB, not {amount!r}, "
            f"which is {size} bytes"
        )
    return size


def parse_rate(rate: float | str, unit: str) -> float:
    """Return a speed in bytes or operations a second.

    Parameters
    ----------
    rate : float or str
        Per second, or a number with a unit, such as ``3.35TB/s`` or ``990TFLOP/s``.
    unit : {"B/s", "FLOP/s"}

    Raises
    ------
    PlanError
        If it is no positive speed of that unit.

    Examples
    --------
    >>> parse_rate("3.35TB/s", "B/s"), parse_rate("990 TFLOP/s", "FLOP/s")
    (3350000000000.0, 990000000000000.0)
    """
    pattern = rf"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*(?:([KMGTP]?){unit}|)\s*"
    found = re.fullmatch(pattern, str(rate), re.IGNORECASE | re.ASCII)
    if found is None or float(found[1]) <= 0:
        raise PlanError(f"expected a speed such as 50G{unit}, not {rate!r}")
    return float(found[1]) * 1000.0 ** " KMGTP".index((found[2] or " ").upper())


def show_bytes(amount: int) -> str:
    """Return an amount in both kinds of unit.

    Examples
    --------
    >>> show_bytes(53_687_091_200), show_bytes(131_072), show_bytes(917)
    ('50.00 GiB (53.69 GB)', '128.00 KiB (131.07 kB)', '917 bytes')
    """
    for binary, decimal, power in (("GiB", "GB", 3), ("MiB", "MB", 2), ("KiB", "kB", 1)):
        if amount >= 1024**power:
            return f"{amount / 1024**power:,.2f} {binary} ({amount / 1000**power:,.2f} {decimal})"
    return f"{amount} bytes"


@dataclass(frozen=True)
class Units:
    """A pair of units for the columns of a table: 1024 and 1000 to some power."""

    binary: str
    decimal: str
    power: int

    def show(self, amount: int, *widths: int) -> str:
        """Return an amount in both, each right-aligned in so many columns."""
        first, second = widths
        return f"{amount / 1024**self.power:{first},.2f} {amount / 1000**self.power:{second},.2f}"


def units_for(amount: int) -> Units:
    """Return the units in which a table reads well whose amounts are about this.

    Examples
    --------
    >>> units_for(53_687_091_200).show(27_682_406_400, 8, 9)
    '   25.78     27.68'
    >>> units_for(491_520).binary
    'MiB'
    """
    return Units("GiB", "GB", 3) if amount >= GIB // 10 else Units("MiB", "MB", 2)
