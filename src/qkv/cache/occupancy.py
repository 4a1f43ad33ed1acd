"""Which tokens of a text each key head holds: a mask, to be drawn or to be counted."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from qkv.cache.paged import PagedCache


def held_mask(cache: "PagedCache", row: int = 0) -> NDArray[np.bool_]:
    """Return which tokens of one sequence lie in the pages of each layer and key head: ``(L, G, S)``.

    Pages are given back whole: one that is partly behind a window counts with all its tokens.

    Parameters
    ----------
    cache : PagedCache
    row : int
        Which sequence.

    Examples
    --------
    >>> from qkv.cache import CacheShape, PagedCache
    >>> cache = PagedCache(CacheShape(num_layers=1, num_kv_heads=1, head_dim=2), "streaming=3,sinks=1,page=2")
    >>> cache.append(0, *np.ones((2, 1, 1, 7, 2), np.float32))
    >>> output = cache.attend(0, np.ones((1, 1, 7, 2), np.float32))
    >>> held_mask(cache).astype(int).tolist()
    [[[1, 0, 0, 0, 0, 1, 1]]]
    """
    shape = cache.shape.num_layers, cache.shape.num_kv_heads, cache.lengths[row]
    mask = np.zeros(shape, bool)
    for (at, layer, head), contents in cache.explain().heads.items():
        if at == row:
            mask[layer, head, contents.positions] = True
    return mask
