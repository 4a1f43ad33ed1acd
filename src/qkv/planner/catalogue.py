"""Well-known models by name, so that a question about one needs no file."""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from qkv.errors import PlanError


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return every known model: a short name to its ``hub`` id and the ``config`` fields that matter.

    Examples
    --------
    >>> catalogue()["llama-3-8b"]["config"]["num_key_value_heads"]
    8
    """
    return MappingProxyType(json.loads(files("qkv.planner").joinpath("catalogue.json").read_text("utf-8")))


def catalogue_name(name: str) -> str | None:
    """Return the short name of a model given by that or by its hub id; ``None`` if it is not known.

    Examples
    --------
    >>> catalogue_name("Llama-3-8B"), catalogue_name("meta-llama/Meta-Llama-3-8B"), catalogue_name("mine")
    ('llama-3-8b', 'llama-3-8b', None)
    """
    wanted = name.lower()
    if wanted in catalogue():
        return wanted
    return next((short for short, entry in catalogue().items() if entry["hub"].lower() == wanted), None)


def unknown_name(name: str) -> PlanError:
    """Return the error for a name that is neither in the catalogue nor a file."""
    close = difflib.get_close_matches(name.lower(), catalogue(), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}" if close else "`qkv plan --models` lists the known ones"
    return PlanError(
        f"{name[:80]!r} is no model known here and no file; {hint}; "
        "or give a folder, a config.json, a .gguf file, or a hub id (needs the extra: pip install 'qkv[hub]')"
    )
