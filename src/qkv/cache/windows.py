"""How far back each key head sees, and which pages no query will see again."""

from functools import lru_cache

import numpy as np

from qkv.cache.policy import Policy
from qkv.cache.tables import Counts

NO_WINDOW = 1 << 40
"""A window that no text exceeds."""


@lru_cache(maxsize=256)
def head_windows(policy: Policy, num_layers: int, num_kv_heads: int) -> tuple[Counts, Counts]:
    """Return each head's window by the policy, and how many first keys it exempts: ``(L, G)`` both.

    The arrays are the same ones for each call alike, and not to be written to.

    Examples
    --------
    >>> head_windows(Policy.parse("window=9,sinks=2,heads=10"), num_layers=1, num_kv_heads=2)
    (array([[1099511627776,             9]]), array([[0, 2]]))
    """
    shape = num_layers, num_kv_heads
    windows, first_keys = np.full(shape, NO_WINDOW), np.zeros(shape, np.int64)
    for layer, head in np.ndindex(shape):
        window = policy.window_of(layer, head)
        if window is not None:
            windows[layer, head] = window
        if window is not None or policy.eviction is not None:
            first_keys[layer, head] = policy.sinks
    for array in (windows, first_keys):
        array.flags.writeable = False
    return windows, first_keys


def pages_behind(held: Counts, windows: Counts, first_keys: Counts, P: int) -> tuple[Counts, Counts]:
    """Return which pages have fallen behind a window: from a first one to before a last one.

    Those of the first keys stay, and one token more than the next query sees, so that a text may go back
    by one.

    Parameters
    ----------
    held, windows, first_keys : (L, G) int64
    P : int

    Examples
    --------
    20 tokens, of which the next query sees 8 with its own, and the first; pages of 2:

    >>> first, end = pages_behind(*np.array([[[20]], [[8]], [[1]]]), P=2)
    >>> first.item(), end.item()
    (1, 6)
    """
    first = -(-first_keys // P)
    return first, np.maximum(np.maximum(held - windows, 0) // P, first)
