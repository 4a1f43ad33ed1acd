"""How long a text may be in a budget: worked out from its cache's policy, before anything is allocated."""

from collections.abc import Callable

import numpy as np

from qkv.cache import PagedCache, PagePool
from qkv.cache.prediction import predicted_most
from qkv.models import Model


def learn_windows(model: Model, cache: PagedCache) -> None:
    """Let a cache know how far the model's layers see: it shows in a step, and bytes depend on it."""
    model.hidden(np.zeros((1, 1), np.int64), cache.beside("", pool=PagePool()))


def most_nbytes(cache: PagedCache, num_tokens: int, prompt_tokens: int) -> int:
    """Return the most bytes that a text's cache takes on its way, each step at its height.

    Parameters
    ----------
    cache : PagedCache
        An empty one of one sequence.
    num_tokens : int
        Of the text, without its last.
    prompt_tokens : int
    """
    windows = np.array(cache.keeping.model_windows) if cache.keeping.has_windows else None
    return predicted_most(cache.shape, cache.policy, num_tokens, prompt_tokens, windows)


def longest_text(cache: PagedCache, prompt_tokens: int, most: int) -> int:
    """Return how many tokens a text may have, so that its cache fits in each step on the way.

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
    is full, and both in the step that fills it. Beside two full pages there is no room for that step: 95
    tokens, and one that is chosen but not run.

    >>> from qkv.cache import CacheShape
    >>> cache = PagedCache(CacheShape(1, 1, 8), "int4", pool=PagePool(3000))
    >>> cache.predict_nbytes(32), cache.predict_nbytes(31), longest_text(cache, 7, most=100)
    (416, 2048, 96)
    """
    budget = cache.pool.budget_bytes
    if budget is None:
        return most

    def prompt_fits(num_tokens: int) -> bool:
        return most_nbytes(cache, num_tokens, num_tokens) <= budget

    def held_fits(num_tokens: int) -> bool:
        return most_nbytes(cache, num_tokens, prompt_tokens) <= budget

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
