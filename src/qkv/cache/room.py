"""Whether a step fits into a pool's budget, worked out before anything of it is written."""

from collections.abc import Sequence

import numpy as np

from qkv.cache.policy import Policy
from qkv.cache.tables import Counts, SequenceTables
from qkv.errors import CacheFull


def check_room(
    sequences: Sequence[SequenceTables], new: Counts, budgets: Sequence[int] | None, policy: Policy
) -> None:
    """Raise `CacheFull` if a step of ``new`` tokens for each sequence will not fit; nothing has changed then.

    Where layers give bytes back as the step goes through them, each only has to fit in its turn.
    """
    pool, layout = sequences[0].pages.pool, sequences[0].layout
    if pool.budget_bytes is None:
        return
    peak = now = 0
    for layer in range(len(sequences[0].tokens)):
        layers = slice(layer, layer + 1)
        for one, count in zip(sequences, new.tolist(), strict=True):
            now += _taken_bytes(one, layers, count)
        peak = max(peak, now)
        if budgets is not None or sequences[0].closes_pages:
            for one, count in zip(sequences, new.tolist(), strict=True):
                now -= _returned_bytes(one, layer, count, budgets, policy)
    free = pool.budget_bytes - pool.nbytes
    if peak > free + pool.idle_bytes:
        raise CacheFull(-(-peak // layout.nbytes), layout.nbytes, free, pool.idle_bytes, pool.budget_bytes)


def _taken_bytes(one: SequenceTables, layers: slice, count: int) -> int:
    """Return what one layer of a step takes: pages that are missing, and copies of shared ones."""
    first, end = one.pages_for(count, layers)
    taken = int(one.filling.missing(layers, first, end).sum())
    pages = np.arange(one.filling.ids.shape[2])
    written = (first[..., None] <= pages) & (pages < end[..., None])
    taken += one.filling.count_shared(layers, written)
    nbytes = taken * one.filling.layout.nbytes
    if one.closes_pages:
        full = (one.held[layers] + count) // one.layout.P
        nbytes += int(one.pages.missing(layers, np.zeros_like(full), full).sum()) * one.layout.nbytes
    return nbytes


def _returned_bytes(
    one: SequenceTables, layer: int, count: int, budgets: Sequence[int] | None, policy: Policy
) -> int:
    """Return what the layer gives back once its queries have attended."""
    P, held = one.layout.P, one.held[layer] + count
    returned = 0
    if one.closes_pages:
        filled = held // P - one.held[layer] // P
        returned += int(filled.sum()) * one.filling.layout.nbytes
    if budgets is not None and count and policy.exceeds(int(held[0]), budgets[layer], count):
        kept = budgets[layer]
        pages, open_pages = held // P - kept // P, (held % P > 0).astype(int) - (kept % P > 0)
        returned += int(pages.sum()) * one.layout.nbytes
        returned += int(open_pages.sum()) * one.filling.layout.nbytes
    return returned
