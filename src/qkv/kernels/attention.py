"""Attention on float32 arrays in compiled code: writes down a call and starts its workers."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels.attention_layouts import ROW_LANES, Layout, panel_layout, row_layout
from qkv.kernels.attention_words import NO_LIMIT, STRETCH_KEYS
from qkv.kernels.attention_workers import make_workers, workspace_numbers
from qkv.kernels.host import HOST_TILE, Tile, num_threads
from qkv.kernels.launch import address, launch

Floats = NDArray[np.float32]

ALONE_UP_TO_PRODUCTS = 1 << 26
"""Up to so many multiplications one thread is done before a second one would have started."""

ROWS = "rows"
"""The layout for few queries."""


class Pages(NamedTuple):
    """Keys and values in pages of P tokens of one key head each.

    Attributes
    ----------
    table : (B, G, N) int64
        Addresses of the pages' bytes; 0 for a page that no query sees.
    page_size : int
        P.
    element : str
        One of `attention_words.ELEMENTS`.
    head_dim, value_dim : int
    shares_values : bool
        A value is the beginning of its key.
    k, v, k_steps, v_steps, k_lows, v_lows : int
        Where in a page's bytes codes, scales and offsets begin; 0 where there are none.
    """

    table: NDArray[np.int64]
    page_size: int
    element: str
    head_dim: int
    value_dim: int
    shares_values: bool = False
    k: int = 0
    v: int = 0
    k_steps: int = 0
    v_steps: int = 0
    k_lows: int = 0
    v_lows: int = 0


class Rules(TypedDict, total=False):
    """What shapes the weights, and how the work is cut, which changes no bit.

    Attributes
    ----------
    scale, softcap : float
        As for `qkv.attend`.
    slopes, sinks : (H,)
    left, right : int
        How many keys before and after its own a query sees; ``None`` is no limit.
    tile : Tile or "rows"
        How queries are held; chosen by how many there are when left out.
    splits_keys : bool
        Share out stretches of keys rather than panels of queries; chosen when left out.
    num_workers : int
        The number of threads when left out.
    """

    scale: Required[float]
    softcap: float | None
    left: int | None
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
    **rules
        See `Rules`.

    Returns
    -------
    output : (B, H, T, D)
    lse : (B, H, T)
    """
    (B, H, T, _), (_, G, S, value_size) = q.shape, v.shape
    k, v = _with_whole_heads(k), _with_whole_heads(v)
    rows = _rows((B, G), T, S, offsets, q_lengths, kv_lengths)
    grids = [None if grid is None else np.broadcast_to(grid, (B, H, T, S)) for grid in (mask, bias)]
    call = np.zeros(words.NUM_WORDS, np.int64)
    for place, array in ((words.K, k), (words.V, v)):
        call[place : place + 4] = address(array), *(step // 4 for step in array.strides[:3])
    for place, grid in zip((words.MASK, words.BIAS), grids, strict=True):
        if grid is not None:
            call[place : place + 5] = address(grid), *(step // grid.itemsize for step in grid.strides)
    return _run(call, q, rows, G, S, value_size, **rules)


def attend_pages(
    q: Floats,
    pages: Pages,
    *,
    offsets: NDArray[np.int64],
    kv_lengths: NDArray[np.int64],
    q_lengths: Sequence[int] | None = None,
    first_keys: int = 0,
    **rules: Unpack[Rules],
) -> tuple[Floats, Floats]:
    """Return what `attend` gives for the keys and values in pages, which are read where they lie.

    Parameters
    ----------
    q : (B, H, T, D)
    pages : Pages
    offsets, kv_lengths : (B, G) int64
        Key position of query 0, and valid keys.
    q_lengths : B integers, optional
    first_keys : int
        How many keys at the beginning no window hides.
    **rules
        See `Rules`.
    """
    B, G, _ = pages.table.shape
    T, S = q.shape[2], int(kv_lengths.max(initial=0))
    rows = _rows((B, G), T, S, offsets, q_lengths, kv_lengths)
    call = np.zeros(words.NUM_WORDS, np.int64)
    table = np.ascontiguousarray(pages.table)
    call[words.FIRST_KEYS] = first_keys
    call[words.TABLE : words.SHARES_VALUES + 1] = (
        address(table), table.shape[2], pages.page_size, words.ELEMENTS.index(pages.element),
        pages.k, pages.v, pages.k_steps, pages.v_steps, pages.k_lows, pages.v_lows, pages.shares_values,
    )  # fmt: skip
    return _run(call, q, rows, G, S, pages.value_dim, **rules)


def _run(
    call: NDArray[np.int64],
    q: Floats,
    rows: NDArray[np.int64],
    G: int,
    S: int,
    value_size: int,
    *,
    scale: float,
    softcap: float | None = None,
    left: int | None = None,
    right: int | None = None,
    slopes: Floats | None = None,
    sinks: Floats | None = None,
    tile: Tile | str | None = None,
    splits_keys: bool | None = None,
    num_workers: int | None = None,
) -> tuple[Floats, Floats]:
    B, H, T, D = q.shape
    output, lse = np.empty((B, H, T, value_size), np.float32), np.empty((B, H, T), np.float32)
    if not lse.size:
        return output, lse
    num_products = B * H * T * S * (D + value_size)
    num_workers = num_workers or (num_threads() if num_products > ALONE_UP_TO_PRODUCTS else 1)
    layout, workers = _workers(tile or (ROWS if H // G * T <= ROW_LANES else HOST_TILE))
    lanes, num_stretches = layout.lanes, max(1, -(-S // STRETCH_KEYS))
    num_panels = -(-(H // G * T) // lanes)
    if splits_keys is None:
        splits_keys = num_stretches > 1 and B * G * num_panels < 4 * num_workers

    q = _with_whole_heads(q)
    workspace = np.empty((num_workers, workspace_numbers(layout, D, value_size)), np.float32)
    spans = np.empty((num_workers, lanes, 2), np.int64)
    num_parts = B * G * num_panels * num_stretches if splits_keys else 0
    parts = np.empty((num_parts, (value_size + 2) * lanes), np.float32)
    numbers = np.array([scale, softcap or 0.0], np.float32)
    head_numbers = _head_numbers(H, slopes, sinks)
    call[words.Q : words.Q + 4] = address(q), *(step // 4 for step in q.strides[:3])
    call[words.OUT : words.FIRST_KEYS] = (
        address(output), address(lse), address(parts), address(workspace), workspace.shape[1],
        address(spans), address(numbers), address(head_numbers), address(rows),
        H, G, T, D, value_size, NO_LIMIT if left is None else left, NO_LIMIT if right is None else right,
    )  # fmt: skip
    call[words.PAIRS : words.TABLE] = B * G, num_panels, num_stretches, num_workers, slopes is not None
    prefill, attend_stretches, join_stretches = workers
    for worker in (attend_stretches, join_stretches) if splits_keys else (prefill,):
        launch(worker, call, num_workers)
    return output, lse


@cache
def _workers(tile: Tile | str) -> tuple[Layout, tuple[Any, Any, Any]]:
    layout = panel_layout(tile) if isinstance(tile, Tile) else row_layout(HOST_TILE)
    return layout, make_workers(layout)


def _head_numbers(H: int, slopes: Floats | None, sinks: Floats | None) -> Floats:
    """Return (H, 2): each head's ALiBi slope, 0 for none, and sink, ``-inf`` for none."""
    numbers = np.empty((H, 2), np.float32)
    numbers[:, 0] = 0.0 if slopes is None else slopes
    numbers[:, 1] = -np.inf if sinks is None else sinks
    return numbers


def _rows(
    pairs: tuple[int, int], T: int, S: int, offsets: Any, q_lengths: Any, kv_lengths: Any
) -> NDArray[np.int64]:
    """Return (B, G, 3): key position of query 0, valid queries, valid keys."""
    rows = np.empty((*pairs, 3), np.int64)
    for place, numbers in enumerate((offsets, T if q_lengths is None else q_lengths, S if kv_lengths is None else kv_lengths)):
        numbers = np.asarray(numbers)
        rows[..., place] = numbers[:, None] if numbers.ndim == 1 else numbers
    return rows


def _with_whole_heads(x: Floats) -> Floats:
    """Return an array in which the numbers of a head are neighbours; itself if they are."""
    in_place = x.strides[-1] == x.itemsize and all(step % x.itemsize == 0 for step in x.strides)
    return x if in_place else np.ascontiguousarray(x)
