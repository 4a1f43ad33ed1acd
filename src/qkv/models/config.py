"""Read a model's config.json field by field, each checked for its type."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.errors import CheckpointError

REQUIRED = object()
"""Marks a field without a default."""


@dataclass(frozen=True)
class ConfigFields:
    """The fields of a config.json; a missing or mistyped one is an error that names it.

    A field that is ``null`` counts as missing.

    Examples
    --------
    >>> fields = ConfigFields({"hidden_size": 64, "rms_norm_eps": 1e-5})
    >>> fields.integer("hidden_size"), fields.number("rms_norm_eps"), fields.flag("attention_bias", False)
    (64, 1e-05, False)
    >>> fields.integer("num_hidden_layers")
    Traceback (most recent call last):
    qkv.errors.CheckpointError: config.json lacks num_hidden_layers, which must be a positive integer
    """

    values: Mapping[str, Any]

    def integer(self, name: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        """Return an integer of at least ``least``."""
        kind = "a positive integer" if least == 1 else f"an integer from {least} up"
        value = self._value(name, default, kind)
        if type(value) is not int or value < least:
            raise self._mistyped(name, kind, value)
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """Return a positive, finite number."""
        value = self._value(name, default, "a positive number")
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self._mistyped(name, "a positive number", value)
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self._value(name, default, "true or false")
        if type(value) is not bool:
            raise self._mistyped(name, "true or false", value)
        return value

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """Return a string."""
        value = self._value(name, default, "a string")
        if type(value) is not str:
            raise self._mistyped(name, "a string", value)
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """Return what ``choices`` holds under the field's text."""
        value = self.text(name, default)
        if value not in choices:
            raise CheckpointError(f"config.json: {name} must be one of {', '.join(choices)}, not {value!r}")
        return choices[value]

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a nested object, empty when missing."""
        value = self._value(name, {}, "an object")
        if not isinstance(value, dict):
            raise self._mistyped(name, "an object", value)
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return a list, or ``None`` when missing."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self._mistyped(name, "a list", value)
        return value

    def holds(self, name: str) -> bool:
        """Whether the field is there and not ``null``."""
        return self.values.get(name) is not None

    def _value(self, name: str, default: Any, kind: str) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"config.json lacks {name}, which must be {kind}")
        return default

    def _mistyped(self, name: str, kind: str, value: Any) -> CheckpointError:
        return CheckpointError(f"config.json: {name} must be {kind}, not {value!r}")


def head_dim_of(fields: ConfigFields, width: int, num_heads: int) -> int:
    """Return D: ``head_dim`` where the config says it, else E / H.

    Several models' heads do not add up to their width (Qwen3-4B: 32 x 128 for E = 2560).
    """
    if not fields.holds("head_dim") and width % num_heads:
        raise CheckpointError(
            f"config.json: hidden_size {width} is not a multiple of num_attention_heads {num_heads}, "
            "and there is no head_dim"
        )
    return fields.integer("head_dim", width // num_heads)
