"""Attention on keys and values in pages, which are read where they lie, in the form they have."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels.attention import (
    Floats,
    Rules,
    Words,
    layout_for,
    put_queries,
    rows_of,
    run_attention,
    tile_for,
    workers_for,
)
from qkv.kernels.attention_sums import make_sums_worker, sums_workspace_numbers
from qkv.kernels.attention_words import STRETCH_KEYS
from qkv.kernels.host import Tile
from qkv.kernels.launch import address, launch


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
    value_dim : int
        D of the values.
    shares_values : bool
        A value is the beginning of its key.
    k, v, k_steps, v_steps, k_lows, v_lows : int
        Where in a page's bytes codes, scales and offsets begin; 0 where there are none.
    """

    table: Words
    page_size: int
    element: str
    value_dim: int
    shares_values: bool = False
    k: int = 0
    v: int = 0
    k_steps: int = 0
    v_steps: int = 0
    k_lows: int = 0
    v_lows: int = 0


class Reach(NamedTuple):
    """Which keys in the pages each query may see.

    Attributes
    ----------
    offsets : (B, G) int64
        Key position of query 0: its place among the keys held.
    kv_lengths : (B, G) int64
        Keys held.
    left : (B, G) int64, optional
        How many keys before its own a query sees.
    first_keys : int or (B, G) int64
        How many keys at the beginning no window hides.
    q_lengths : B integers, optional
        How many leading queries of each sequence are real.
    sees : int
        All pages, only those before the one a query stands in, or only that one: `attention_words`.
    positions : (B, G, S) int32, optional
        Where in the text each key held stands, for windows; at its slot when left out.
    """

    offsets: Words
    kv_lengths: Words
    left: Words | None = None
    first_keys: Words | int = 0
    q_lengths: Sequence[int] | None = None
    sees: int = words.ALL_PAGES
    positions: NDArray[np.int32] | None = None


def attend_pages(q: Floats, pages: Pages, reach: Reach, **rules: Unpack[Rules]) -> tuple[Floats, Floats]:
    """Return what `qkv.kernels.attention.attend` gives for the keys and values in the pages.

    Parameters
    ----------
    q : (B, H, T, D)
    pages : Pages
    reach : Reach
    **rules
        See `Rules`; ``right`` is 0: no query sees a later key.

    Returns
    -------
    output : (B, H, T, D)
    lse : (B, H, T)
    """
    call, rows = _begin_call(pages, reach, q.shape[2])
    S = int(reach.kv_lengths.max(initial=0))
    return run_attention(call, q, rows, S, pages.value_dim, right=0, **rules)


def sum_columns(
    q: Floats, pages: Pages, reach: Reach, lse: Floats, *, scale: float, factors: Floats | None = None
) -> Floats:
    """Return what each key gets: weights summed over the queries, and over the heads of its group.

    Parameters
    ----------
    q : (B, H, T, D)
    pages : Pages
    reach : Reach
    lse : (B, H, T)
        What `attend_pages` returned.
    scale : float
    factors : (B, T), optional
        How much each query counts; 1 when left out.

    Returns
    -------
    (B, G, S)
        S is the largest of ``reach.kv_lengths``.
    """
    (B, G, _), (_, H, T, D) = pages.table.shape, q.shape
    S = int(reach.kv_lengths.max(initial=0))
    num_stretches = max(1, -(-S // STRETCH_KEYS))
    columns = np.zeros((B, G, num_stretches * STRETCH_KEYS), np.float32)
    if not q.size:
        return columns[..., :S]
    num_workers = workers_for(B * H * T * S * D)
    tile = tile_for(H // G * T)
    layout = layout_for(tile)
    workspace = np.empty((num_workers, sums_workspace_numbers(layout, D)), np.float32)
    spans = np.empty((num_workers, layout.lanes, 2), np.int64)
    lse, numbers = np.ascontiguousarray(lse, np.float32), np.array([scale, 0.0], np.float32)
    factors = None if factors is None else np.ascontiguousarray(factors, np.float32)
    call, rows = _begin_call(pages, reach, T)
    q = put_queries(call, q, rows, right=0)
    num_panels = -(-(H // G * T) // layout.lanes)
    call[words.LSE] = address(lse)
    call[words.WORKSPACE : words.HEAD_NUMBERS] = (
        address(workspace), workspace.shape[1], address(spans), address(numbers),
    )  # fmt: skip
    call[words.PAIRS : words.HAS_SLOPES] = B * G, num_panels, num_stretches, num_workers
    call[words.FACTORS : words.NUM_WORDS] = 0 if factors is None else address(factors), address(columns)
    launch(_sums_worker(tile), call, num_workers)
    return columns[..., :S]


def _begin_call(pages: Pages, reach: Reach, T: int) -> tuple[Words, Words]:
    """Write down where keys and values are; what the call points to must outlive it."""
    B, G, N = pages.table.shape
    assert pages.table.flags.c_contiguous, "a table of pages lies in one piece"
    call = np.zeros(words.NUM_WORDS, np.int64)
    call[words.TABLE : words.OWN_PAGE + 1] = (
        address(pages.table), N, pages.page_size, words.ELEMENTS.index(pages.element), *pages[5:],
        pages.shares_values, reach.sees,
    )  # fmt: skip
    if reach.positions is not None:
        assert reach.positions.flags.c_contiguous and reach.positions.dtype == np.int32
        call[words.POSITIONS] = address(reach.positions)
        call[words.POSITIONS_STEP] = reach.positions.shape[2]
    q_lengths = T if reach.q_lengths is None else reach.q_lengths
    rows = rows_of((B, G), reach.offsets, q_lengths, reach.kv_lengths, reach.left, reach.first_keys)
    return call, rows


@cache
def _sums_worker(tile: Tile | str) -> Any:
    vectors, width = (tile.vectors, tile.width) if isinstance(tile, Tile) else (1, layout_for(tile).lanes)
    return make_sums_worker(layout_for(tile), vectors, width)
