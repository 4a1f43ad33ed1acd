"""Encode pages that have become full, for element types whose steps need a page's tokens together."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.tables import Marked, SequenceTables, between


def close_pages(sequence: SequenceTables, layer: int) -> None:
    """Encode each page of a layer that a step has filled; it stays in float32 beside until `drop_filled`.

    Raises
    ------
    CacheFull
        If the encoded pages do not fit.
    """
    layout, filling, layers = sequence.layout, sequence.filling, slice(layer, layer + 1)
    first, full = sequence.before[layers] // layout.P, sequence.held[layers] // layout.P
    filled = sequence.pages.missing(layers, first, full)
    if filled.where.any():
        raw = np.stack([filling.pool.page(filling.ids[layer, *place]) for _, *place in filled.places])
        put_encoded(sequence, layer, filled, filling.layout.open(raw))


def put_encoded(
    sequence: SequenceTables, layer: int, marked: Marked, rows: Mapping[str, NDArray[Any]]
) -> None:
    """Encode whole pages and put them where there are none.

    Parameters
    ----------
    sequence : SequenceTables
    layer : int
    marked : Marked
        Of this layer alone.
    rows : mapping of str to (n, P, ...)
        Keys, values and positions of the n marked pages, in order.

    Raises
    ------
    CacheFull
        If they do not fit; then nothing has changed.
    """
    layout = sequence.layout
    encoded = np.zeros((int(marked.where.sum()), layout.nbytes), np.uint8)
    layout.write(encoded, 0, rows["k"], rows.get("v"))
    if layout.tracks:
        layout.open(encoded)["positions"][...] = rows["positions"]
    sequence.pages.take(slice(layer, layer + 1), marked)
    for page, (_, *place) in zip(encoded, marked.places, strict=True):
        sequence.pages.pool.page(sequence.pages.ids[layer, *place])[:] = page


def drop_filled(sequence: SequenceTables, layer: int) -> None:
    """Give back the float32 form of the pages of a layer that a step has begun and filled.

    Of the page that was under way when it began it stays to the step's end, for a step that does not come
    to that leaves nothing behind.
    """
    P, layers = sequence.layout.P, slice(layer, layer + 1)
    heads = zip(sequence.before[layer].tolist(), sequence.held[layer].tolist(), strict=True)
    if all(-(-before // P) >= held // P for before, held in heads):
        return  # as after most tokens, where NumPy would take longer to say so
    begun, full = -(-sequence.before[layers] // P), sequence.held[layers] // P
    sequence.filling.drop(layers, between(begun, full))


def drop_all_filled(sequence: SequenceTables) -> None:
    """Give back the float32 form of every page that is full, at the end of a step."""
    full, part = np.divmod(sequence.held, sequence.layout.P)
    # Since the step began, or ever, if the end of an earlier one was itself broken off.
    for first in (sequence.before // sequence.layout.P, np.zeros_like(full)):
        if sequence.filling.num_present > np.count_nonzero(part):  # there are more than those under way
            sequence.filling.drop(slice(None), between(first, full))
