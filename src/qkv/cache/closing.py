"""Encode pages that have become full, for element types whose steps need a page's tokens together."""

import numpy as np

from qkv.cache.tables import SequenceTables


def close_pages(sequence: SequenceTables, layer: int) -> None:
    """Encode each page of a layer that is full, once; it stays in float32 beside that until `drop_filled`.

    Raises
    ------
    CacheFull
        If the encoded pages do not fit.
    """
    layout, filling = sequence.layout, sequence.filling
    layers = slice(layer, layer + 1)
    full = sequence.held[layers] // layout.P
    missing = sequence.pages.missing(layers, np.zeros_like(full), full)
    if not missing.any():
        return
    places = np.argwhere(missing[0])
    raw = np.stack([filling.pool.page(filling.ids[layer, head, page]) for head, page in places])
    encoded = np.zeros((len(raw), layout.nbytes), np.uint8)
    k, v = filling.layout.read(raw)
    layout.write(encoded, 0, k, None if layout.shares_values else v)
    if layout.tracks:
        beside, source = layout.open(encoded), filling.layout.open(raw)
        for name in ("positions", "score"):
            beside[name][...] = source[name]
    sequence.pages.take(layers, missing)
    for page_bytes, (head, page) in zip(encoded, places, strict=True):
        sequence.pages.pool.page(sequence.pages.ids[layer, head, page])[:] = page_bytes


def drop_filled(sequence: SequenceTables, layer: int) -> None:
    """Give back the float32 form of the pages of a layer that are full."""
    full = sequence.held[layer] // sequence.layout.P
    where = np.arange(sequence.filling.ids.shape[2]) < full[:, None]
    sequence.filling.drop(slice(layer, layer + 1), where[None])
