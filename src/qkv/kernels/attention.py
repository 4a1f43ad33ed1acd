"""Attention on float32 arrays in compiled code: writes down a call and starts its workers."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels.attention_layouts import ROW_LANES, Layout, panel_layout, row_layout
from qkv.kernels.attention_words import NO_LIMIT, STRETCH_KEYS
from qkv.kernels.attention_workers import make_workers, workspace_numbers
from qkv.kernels.host import HOST_TILE, Tile, num_threads
from qkv.kernels.launch import address, launch

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

ALONE_UP_TO_PRODUCTS = 1 << 26
"""Up to so many multiplications one thread is done before a second one would have started."""

ROWS = "rows"
"""The layout for few queries."""


class Rules(TypedDict, total=False):
    """What shapes the weights, and how the work is cut, which changes no bit.

    Attributes
    ----------
    scale, softcap : float
        As for `qkv.attend`.
    right : int
        How many keys after its own a query sees; ``None`` is no limit.
    slopes, sinks : (H,)
    tile : Tile or "rows"
        How queries are held; chosen by how many there are when left out.
    splits_keys : bool
        Share out stretches of keys rather than panels of queries; chosen when left out.
    num_workers : int
        The number of threads when left out.
    """

    scale: Required[float]
    softcap: float | None
    right: int | None
    slopes: Floats | None
    sinks: Floats | None
    tile: Tile | str | None
    splits_keys: bool | None
    num_workers: int | None


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    mask: NDArray[np.bool_] | None = None,
    bias: Floats | None = None,
    offsets: int | Sequence[int] = 0,
    q_lengths: Sequence[int] | None = None,
    kv_lengths: Sequence[int] | None = None,
    left: int | None = None,
    **rules: Unpack[Rules],
) -> tuple[Floats, Floats]:
    """Return attention's output and log-sum-exp, with the same bits however the work is cut.

    Parameters
    ----------
    q : (B, H, T, D)
    k, v : (B, G, S, D)
        The values' D may be another.
    mask, bias, q_lengths, kv_lengths
        As for `qkv.attend`; mask and bias broadcast to (B, H, T, S).
    offsets : int or B integers
        Key position of query 0.
    left : int, optional
        How many keys before its own a query sees; ``None`` is no limit.
    **rules
        See `Rules`.

    Returns
    -------
    output : (B, H, T, D)
    lse : (B, H, T)
    """
    (B, H, T, _), (_, G, S, value_size) = q.shape, v.shape
    k, v = with_whole_heads(k), with_whole_heads(v)
    grids = [None if grid is None else np.broadcast_to(grid, (B, H, T, S)) for grid in (mask, bias)]
    call = np.zeros(words.NUM_WORDS, np.int64)
    call[words.PAGE_KEYS] = 1
    for place, array in ((words.K, k), (words.V, v)):
        call[place : place + 4] = address(array), *(step // 4 for step in array.strides[:3])
    for place, grid in zip((words.MASK, words.BIAS), grids, strict=True):
        if grid is not None:
            call[place : place + 5] = address(grid), *(step // grid.itemsize for step in grid.strides)
    rows = rows_of(
        (B, G), offsets, T if q_lengths is None else q_lengths, S if kv_lengths is None else kv_lengths, left
    )
    return run_attention(call, q, rows, S, value_size, **rules)


def rows_of(
    pairs: tuple[int, int], offsets: Any, q_lengths: Any, kv_lengths: Any, left: Any, first_keys: Any = 0
) -> Words:
    """Return what is told of each sequence and key head: (B, G, ROW_WORDS), from numbers, (B,) or (B, G)."""
    rows = np.empty((*pairs, words.ROW_WORDS), np.int64)
    told = offsets, q_lengths, kv_lengths, NO_LIMIT if left is None else left, first_keys
    for word, numbers in enumerate(told):
        numbers = np.asarray(numbers)
        rows[..., word] = numbers[:, None] if numbers.ndim == 1 else numbers
    return rows


def run_attention(
    call: Words,
    q: Floats,
    rows: Words,
    S: int,
    value_size: int,
    *,
    scale: float,
    softcap: float | None = None,
    right: int | None = None,
    slopes: Floats | None = None,
    sinks: Floats | None = None,
    tile: Tile | str | None = None,
    splits_keys: bool | None = None,
    num_workers: int | None = None,
) -> tuple[Floats, Floats]:
    """Run a call that says where keys and values are; it is written to the end here.

    Parameters
    ----------
    call : (NUM_WORDS,) int64
    q : (B, H, T, D)
    rows : (B, G, ROW_WORDS) int64
        From `rows_of`.
    S, value_size : int
        Keys at most, and D of the values.
    scale, softcap, right, slopes, sinks, tile, splits_keys, num_workers
        See `Rules`.
    """
    (B, H, T, D), G = q.shape, rows.shape[1]
    output, lse = np.empty((B, H, T, value_size), np.float32), np.empty((B, H, T), np.float32)
    if not lse.size:
        return output, lse
    num_workers = num_workers or workers_for(B * H * T * S * (D + value_size))
    layout, workers = _workers(tile or tile_for(H // G * T))
    lanes, num_stretches = layout.lanes, max(1, -(-S // STRETCH_KEYS))
    num_panels = -(-(H // G * T) // lanes)
    if splits_keys is None:
        splits_keys = num_stretches > 1 and B * G * num_panels < 4 * num_workers

    workspace = np.empty((num_workers, workspace_numbers(layout, D, value_size)), np.float32)
    spans = np.empty((num_workers, lanes, 2), np.int64)
    num_parts = B * G * num_panels * num_stretches if splits_keys else 0
    parts = np.empty((num_parts, (value_size + 2) * lanes), np.float32)
    numbers = np.array([scale, softcap or 0.0], np.float32)
    head_numbers = _head_numbers(H, slopes, sinks)
    q = put_queries(call, q, rows, right)
    call[words.D_V] = value_size
    call[words.OUT : words.ROWS] = (
        address(output), address(lse), address(parts), address(workspace), workspace.shape[1],
        address(spans), address(numbers), address(head_numbers),
    )  # fmt: skip
    call[words.PAIRS : words.TABLE] = B * G, num_panels, num_stretches, num_workers, slopes is not None
    prefill, attend_stretches, join_stretches = workers
    for worker in (attend_stretches, join_stretches) if splits_keys else (prefill,):
        launch(worker, call, num_workers)
    return output, lse


def put_queries(call: Words, q: Floats, rows: Words, right: int | None) -> Floats:
    """Write down where the queries are and what each may see; return them as they must lie."""
    q = with_whole_heads(q)
    _, H, T, D = q.shape
    call[words.Q : words.Q + 4] = address(q), *(step // 4 for step in q.strides[:3])
    call[words.ROWS : words.D + 1] = address(rows), H, rows.shape[1], T, D
    call[words.RIGHT] = NO_LIMIT if right is None else right
    return q


def workers_for(num_products: int) -> int:
    """Return how many threads a call of so many multiplications is worth."""
    return num_threads() if num_products > ALONE_UP_TO_PRODUCTS else 1


def tile_for(queries_per_key_head: int) -> Tile | str:
    """Return how so many queries are held."""
    return ROWS if queries_per_key_head <= ROW_LANES else HOST_TILE


@cache
def layout_for(tile: Tile | str) -> Layout:
    """Return the layout for a tile, or of rows."""
    return panel_layout(tile) if isinstance(tile, Tile) else row_layout(HOST_TILE)


@cache
def _workers(tile: Tile | str) -> tuple[Layout, tuple[Any, Any, Any]]:
    layout = layout_for(tile)
    return layout, make_workers(layout)


def _head_numbers(H: int, slopes: Floats | None, sinks: Floats | None) -> Floats:
    """Return (H, 2): each head's ALiBi slope, 0 for none, and sink, ``-inf`` for none."""
    numbers = np.empty((H, 2), np.float32)
    numbers[:, 0] = 0.0 if slopes is None else slopes
    numbers[:, 1] = -np.inf if sinks is None else sinks
    return numbers


def with_whole_heads(x: Floats) -> Floats:
    """Return an array in which the numbers of a head are neighbours; itself if they are."""
    in_place = x.strides[-1] == x.itemsize and all(step % x.itemsize == 0 for step in x.strides)
    return x if in_place else np.ascontiguousarray(x)
