"""What every model family offers, whatever is inside."""

import hashlib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qkv.arguments import shown
from qkv.cache import Cache, PagedCache, PagePool, Policy, Rotation, StepCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import OptionError
from qkv.models.weights import weights_of
from qkv.ops.projection import is_packed
from qkv.shapes import Array, Hidden, Logits, TokenIds, Visible
from qkv.tokens import Tokenizer


class Model(Protocol):
    """A language model: ids in, logits out, with or without a cache."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Text to ids and back; ``None`` if the folder has no tokenizer.json."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        ...

    @property
    def context_length(self) -> int:
        """How many tokens the model was made for."""
        ...

    @property
    def vocab_size(self) -> int:
        """V, how many ids there are."""
        ...

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache for this model must hold."""
        ...

    @property
    def rotation(self) -> Rotation | None:
        """How keys are turned by their positions; ``None`` if they are not, or not as a whole."""
        ...

    @property
    def fingerprint(self) -> str:
        """Tells this model's saved caches from another's."""
        ...

    def logits(self, ids: TokenIds, cache: StepCache | None = None, mask: Visible | None = None) -> Logits:
        """Return the logits of the token after each id: ``(T, V)`` or ``(B, T, V)``."""
        ...

    def next_logits(self, ids: TokenIds, cache: Cache | None = None, mask: Visible | None = None) -> Logits:
        """Return only the logits after each row's last token, 0 where it has none: ``(V,)`` or ``(B, V)``."""
        ...

    def hidden(self, ids: TokenIds, cache: StepCache | None = None) -> Hidden:
        """Return what the output head reads, ``(T, E)`` or ``(B, T, E)``, for whoever needs few logits."""
        ...

    def unembed(self, x: Hidden) -> Logits:
        """Return the logits ``(..., V)`` that belong to vectors ``(..., E)`` from `hidden`."""
        ...


def new_cache(
    model: Model, policy: Policy | str = "", batch_size: int = 1, *, pool: PagePool | None = None
) -> PagedCache:
    """Return an empty KV cache that fits a model.

    Parameters
    ----------
    model : Model
    policy : Policy or str
        What is kept of a text and in what form, such as ``"int8,window=1024,sinks=4"``; everything, in
        float32, when left out. `qkv.cache.policy` has the table.
    batch_size : int
        B, how many sequences step together.
    pool : PagePool, optional
        Where its pages come from, which may be shared and have a budget; one of its own when left out.

    Returns
    -------
    PagedCache
        Grows as tokens come; ``cache.nbytes`` is what it takes, ``cache.length`` what it has seen.

    Raises
    ------
    OptionError
        If the policy contradicts itself, or does not fit the model.
    """
    check_model(model)
    return PagedCache(
        model.cache_shape,
        policy,
        batch_size,
        pool=pool,
        rotation=model.rotation,
        fingerprint=model.fingerprint,
    )


def load_cache(model: Model, path: str | Path, *, pool: PagePool | None = None) -> PagedCache:
    """Return a KV cache as `PagedCache.save` left it: it goes on where it was, with the same bits.

    Parameters
    ----------
    model : Model
        The one that the cache was of.
    path : str or Path
    pool : PagePool, optional
        Where its pages come from; one of its own when left out.

    Returns
    -------
    PagedCache
        Of the policy and with the sequences that were saved.

    Raises
    ------
    CacheFileError
        If the file is missing, damaged, no saved cache, or one of another model.
    CacheFull
        If it does not fit into the pool's budget; then the pool is as it was.

    Examples
    --------
    ::

        cache.save("chat.safetensors")
        cache = qkv.load_cache(model, "chat.safetensors")
    """
    check_model(model)
    return PagedCache.load(
        path, model.cache_shape, pool=pool, rotation=model.rotation, fingerprint=model.fingerprint
    )


def check_model(model: Any) -> None:
    """Raise `OptionError` unless something is a model, and not the name of one."""
    if not hasattr(model, "cache_shape"):
        one = repr(model) if isinstance(model, str) else "'verse'"
        raise OptionError(f"a model is what qkv.load returns, not {shown(model)}; try qkv.load({one})")


def fingerprint_of(model: Any) -> str:
    """Return a short text that differs for models of another config or with other weights.

    It is the same in every process. Looks at some rows of every weight: what a layer keeps of a token
    depends on all of them that come before.
    """
    digest = hashlib.sha256(_described(model.config).encode())
    for weight in weights_of(model):
        digest.update(_some_rows(weight).tobytes())
    return digest.hexdigest()[:32]


def _some_rows(weight: Array) -> NDArray[np.float32]:
    """Return rows from the first to the last, the same whether they are laid out for the kernels or not.

    They are spread evenly, for several maps may stand one below the other.
    """
    num_rows, width = weight.shape[0], weight.shape[-1]
    count = min(num_rows, max(32, 4096 // width))
    rows = np.linspace(0, num_rows - 1, count).astype(np.int64)
    return np.ascontiguousarray(weight.rows(rows) if is_packed(weight) else weight[rows], np.float32)


def _described(value: object) -> str:
    """Return a config as text; a function in it by its name, for its address is another each time."""
    if is_dataclass(value):
        parts = (f"{field.name}={_described(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return getattr(value, "__qualname__", None) or repr(value)
