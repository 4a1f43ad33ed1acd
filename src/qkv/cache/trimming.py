"""Go back to an earlier length, where what is then needed is still there."""

import numpy as np

from qkv.cache.policy import Policy
from qkv.cache.tables import Counts, SequenceTables
from qkv.errors import TrimError


def check_trim(one: SequenceTables, length: int, windows: Counts, policy: Policy) -> None:
    """Raise `TrimError` if a sequence cannot go back to a length; it says how far it can.

    Parameters
    ----------
    one : SequenceTables
    length : int
        Less than the sequence has.
    windows : (L, G) int64
        How far back each head's queries see.
    policy : Policy
    """
    if policy.eviction is not None and length and (policy.eviction.name == "h2o" or length < one.evicted_at):
        lost = f"tokens were evicted at length {one.evicted_at}, by what came until then"
        if policy.eviction.name == "h2o":
            lost = "what the tokens to be forgotten attended to is part of the others' scores"
        raise TrimError(f"cannot go back from {one.length} to {length} tokens: {lost}; compute the text anew")
    P = one.layout.P
    if one.closes_pages and length % P and length < one.length // P * P:
        below = length // P * P
        raise TrimError(
            f"cannot go back from {one.length} to {length} tokens: the page of {P} tokens from {below} on is "
            f"encoded as a whole; trim to {below}, to {below + P}, or to {one.length // P * P} or more"
        )
    needed = np.maximum(length + 1 - windows, 0)
    for layer, head in np.argwhere(needed < one.held):
        first, end = int(needed[layer, head]) // P, -(-length // P)
        present = one.pages.present[layer, head, first:end] | one.filling.present[layer, head, first:end]
        if not present.all():
            raise TrimError(
                f"cannot go back from {one.length} to {length} tokens: with a window of "
                f"{windows[layer, head]} token {needed[layer, head]} would be seen again, and is gone; "
                f"compute the text anew"
            )


def trim_sequence(one: SequenceTables, length: int) -> None:
    """Forget every token from position ``length`` on, which `check_trim` has allowed."""
    extra, P = one.length - length, one.layout.P
    one.held = np.maximum(one.held - extra, 0) if length else np.zeros_like(one.held)
    one.tokens[:] = length
    one.evicted_at = min(one.evicted_at, length)
    kept = -(-one.held // P)
    for table in one.tables:
        pages = np.arange(table.ids.shape[2])
        table.drop(slice(None), pages >= kept[..., None])
    if one.closes_pages:
        one.pages.drop(slice(None), np.arange(one.pages.ids.shape[2]) >= (one.held // P)[..., None])
