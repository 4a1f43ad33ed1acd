"""Transformer attention you can read, see, measure and run.

The public names, in the order in which a token meets them. Each is loaded when it is first asked for, so
that a plan does not wait for the models, nor a formula for the planner.
"""

# ruff: noqa: I001 - the order is the lesson: text, tokens, the formula, memory, models, generation

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for readers and type checkers; when running, `__getattr__` finds them by `_HOMES`
    from qkv.tokens import Tokenizer as Tokenizer
    from qkv.ops import (
        softmax as softmax,
        causal_mask as causal_mask,
        window_mask as window_mask,
        alibi_slopes as alibi_slopes,
        attend as attend,
        scaled_dot_product_attention as scaled_dot_product_attention,
        merge_attended as merge_attended,
    )
    from qkv.ops.backend import use_backend as use_backend
    from qkv.ops.sampling import Sampling as Sampling
    from qkv.cache import ContiguousCache as ContiguousCache
    from qkv.models import (
        MultiHeadAttention as MultiHeadAttention,
        CachedMultiHeadAttention as CachedMultiHeadAttention,
        load as load,
        new_cache as new_cache,
        load_cache as load_cache,
    )
    from qkv.planner import plan as plan
    from qkv.engine import (
        Engine as Engine,
        compare as compare,
        generate as generate,
    )
    from qkv.errors import (
        QKVError as QKVError,
        ShapeError as ShapeError,
        OptionError as OptionError,
        PromptError as PromptError,
        CheckpointError as CheckpointError,
        NumericError as NumericError,
        CacheFull as CacheFull,
        CacheFileError as CacheFileError,
        TrimError as TrimError,
        PlanError as PlanError,
        CheckpointWarning as CheckpointWarning,
    )

_HOMES = {
    "Tokenizer": "qkv.tokens",
    "softmax": "qkv.ops",
    "causal_mask": "qkv.ops",
    "window_mask": "qkv.ops",
    "alibi_slopes": "qkv.ops",
    "attend": "qkv.ops",
    "scaled_dot_product_attention": "qkv.ops",
    "merge_attended": "qkv.ops",
    "use_backend": "qkv.ops.backend",
    "Sampling": "qkv.ops.sampling",
    "ContiguousCache": "qkv.cache",
    "MultiHeadAttention": "qkv.models",
    "CachedMultiHeadAttention": "qkv.models",
    "load": "qkv.models",
    "new_cache": "qkv.models",
    "load_cache": "qkv.models",
    "plan": "qkv.planner",
    "Engine": "qkv.engine",
    "compare": "qkv.engine",
    "generate": "qkv.engine",
    "QKVError": "qkv.errors",
    "ShapeError": "qkv.errors",
    "OptionError": "qkv.errors",
    "PromptError": "qkv.errors",
    "CheckpointError": "qkv.errors",
    "NumericError": "qkv.errors",
    "CacheFull": "qkv.errors",
    "CacheFileError": "qkv.errors",
    "TrimError": "qkv.errors",
    "PlanError": "qkv.errors",
    "CheckpointWarning": "qkv.errors",
}
"""The module of each public name."""

_PACKAGES = (
    "tokens",
    "ops",
    "compat",
    "cache",
    "models",
    "training",
    "planner",
    "engine",
    "lab",
    "errors",
    "shapes",
)
"""What can be reached without an import of its own, as in ``qkv.compat.torch_sdpa``."""

if not TYPE_CHECKING:  # type checkers take it from the imports
    __all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a name; from then on it is an attribute like any other."""
    if name in _PACKAGES:
        return import_module(f"qkv.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PACKAGES})
