"""What every model family offers, whatever is inside."""

import hashlib
from typing import Protocol

import numpy as np

from qkv.cache import Cache, PagedCache, PagePool, Policy, Rotation
from qkv.cache.contiguous import CacheShape
from qkv.shapes import Array, Logits, TokenIds, Visible
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

    def logits(self, ids: TokenIds, cache: Cache | None = None, mask: Visible | None = None) -> Logits:
        """Return the logits of the token after each id: ``(T, V)`` or ``(B, T, V)``."""
        ...

    def next_logits(self, ids: TokenIds, cache: Cache | None = None, mask: Visible | None = None) -> Logits:
        """Return only the logits after each row's last token: ``(V,)`` or ``(B, V)``."""
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
    return PagedCache(
        model.cache_shape,
        policy,
        batch_size,
        pool=pool,
        rotation=model.rotation,
        fingerprint=model.fingerprint,
    )


def fingerprint_of(config: object, *weights: Array) -> str:
    """Return a short text that differs for models of another config or with other weights.

    Looks at the first numbers of each weight given.
    """
    digest = hashlib.sha256(repr(config).encode())
    for weight in weights:
        digest.update(np.ascontiguousarray(weight.reshape(-1)[:4096]).tobytes())
    return digest.hexdigest()[:32]
