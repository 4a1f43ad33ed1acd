"""How long a text may be in a budget: worked out from its cache's policy, before anything is allocated."""

from collections.abc import Callable

import numpy as np

from qkv.cache import PagedCache, PagePool
from qkv.models import Model


def learn_windows(model: Model, cache: PagedCache) -> None:
    """Let a cache know how far the model's layers see: it shows in a step, and bytes depend on it."""
    model.hidden(np.zeros((1, 1), np.int64), cache.beside("", pool=PagePool()))


def longest_text(cache: PagedCache, prompt_tokens: int, most: int) -> int:
    """Return how many tokens a text may have, so that its cache fits at each step on the way.

    Parameters
    ----------
    cache : PagedCache
        An empty one, whose pool nothing else is in. It never holds a text's last token, which is chosen
        when all others have been run.
    prompt_tokens : int
    most : int
        Of prompt and new tokens that are asked for: at least one more than those of the prompt.

    Returns
    -------
    int
        ``most`` if so many fit. If the prompt does not, the longest that does and one token more; 0 if
        there is none.

    Examples
    --------
    One layer with a key head of 8 numbers in int4: a page of 32 tokens takes 416 bytes, but 2,048 until it
    is full. 96 tokens are three full pages; beside those there is no room for the 97th.

    >>> from qkv.cache import CacheShape
    >>> cache = PagedCache(CacheShape(1, 1, 8), "int4", pool=PagePool(3000))
    >>> cache.predict_nbytes(32), cache.predict_nbytes(31), longest_text(cache, 7, most=100)
    (416, 2048, 97)
    """
    budget, P = cache.pool.budget_bytes, cache.policy.page_size
    if budget is None:
        return most

    def prompt_fits(num_tokens: int) -> bool:
        return cache.predict_nbytes(num_tokens, num_tokens) <= budget

    def held_fits(num_tokens: int) -> bool:
        # What was held a page of tokens before was no more than this, so these lengths speak for all.
        lengths = range(max(prompt_tokens, num_tokens - P + 1), num_tokens + 1)
        return all(cache.predict_nbytes(length, prompt_tokens) <= budget for length in lengths)

    if not prompt_fits(prompt_tokens):
        longest = _last(prompt_fits, 0, prompt_tokens)
        return longest + 1 if longest else 0
    return most if held_fits(most - 1) else 1 + _last(held_fits, prompt_tokens, most - 1)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number that fits, of which ``low`` does and ``high`` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
