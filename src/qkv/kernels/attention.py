"""Attention on float32 arrays in compiled code: writes down a call and starts its workers."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_workers as words
from qkv.kernels.attention_workers import BLOCK_KEYS, NO_LIMIT, STRETCH_KEYS, make_workers
from qkv.kernels.host import HOST_TILE, Tile, num_threads
from qkv.kernels.launch import address, launch

Floats = NDArray[np.float32]

ALONE_UP_TO_PRODUCTS = 1 << 26
"""Up to so many multiplications one thread is done before a second one would have started."""

FEW = Tile(rows=8, vectors=1, width=8)
"""For decode: with the H/G queries of a group in 8 lanes, no lane of a wider vector idles."""


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    scale: float,
    softcap: float | None = None,
    left: int | None = None,
    right: int | None = None,
    mask: NDArray[np.bool_] | None = None,
    bias: Floats | None = None,
    offsets: int | Sequence[int] = 0,
    q_lengths: Sequence[int] | None = None,
    kv_lengths: Sequence[int] | None = None,
    slopes: Floats | None = None,
    sinks: Floats | None = None,
    tile: Tile | None = None,
    splits_keys: bool | None = None,
    num_workers: int | None = None,
) -> tuple[Floats, Floats]:
    """Return attention's output and log-sum-exp, with the same bits however the work is cut.

    Parameters
    ----------
    q : (B, H, T, D)
    k, v : (B, G, S, D)
        The values' D may be another.
    scale, softcap, mask, bias, slopes, sinks, q_lengths, kv_lengths
        As for `qkv.attend`; mask and bias broadcast to (B, H, T, S), slopes and sinks are (H,).
    left, right : int, optional
        How many keys before and after its own a query sees; ``None`` is no limit.
    offsets : int or B integers
        Key position of query 0.
    tile : Tile, optional
        Queries in ``vectors * width`` lanes; chosen by how many there are when left out.
    splits_keys : bool, optional
        Share out stretches of keys rather than panels of queries; chosen when left out.
    num_workers : int, optional
        The number of threads when left out.

    Returns
    -------
    output : (B, H, T, D)
    lse : (B, H, T)
    """
    (B, H, T, D), (_, G, S, value_size) = q.shape, v.shape
    output, lse = np.empty((B, H, T, value_size), np.float32), np.empty((B, H, T), np.float32)
    if not lse.size:
        return output, lse
    num_products = B * H * T * S * (D + value_size)
    num_workers = num_workers or (num_threads() if num_products > ALONE_UP_TO_PRODUCTS else 1)
    tile = tile or (FEW if FEW.columns >= H // G * T else HOST_TILE)
    lanes, num_stretches = tile.columns, max(1, -(-S // STRETCH_KEYS))
    num_panels = -(-(H // G * T) // lanes)
    if splits_keys is None:
        splits_keys = num_stretches > 1 and B * G * num_panels < 4 * num_workers

    state_size = (value_size + 2) * lanes
    workspace = np.empty((num_workers, 2 * state_size + (D + 2 * BLOCK_KEYS + 1) * lanes), np.float32)
    spans = np.empty((num_workers, lanes, 2), np.int64)
    num_parts = B * G * num_panels * num_stretches if splits_keys else 0
    parts = np.empty((num_parts, state_size), np.float32)
    numbers = np.array([scale, softcap or 0.0], np.float32)
    head_numbers = _head_numbers(H, slopes, sinks)
    rows = _rows(B, T, S, offsets, q_lengths, kv_lengths)
    q, k, v = (_with_whole_heads(x) for x in (q, k, v))
    grids = [None if grid is None else np.broadcast_to(grid, (B, H, T, S)) for grid in (mask, bias)]

    call = np.zeros(words.NUM_WORDS, np.int64)
    for place, array in ((words.Q, q), (words.K, k), (words.V, v)):
        call[place : place + 4] = address(array), *(step // 4 for step in array.strides[:3])
    for place, grid in zip((words.MASK, words.BIAS), grids, strict=True):
        if grid is not None:
            call[place : place + 5] = address(grid), *(step // grid.itemsize for step in grid.strides)
    call[words.OUT :] = (
        address(output), address(lse), address(parts), address(workspace), workspace.shape[1],
        address(spans), address(numbers), address(head_numbers), address(rows),
        H, G, T, D, value_size, NO_LIMIT if left is None else left, NO_LIMIT if right is None else right,
        B * G, num_panels, num_stretches, num_workers, slopes is not None,
    )  # fmt: skip
    prefill, attend_stretches, join_stretches = workers_for(tile)
    for worker in (attend_stretches, join_stretches) if splits_keys else (prefill,):
        launch(worker, call, num_workers)
    return output, lse


@cache
def workers_for(tile: Tile) -> tuple[Any, Any, Any]:
    """Return the workers for panels of ``tile.columns`` queries."""
    return make_workers(tile.rows, tile.vectors, tile.width)


def _head_numbers(H: int, slopes: Floats | None, sinks: Floats | None) -> Floats:
    """Return (H, 2): each head's ALiBi slope, 0 for none, and sink, ``-inf`` for none."""
    numbers = np.empty((H, 2), np.float32)
    numbers[:, 0] = 0.0 if slopes is None else slopes
    numbers[:, 1] = -np.inf if sinks is None else sinks
    return numbers


def _rows(
    B: int,
    T: int,
    S: int,
    offsets: int | Sequence[int],
    q_lengths: Sequence[int] | None,
    kv_lengths: Sequence[int] | None,
) -> NDArray[np.int64]:
    """Return (B, 3): key position of query 0, valid queries, valid keys."""
    rows = np.empty((B, 3), np.int64)
    rows[:, 0] = offsets
    rows[:, 1] = T if q_lengths is None else q_lengths
    rows[:, 2] = S if kv_lengths is None else kv_lengths
    return rows


def _with_whole_heads(x: Floats) -> Floats:
    """Return an array in which the numbers of a head are neighbours; itself if they are."""
    in_place = x.strides[-1] == x.itemsize and all(step % x.itemsize == 0 for step in x.strides)
    return x if in_place else np.ascontiguousarray(x)
