"""What every model family offers, whatever is inside."""

from typing import Protocol

from qkv.cache import ContiguousCache
from qkv.cache.contiguous import CacheShape
from qkv.shapes import Logits, TokenIds, Visible
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

    def logits(
        self, ids: TokenIds, cache: ContiguousCache | None = None, mask: Visible | None = None
    ) -> Logits:
        """Return the logits of the token after each id: ``(T, V)`` or ``(B, T, V)``."""
        ...

    def next_logits(
        self, ids: TokenIds, cache: ContiguousCache | None = None, mask: Visible | None = None
    ) -> Logits:
        """Return only the logits after each row's last token: ``(V,)`` or ``(B, V)``."""
        ...


def new_cache(model: Model, batch_size: int = 1) -> ContiguousCache:
    """Return an empty KV cache that fits a model.

    Parameters
    ----------
    model : Model
    batch_size : int
        B, how many sequences step together.

    Returns
    -------
    ContiguousCache
        Grows as tokens come; ``cache.nbytes`` is what it takes, ``cache.length`` what it holds.
    """
    return ContiguousCache(model.cache_shape, batch_size)
