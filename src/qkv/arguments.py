"""What a caller may give: one check for each kind of argument, in the same words everywhere."""

import math
from operator import index
from reprlib import repr as short_repr
from typing import Any

from qkv.errors import OptionError, ShapeError


def whole_number(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Return a whole number of Python, NumPy or another library as an int.

    Parameters
    ----------
    name : str
        What a message calls it.
    value : int
        ``True``, which Python counts as 1, is none, nor is 2.0.
    least, most : int
        ``None`` is no upper limit.

    Raises
    ------
    OptionError
        If it is no whole number, or beyond the limits.

    Examples
    --------
    >>> whole_number("max_tokens", 7, least=1)
    7
    >>> whole_number("max_tokens", 2.5, least=1)
    Traceback (most recent call last):
    qkv.errors.OptionError: max_tokens must be a whole number, at least 1, not 2.5
    """
    number = as_whole(value)
    if number is None or number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        kind = "" if number is not None else "a whole number, "
        raise OptionError(f"{name} must be {kind}{limits}, not {shown(value)}")
    return number


def as_whole(value: Any) -> int | None:
    """Return a whole number as an int, ``None`` if it is none."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def finite_number(name: str, value: Any) -> float:
    """Return a number as a float.

    Raises
    ------
    OptionError
        If it is none, such as ``True`` or ``"1"``, or infinite or NaN.
    """
    number = as_number(value)
    if number is None or not math.isfinite(number):
        raise OptionError(f"{name} must be a finite number, not {shown(value)}")
    return number


def as_number(value: Any) -> float | None:
    """Return a number as a float, ``None`` if it is none."""
    if isinstance(value, bool | str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def check_array(name: str, value: Any, axes: str) -> None:
    """Raise `ShapeError` unless a value is an array of some library; ``axes`` says of which shape."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        advice = f"; np.asarray({name}) makes one" if isinstance(value, list | tuple) else ""
        raise ShapeError(f"{name} must be an array {axes}, not {shown(value)}{advice}")


def shown(value: Any) -> str:
    """Return a value for a message: in one line, and not longer than one reads.

    Examples
    --------
    >>> shown("int8"), shown([1.5] * 100)
    ("'int8'", '[1.5, 1.5, 1.5, 1.5, 1.5, 1.5, ...]')
    """
    if shape := getattr(value, "shape", ()):
        return f"an array {tuple(shape)}"
    return " ".join(short_repr(value).split())
