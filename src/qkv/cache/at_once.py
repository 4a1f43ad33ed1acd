"""A step of one token for each sequence, written to all layers in one go.

Where the pages of a step are known before it begins, and keys lie in them as they come, a model need not
come back to its cache in every layer: it is told where all of them go.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from qkv.cache.appending import take_pages
from qkv.cache.keeping import Keeping
from qkv.cache.tables import SequenceTables

if TYPE_CHECKING:
    from qkv.kernels.next_tokens import NextTokens


class StepsAtOnce(Protocol):
    """A cache that may be able to tell where a step's tokens go in all layers."""

    def at_once(
        self, num_tokens: int, windows: Sequence[int | None]
    ) -> "AbstractContextManager[NextTokens] | None":
        """Return a step in which the next token of each text is written, or ``None`` where that cannot be.

        Parameters
        ----------
        num_tokens : int
            T of the step.
        windows : L integers or None
            The model's own, of each layer.

        Returns
        -------
        context manager
            The step. Inside, pages are there to be written to. When it ends the tokens count; if it fails,
            all is as it was.
        """
        ...


def may_step_at_once(cache: object) -> TypeGuard[StepsAtOnce]:
    """Whether a cache has a word on it at all."""
    return hasattr(cache, "at_once")


@contextmanager
def write_next(sequences: Sequence[SequenceTables], keeping: Keeping) -> "Iterator[NextTokens]":
    """Take pages for a token more of each sequence, and count it when it has been written."""
    try:
        for one in sequences:
            _take_places(one)
        yield _next_tokens(sequences, keeping)
    except BaseException:
        for one in sequences:
            one.cut(slice(None), one.held)
        raise
    for one in sequences:
        one.before, one.held, one.tokens = one.held, one.held + 1, one.tokens + 1


def _take_places(one: SequenceTables) -> None:
    """Have room for the next token of every head; nothing was evicted, so that all begin a page together."""
    if one.length % one.layout.P == 0 or not one.owns_last_pages:
        take_pages(one, slice(None), 1)


def _next_tokens(sequences: Sequence[SequenceTables], keeping: Keeping) -> "NextTokens":
    from qkv.kernels.next_tokens import NextTokens  # the compiler is loaded when it is first needed

    layout, sections = sequences[0].layout, sequences[0].layout.sections
    return NextTokens(
        tables=[one.pages.addresses for one in sequences],
        slots=[one.held[0] for one in sequences],
        left=_left(keeping, len(sequences)),
        first_keys=keeping.first_keys[:, None],
        page_size=layout.P,
        k_bytes=sections["k"].offset,
        v_bytes=sections["v"].offset,
    )


def _left(keeping: Keeping, batch_size: int) -> Any:
    if not keeping.has_windows:
        return None
    return np.repeat((keeping.effective_windows - 1)[:, None], batch_size, axis=1)
