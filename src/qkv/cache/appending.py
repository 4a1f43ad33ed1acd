"""Put new tokens behind those that a sequence holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.closing import close_pages
from qkv.cache.rows import write_next, write_rows
from qkv.cache.tables import SequenceTables, stacked_addresses


def append_tokens(
    one: SequenceTables, layer: int, k: NDArray[Any], v: NDArray[Any] | None, *, for_all_layers: bool
) -> None:
    """Encode and write the keys ``(G, T, D)`` and values of new tokens; ``None`` where keys hold the values.

    Parameters
    ----------
    one : SequenceTables
    layer : int
    k, v : (G, T, D)
    for_all_layers : bool
        Whether to take pages for every layer now.

    Raises
    ------
    CacheFull
        If the pages do not fit.
    """
    (G, count), layers = k.shape[:2], slice(layer, layer + 1)
    rows = one.filling.layout.encode(k, v)
    if one.layout.tracks:
        positions = np.arange(one.tokens[layer], one.tokens[layer] + count, dtype=np.int32)
        rows["positions"] = np.broadcast_to(positions, (G, count))
    take_pages(one, slice(None) if for_all_layers else layers, count)
    write_rows(one.filling, layer, one.held[layer], rows)
    one.before[layer] = one.held[layer]
    one.held[layer] += count
    one.tokens[layer] += count
    if one.closes_pages:
        close_pages(one, layer)


def append_next(
    sequences: Sequence[SequenceTables], layer: int, k: NDArray[Any], v: NDArray[Any] | None
) -> None:
    """Do what `append_tokens` does for one new token of each of several sequences, in one go.

    For layouts that encode token by token, under policies that take a step's pages for all layers at once.

    Parameters
    ----------
    sequences : B SequenceTables
    layer : int
    k, v : (B, G, 1, D)

    Raises
    ------
    CacheFull
        If the pages do not fit.
    """
    # A step that began with the first layer took pages for all of them; they go where a layer is cut back.
    began = all(one.owns_last_pages and one.tokens[0] > one.tokens[layer] for one in sequences)
    for one in () if began else sequences:
        take_pages(one, slice(None) if layer == 0 else slice(layer, layer + 1), 1)
    held = np.stack([one.held[layer] for one in sequences])  # B G
    layout = sequences[0].layout
    rows = layout.encode(k, v)
    write_next(layout, stacked_addresses([one.pages for one in sequences], layer), held, rows)
    for one in sequences:
        one.before[layer] = one.held[layer]
        one.held[layer] += 1
        one.tokens[layer] += 1


def take_pages(one: SequenceTables, layers: slice, count: int) -> None:
    """Have pages to write to, none of which another sequence holds too."""
    first, end = one.pages_for(count, layers)
    one.filling.take(layers, one.filling.missing(layers, first, end))
    one.filling.make_own(layers, first, end)
    one.owns_last_pages |= count > 0 and layers == slice(None)
