"""How many bytes a cache will take, from sizes and policy alone, before anything is allocated."""

from functools import lru_cache

import numpy as np

from qkv.cache.contiguous import CacheShape
from qkv.cache.layout import PageLayout
from qkv.cache.policy import Policy
from qkv.cache.retention import layer_budgets
from qkv.cache.tables import Counts
from qkv.cache.windows import head_windows, pages_behind


@lru_cache(maxsize=256)
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


def predicted_most(
    shape: CacheShape,
    policy: Policy,
    num_tokens: int,
    prompt_tokens: int,
    model_windows: Counts | None = None,
) -> int:
    """Return the most bytes that one sequence's pages take at any time until it has ``num_tokens``.

    That is at the height of a step: see `predicted_height`, which takes the same.

    Examples
    --------
    Three layers of a key head, pages of 16 tokens, a prompt of 512: two layers have come down to 64 tokens
    when the third still holds all.

    >>> shape, policy = CacheShape(3, 1, 8), Policy.parse("snapkv=64")
    >>> page = page_layout(shape, policy).nbytes
    >>> predicted_most(shape, policy, 512, 512) // page, predicted_nbytes(shape, policy, 512) // page
    (40, 12)
    """
    lengths = telling_lengths(policy, num_tokens, prompt_tokens)
    return max(predicted_height(shape, policy, one, prompt_tokens, model_windows) for one in lengths)


def telling_lengths(policy: Policy, num_tokens: int, prompt_tokens: int) -> tuple[int, ...]:
    """Return the lengths on the way to ``num_tokens`` to which the steps may be those that take most.

    Without an eviction a step takes pages as it begins one and as it fills one. A prompt under an eviction
    comes in a step of its own; later ones go through the same states page by page.

    Examples
    --------
    >>> telling_lengths(Policy.parse("int8"), 100, 50), telling_lengths(Policy.parse("snapkv=64"), 60, 58)
    ((96, 97, 100), (58, 59, 60))
    """
    P = policy.page_size
    if policy.eviction is None:
        begun = num_tokens - (num_tokens - 1) % P
        return tuple(sorted({max(begun - 1, 1), begun, num_tokens}))
    prompt = min(prompt_tokens, num_tokens)
    later = range(max(prompt, num_tokens - P) + 1, num_tokens + 1)
    return (prompt, *later) if prompt else tuple(later)


def predicted_height(
    shape: CacheShape,
    policy: Policy,
    num_tokens: int,
    prompt_tokens: int,
    model_windows: Counts | None = None,
) -> int:
    """Return the bytes of one sequence's pages at the height of the step that brings it to ``num_tokens``.

    That step is of one token, except for a prompt under an eviction, which is read in one: each layer holds
    all of it until it evicts. It is what `room.step_nbytes` says of a sequence of which nothing is shared,
    beside what that holds.

    Parameters
    ----------
    shape : CacheShape
    policy : Policy
    num_tokens : int
    prompt_tokens : int
        How many of them came in the first step, where tokens are evicted.
    model_windows : (L,) int64, optional
        The model's own, by layer.
    """
    layout = page_layout(shape, policy)
    P, nbytes, open_nbytes = layout.P, layout.nbytes, layout.while_filling.nbytes
    reads = policy.eviction is not None and num_tokens <= prompt_tokens
    new = num_tokens if reads else 1
    past = num_tokens - new
    held = held_tokens(shape, policy, past, min(prompt_tokens, past))[:, 0]
    kept = held_tokens(shape, policy, num_tokens, min(prompt_tokens, num_tokens))[:, 0]
    came = held + new
    taken = (-(-came // P) + -held // P) * open_nbytes  # bytes of one key head, by layer
    stays = taken
    if layout.codecs.closes_pages:
        taken = taken + (came // P - held // P) * nbytes
        stays = taken - np.maximum(came // P + -held // P, 0) * open_nbytes
    # An eviction lets go of a page's float32 form too, which otherwise is there to the step's end.
    stays = np.where(kept < came, _resting(kept, layout) - _resting(held, layout), stays)
    after = np.cumsum(stays)
    height = max((after - stays + taken).max(), after.max())
    return predicted_nbytes(shape, policy, past, min(prompt_tokens, past), model_windows) + (
        shape.num_kv_heads * int(height)
    )


def _resting(held: Counts, layout: PageLayout) -> Counts:
    """Return the bytes of a key head that holds so many tokens, between two steps."""
    full, rest = np.divmod(held, layout.P)
    return full * layout.nbytes + (rest > 0) * layout.while_filling.nbytes


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
