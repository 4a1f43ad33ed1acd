"""Beginnings that requests share: one index for each size of pages."""

from qkv.cache import PagedCache, PagePool, PrefixIndex
from qkv.cache.sharing import is_shareable
from qkv.engine.requests import Choice


class SharedPrefixes:
    """Remembers what live and finished requests have read, for others that begin alike.

    Parameters
    ----------
    pool : PagePool
        Of all caches.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._indexes: dict[int, PrefixIndex] = {}

    def adopt(self, choice: Choice) -> int:
        """Let a choice with an empty cache begin with pages that are known; return how many tokens they hold.

        All but the last token may be found. None are where an eviction goes by the queries of a whole text,
        nor as long as the logits of the prompt itself are wanted.
        """
        cache, request = choice.cache, choice.request
        assert cache is not None
        if choice.wants_prompt_logprobs or not is_shareable(cache.policy):
            return 0
        return cache.adopt_prefix(self._index(cache.policy.page_size), choice.ids, salt=request.salt)

    def known_tokens(self, choice: Choice, cache: PagedCache) -> int:
        """Return how many tokens full pages are known of that a choice could begin with; takes none of them.

        Parameters
        ----------
        choice : Choice
        cache : PagedCache
            One of its policy.
        """
        index = self._indexes.get(cache.policy.page_size)
        if index is None or choice.wants_prompt_logprobs or not is_shareable(cache.policy):
            return 0
        return cache.known_prefix(index, choice.ids, salt=choice.request.salt)

    def remember(self, choice: Choice) -> None:
        """Keep the full pages of a choice's cache."""
        cache = choice.cache
        assert cache is not None
        if is_shareable(cache.policy):
            index = self._index(cache.policy.page_size)
            cache.remember_prefix(index, choice.ids, salt=choice.request.salt)

    def forget(self) -> None:
        """Give back every page that no request uses."""
        for index in self._indexes.values():
            index.clear()
        self._drop_empty()

    def check_integrity(self) -> None:
        """Raise AssertionError if what is written down in one place contradicts another."""
        for index in self._indexes.values():
            index.check_integrity()

    def _index(self, page_size: int) -> PrefixIndex:
        if page_size not in self._indexes:
            self._drop_empty()
            self._indexes[page_size] = PrefixIndex(self._pool, page_size)
        return self._indexes[page_size]

    def _drop_empty(self) -> None:
        """Let go of indexes that remember nothing: page sizes are the callers', and each asks for one."""
        for page_size, index in list(self._indexes.items()):
            if not index.num_cached_tokens:
                self._pool.dismiss(index)
                del self._indexes[page_size]
