"""What the lab says, in the languages it says it in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Language = Literal["en", "zh"]

NOT_KNOWN = "–"
"""Stands where a number was not measured."""


@dataclass(frozen=True)
class Words:
    """One sentence in English and in Chinese; braces name the numbers that go in.

    Parameters
    ----------
    en, zh : str

    Examples
    --------
    >>> grown = Words("{ratio:.1f} times as fast", "快 {ratio:.1f} 倍")
    >>> grown.say("zh", {"ratio": 7.12})
    '快 7.1 倍'
    """

    en: str
    zh: str

    def say(self, language: Language, numbers: Mapping[str, Any] | None = None) -> str:
        """Return the sentence with its numbers; with a dash alone where one of them was not measured."""
        return fill(self.zh if language == "zh" else self.en, numbers or {})


def fill(template: str, numbers: Mapping[str, Any]) -> str:
    """Return a template with its numbers, or a dash where one of them was not measured.

    Examples
    --------
    >>> fill("{peak:,.0f} bytes", {"peak": 4096.0}), fill("{peak:,.0f} bytes", {})
    ('4,096 bytes', '–')
    """
    try:
        return template.format_map(numbers)
    except KeyError:
        return NOT_KNOWN
