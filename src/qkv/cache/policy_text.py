"""The grammar of a policy's text: parts between commas, each a word or ``word=value``."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import TypeAlias

from qkv.errors import OptionError

HeadPattern: TypeAlias = tuple[tuple[bool, ...], ...]
"""One row per layer, or one for all; ``True`` = a full head, ``False`` = a head that is pruned."""


def read_parts(text: str, flags: Collection[str], examples: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of a text by name, with their values; ``""`` is the value of a flag.

    Parameters
    ----------
    text : str
        Empty parts of it say nothing.
    flags : names
        Those that take no value.
    examples : names and values
        Those that take one, with what a message shows as an example.

    Raises
    ------
    OptionError
        If a name is unknown or comes twice, or a value is missing or too many.

    Examples
    --------
    >>> read_parts(" window = 8, latent,", ["latent"], {"window": "1024"})
    {'window': '8', 'latent': ''}
    """
    given: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in flags and name not in examples:
            raise OptionError(f"a policy has no part named {name!r}; {nearest(name, [*flags, *examples])}")
        if name in flags and equals:
            raise OptionError(f"{name} takes no value, but came as {part!r}")
        if name in examples and not value:
            raise OptionError(f"{name} needs a value, as in {name}={examples[name]}")
        if name in given:
            raise OptionError(f"{name} comes twice in {text!r}; once is enough")
        given[name] = value
    return given


def whole_number(name: str, text: str) -> int:
    """Return the value of ``name=text``, a number written in digits alone."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise OptionError(f"{name} takes a whole number in digits, not {text!r}")
    return int(text)


def head_pattern(text: str) -> HeadPattern:
    """Return rows of digits as rows of bools.

    Examples
    --------
    >>> head_pattern("10/01")
    ((True, False), (False, True))
    """
    if not re.fullmatch("[01/]+", text):
        raise OptionError(f"heads takes rows of 1 (full) and 0 (pruned), as in heads=10/01, not {text!r}")
    return tuple(tuple(digit == "1" for digit in row) for row in text.split("/"))


def head_digits(heads: HeadPattern) -> str:
    """Return the text of a head pattern."""
    return "/".join("".join("01"[full] for full in row) for row in heads)


def nearest(name: str, names: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the known ones most like it, or all.

    Examples
    --------
    >>> nearest("fp8", ["fp8-e4m3", "fp8-e5m2"]), nearest("snpakv", ["h2o", "snapkv"])
    ("did you mean 'fp8-e4m3' or 'fp8-e5m2'?", "did you mean 'snapkv'?")
    >>> nearest("x", ["h2o", "snapkv"])
    'there are h2o, snapkv'
    """
    name = name.lower()
    begun = [known for known in names if name and known.startswith(name)]
    near = begun or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names)}"
