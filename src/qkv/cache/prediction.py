"""How many bytes a cache will take, from sizes and policy alone, before anything is allocated."""

from functools import cache

import numpy as np

from qkv.cache.contiguous import CacheShape
from qkv.cache.layout import PageLayout
from qkv.cache.policy import Policy
from qkv.cache.retention import layer_budgets
from qkv.cache.tables import Counts
from qkv.cache.windows import head_windows, pages_behind


@cache
def page_layout(shape: CacheShape, policy: Policy) -> PageLayout:
    """Return the layout of a policy's pages for a model's keys and values."""
    return PageLayout(
        policy.element,
        policy.page_size,
        shape.head_dim,
        shape.value_size,
        shares_values=shape.shares_values,
        tracks=policy.eviction is not None,
    )


def predicted_nbytes(
    shape: CacheShape,
    policy: Policy,
    num_tokens: int,
    prompt_tokens: int | None = None,
    model_windows: Counts | None = None,
) -> int:
    """Return the bytes of one sequence's pages once it has ``num_tokens``.

    Counts whole pages of ``P`` tokens for each layer and key head.

    Parameters
    ----------
    shape : CacheShape
    policy : Policy
    num_tokens : int
    prompt_tokens : int, optional
        How many of them came in the first step, the others one by one; all when left out. It matters
        only where tokens are evicted.
    model_windows : (L,) int64, optional
        The model's own, by layer.

    Examples
    --------
    100 tokens of LLaMA 3 8B in int8: 7 pages for each of 32 x 8 key heads, of 16 tokens of 2 x 128 codes
    and two scales of 4 bytes.

    >>> predicted_nbytes(CacheShape(32, 8, 128), Policy.parse("int8"), 100)
    7569408
    >>> 7 * 32 * 8 * 16 * (2 * 128 + 8)
    7569408
    """
    layout = page_layout(shape, policy)
    open_nbytes = layout.while_filling.nbytes
    if policy.keeps_all and model_windows is None:
        full, rest = divmod(num_tokens, layout.P)
        return shape.num_layers * shape.num_kv_heads * (full * layout.nbytes + (rest > 0) * open_nbytes)
    held = held_tokens(shape, policy, num_tokens, num_tokens if prompt_tokens is None else prompt_tokens)
    full, rest = np.divmod(held, layout.P)
    num_pages = full - dropped_pages(shape, policy, num_tokens, model_windows)
    return int(num_pages.sum()) * layout.nbytes + int((rest > 0).sum()) * open_nbytes


def held_tokens(shape: CacheShape, policy: Policy, num_tokens: int, prompt_tokens: int) -> Counts:
    """Return how many slots each layer and key head uses, ``(L, G)``, those behind a window counted."""
    L, G, P, eviction = shape.num_layers, shape.num_kv_heads, policy.page_size, policy.eviction
    if eviction is None:
        return np.full((L, G), num_tokens)
    budgets = np.array(layer_budgets(eviction.name, eviction.budget, L, policy.sinks))
    later = num_tokens - prompt_tokens
    if not eviction.acts_every_step:
        most = budgets if prompt_tokens > 1 else np.full(L, prompt_tokens)
        held = np.minimum(prompt_tokens, most) + later
    else:
        begun = np.where(prompt_tokens >= budgets + P, budgets, prompt_tokens)
        over = begun + later - budgets
        held = np.where(over >= P, budgets + over % P, begun + later)
    return np.broadcast_to(held[:, None], (L, G))


def dropped_pages(
    shape: CacheShape, policy: Policy, num_tokens: int, model_windows: Counts | None = None
) -> Counts:
    """Return how many pages have fallen behind each head's window, ``(L, G)``, those of sinks kept."""
    windows, first_keys = head_windows(policy, shape.num_layers, shape.num_kv_heads)
    if policy.eviction is not None:
        return np.zeros_like(windows)
    if model_windows is not None:
        windows = np.minimum(windows, model_windows[:, None])
    first, end = pages_behind(np.full_like(windows, num_tokens), windows, first_keys, policy.page_size)
    return end - first
