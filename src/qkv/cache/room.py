"""Whether a step fits into a pool's budget, worked out before anything of it is written."""

from collections.abc import Sequence

import numpy as np

from qkv.cache.evicting import adds_up_attention
from qkv.cache.policy import Policy
from qkv.cache.pool import PagePool
from qkv.cache.tables import Counts, SequenceTables
from qkv.errors import CacheFull


def check_room(
    sequences: Sequence[SequenceTables],
    new: Counts | Sequence[int],
    budgets: Sequence[int] | None,
    policy: Policy,
) -> None:
    """Raise `CacheFull` if a step of ``new`` tokens for each sequence does not fit; nothing has changed."""
    pool, layout = sequences[0].pages.pool, sequences[0].layout
    if pool.budget_bytes is not None:
        require_room(pool, layout.nbytes, step_nbytes(sequences, new, budgets, policy))


def step_nbytes(
    sequences: Sequence[SequenceTables],
    new: Counts | Sequence[int],
    budgets: Sequence[int] | None,
    policy: Policy,
) -> int:
    """Return how many bytes a step of ``new`` tokens for each sequence takes from the pool at its height.

    Where layers give bytes back as the step goes through them, each only has to fit in its turn.
    """
    peak = now = 0
    steps = [(one, int(count)) for one, count in zip(sequences, new, strict=True) if count]
    if budgets is None and not sequences[0].closes_pages:
        return sum(_taken_bytes(one, slice(None), count, policy) for one, count in steps)
    for layer in range(len(sequences[0].tokens)):
        now += sum(_taken_bytes(one, slice(layer, layer + 1), count, policy) for one, count in steps)
        peak = max(peak, now)
        for one, count in steps:
            if budgets is not None and policy.exceeds(int(one.held[layer, 0]) + count, budgets[layer], count):
                now += _bytes_by_eviction(one, layer, count, budgets[layer], policy)
                peak = max(peak, now)
            elif one.closes_pages:
                now += _bytes_by_attending(one, layer, count)
    return peak


def require_room(pool: PagePool, page_nbytes: int, nbytes: int) -> None:
    """Raise `CacheFull` if so many bytes do not fit, even with every idle page given back.

    Parameters
    ----------
    pool : PagePool
    page_nbytes : int
        Bytes of the pages in which the message counts.
    nbytes : int
    """
    if pool.budget_bytes is None:
        return
    free = pool.budget_bytes - pool.nbytes
    if nbytes > free + pool.idle_bytes:
        raise CacheFull(-(-nbytes // page_nbytes), page_nbytes, free, pool.idle_bytes, pool.budget_bytes)


def _taken_bytes(one: SequenceTables, layers: slice, count: int, policy: Policy) -> int:
    """Return what layers take for new tokens: pages that are missing, and copies of shared ones."""
    first, end = one.pages_for(count, layers)
    written = np.zeros_like(first) if adds_up_attention(policy.eviction) else first
    taken = one.filling.missing(layers, first, end).where.sum() + one.filling.count_shared(
        layers, written, end
    )
    encoded = _filled_pages(one, layers, count) if one.closes_pages else 0
    return int(taken) * one.filling.layout.nbytes + encoded * one.layout.nbytes


def _filled_pages(one: SequenceTables, layers: slice, count: int) -> int:
    """Return how many pages the new tokens fill."""
    P, held = one.layout.P, one.held[layers]
    return int(((held + count) // P - held // P).sum())


def _bytes_by_attending(one: SequenceTables, layer: int, count: int) -> int:
    """Return what a layer gives back of pages that it has encoded: see `closing.drop_filled`."""
    P, held = one.layout.P, one.held[layer]
    begun_and_filled = np.maximum((held + count) // P - -(-held // P), 0)
    return -int(begun_and_filled.sum()) * one.filling.layout.nbytes


def _bytes_by_eviction(one: SequenceTables, layer: int, count: int, budget: int, policy: Policy) -> int:
    """Return what a layer takes (most often less than nothing) to come down to its budget.

    A page that others hold too gives nothing back, and is copied before it is written to; here all are
    that may be.
    """
    layers, P = slice(layer, layer + 1), one.layout.P
    held = one.held[layers]
    full, end, last = held // P, -(-(held + count) // P), np.full_like(held, -(-budget // P))
    if one.closes_pages:
        encoded = budget // P * held.size - one.pages.count_own(layers, np.zeros_like(full), full)
        encoded -= _filled_pages(one, layers, count)
        filling = (budget % P > 0) * held.size - int((end - full).sum())
        return encoded * one.layout.nbytes + filling * one.filling.layout.nbytes
    own = np.zeros_like(full) if adds_up_attention(policy.eviction) else full  # from here on all are
    copies = one.pages.count_shared(layers, np.zeros_like(full), np.minimum(last, own))
    returned = one.pages.count_own(layers, last, own) + int((end - np.maximum(last, own)).clip(0).sum())
    return (copies - returned) * one.layout.nbytes
