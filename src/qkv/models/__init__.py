"""Weights and wiring, one model family per file."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the planner reads configs without loading what runs them
    from qkv.models.deepseek import DeepSeek as DeepSeek
    from qkv.models.gpt2 import GPT2 as GPT2
    from qkv.models.llama import Llama as Llama
    from qkv.models.loading import load as load
    from qkv.models.model import Model as Model
    from qkv.models.model import load_cache as load_cache
    from qkv.models.model import new_cache as new_cache
    from qkv.models.multihead import CachedMultiHeadAttention as CachedMultiHeadAttention
    from qkv.models.multihead import MultiHeadAttention as MultiHeadAttention

_HOMES = {
    "DeepSeek": "qkv.models.deepseek",
    "GPT2": "qkv.models.gpt2",
    "Llama": "qkv.models.llama",
    "load": "qkv.models.loading",
    "Model": "qkv.models.model",
    "load_cache": "qkv.models.model",
    "new_cache": "qkv.models.model",
    "CachedMultiHeadAttention": "qkv.models.multihead",
    "MultiHeadAttention": "qkv.models.multihead",
}
"""The module of each name."""

if not TYPE_CHECKING:
    __all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a name; from then on it is an attribute like any other."""
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.models' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
