"""Go back to an earlier length, where what is then needed is still there."""

import numpy as np

from qkv.cache.evicting import adds_up_attention
from qkv.cache.policy import Policy
from qkv.cache.tables import Counts, SequenceTables
from qkv.errors import TrimError


def check_trim(one: SequenceTables, length: int, windows: Counts, policy: Policy) -> None:
    """Raise `TrimError` if a sequence cannot go back to a length; it says how far it can.

    Parameters
    ----------
    one : SequenceTables
    length : int
        At most what the sequence has.
    windows : (L, G) int64
        How far back each head's queries see.
    policy : Policy
    """
    if not length:
        return
    _check_evicted(one, length, policy)
    if one.closes_pages:
        _check_encoded(one, length)
    if policy.eviction is None:
        _check_windows(one, length, windows)


def trim_sequence(one: SequenceTables, length: int) -> None:
    """Forget every token from position ``length`` on, which `check_trim` has allowed."""
    extra = one.length - length
    one.cut(slice(None), one.finished - extra if length else np.zeros_like(one.held))
    one.tokens[:] = one.length = length
    one.behind[:], one.remembered = 0, None
    _forget_changes(one)


def check_unfinished(one: SequenceTables, layers: slice, policy: Policy) -> None:
    """Raise `TrimError` if a step that did not come to its end has changed more than it has stored."""
    if one.length and one.is_unfinished(layers):
        _check_evicted(one, one.length, policy)


def forget_unfinished(one: SequenceTables, layers: slice) -> None:
    """Take back what such a step has left in some layers, which `check_unfinished` has allowed."""
    if not one.is_unfinished(layers):
        return
    one.cut(layers, one.finished[layers])
    one.tokens[layers] = one.length
    if layers == slice(None):  # or other layers may be as they were changed
        _forget_changes(one)


def _forget_changes(one: SequenceTables) -> None:
    one.evicted_at, one.scored_at = min(one.evicted_at, one.length), min(one.scored_at, one.length)


def _check_evicted(one: SequenceTables, length: int, policy: Policy) -> None:
    if adds_up_attention(policy.eviction) and length < one.scored_at:
        lost = "what the tokens to be forgotten attended to is part of the others' scores"
    elif length < one.evicted_at:
        lost = f"tokens were evicted at length {one.evicted_at}, by what came until then"
    else:
        return
    raise TrimError(f"{_cannot(one, length)}: {lost}; compute the text anew")


def _check_encoded(one: SequenceTables, length: int) -> None:
    P, held = one.layout.P, one.finished
    left, begin = held - (one.length - length), held // P * P  # where the page under way begins
    inside = (left % P > 0) & (left < begin)
    if inside.any():
        raise TrimError(
            f"{_cannot(one, length)}: pages of {P} tokens are encoded as a whole; trim to where one begins, "
            f"such as {length - left[inside][0] % P}, or to {length + (begin - left).max()} or more"
        )


def _check_windows(one: SequenceTables, length: int, windows: Counts) -> None:
    P = one.layout.P
    seen = np.maximum(length + 1 - windows, 0)
    end = length // P if one.closes_pages else -(-length // P)
    gone = one.pages.missing(slice(None), seen // P, np.full_like(seen, end)).where.any(axis=2)
    if gone.any():
        raise TrimError(
            f"{_cannot(one, length)}: with a window of {windows[gone][0]} token {seen[gone][0]} "
            f"would be seen again, and is gone; compute the text anew"
        )


def _cannot(one: SequenceTables, length: int) -> str:
    return f"cannot go back from {one.tokens.max()} to {length} tokens"
