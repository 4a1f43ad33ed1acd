"""Attention on keys and values in pages, which are read where they lie, in the form they have."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels.attention import (
    Floats,
    Prepared,
    Rules,
    Sizes,
    Words,
    layout_for,
    prepare_again,
    rows_of,
    run,
    tile_for,
    with_whole_heads,
    workers_for,
)
from qkv.kernels.attention_layouts import ROW_LANES
from qkv.kernels.attention_sums import make_sums_worker, sums_workspace_numbers
from qkv.kernels.attention_words import STRETCH_KEYS
from qkv.kernels.codes import CODES, INTEGERS
from qkv.kernels.host import HOST_TILE, Tile
from qkv.kernels.integer_products import WORDS
from qkv.kernels.key_rows import widen
from qkv.kernels.launch import address, code_address, launch
from qkv.kernels.micro import CHAINS


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
    q_lengths : (B,) integers, optional
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
    q_lengths: Sequence[int] | Words | None = None
    sees: int = words.ALL_PAGES
    positions: NDArray[np.int32] | None = None


def attend_pages(
    q: Floats, pages: Pages, reach: Reach, own_pages: Pages | None = None, **rules: Unpack[Rules]
) -> tuple[Floats, Floats]:
    """Return what `qkv.kernels.attention.attend` gives for the keys and values in the pages.

    Parameters
    ----------
    q : (B, H, T, D)
    pages : Pages
    reach : Reach
    own_pages : Pages, optional
        Of float32 and of the same size: where each query sees the page it stands in, and ``pages`` before
        that one. Left out, ``pages`` are all there are.
    **rules
        See `Rules`; ``right`` is 0: no query sees a later key.

    Returns
    -------
    output : (B, H, T, D)
    lse : (B, H, T)
    """
    prepared = prepare_pages(q.shape, pages, reach, own_pages, **rules)
    return run(prepared.call, prepared, q)


def prepare_pages(
    q_shape: tuple[int, ...],
    pages: Pages,
    reach: Reach,
    own_pages: Pages | None = None,
    **rules: Unpack[Rules],
) -> Prepared:
    """Write down the call of `attend_pages` without its queries, ``(B, H, T, D)``, and its results."""
    (B, H, T, D), G = q_shape, pages.table.shape[1]
    S = int(reach.kv_lengths.max(initial=0))
    if rules.get("tile") is None and _reads_codes(pages, H // G * T, D):
        rules["tile"] = pages.element
    rules["right"] = 0
    if rules.get("num_workers") is None:  # a thread is not worth it for what is held and not seen
        seen = min(S, _most_seen(pages, reach, S, T))
        rules["num_workers"] = workers_for(B * H * T * seen * (D + pages.value_dim))
    num_stretches = -(-S // STRETCH_KEYS)
    sizes = Sizes(B, H, G, T, num_stretches * STRETCH_KEYS, D, pages.value_dim)
    prepared = prepare_again(sizes, _rows(pages, reach, T), own_pages is not None, **rules)
    call = prepared.call
    if own_pages is None:
        _put_pages(call, pages, reach, reach.sees)
    else:
        _put_pages(call, pages, reach, words.EARLIER_PAGES)
        _put_pages(call[words.NUM_WORDS :], own_pages, reach, words.OWN_PAGE_ONLY)
    return prepared


def _most_seen(pages: Pages, reach: Reach, S: int, T: int) -> int:
    """Return how many keys the T queries of a head see together at most."""
    if reach.sees == words.OWN_PAGE_ONLY:
        return T + pages.page_size
    return S if reach.left is None else T + int(np.max(reach.left)) + int(np.max(reach.first_keys))


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
        What `attend_pages` returned. Scores are those of the numbers that codes stand for, which integer
        codes differ from by the rounding of their queries.
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
    spans = np.empty((num_workers, layout.lanes, words.SPAN_WORDS), np.int64)
    lse, numbers = np.ascontiguousarray(lse, np.float32), np.array([scale, 0.0], np.float32)
    factors = None if factors is None else np.ascontiguousarray(factors, np.float32)
    rows, q = _rows(pages, reach, T), with_whole_heads(q)
    num_panels = -(-(H // G * T) // layout.lanes)
    call = np.zeros(words.NUM_WORDS, np.int64)
    _put_pages(call, pages, reach, reach.sees)
    call[words.Q : words.Q + 4] = address(q), *(step // 4 for step in q.strides[:3])
    call[words.LSE] = address(lse)
    call[words.WORKSPACE : words.HEAD_NUMBERS] = (
        address(workspace), workspace.shape[1], address(spans), address(numbers),
    )  # fmt: skip
    call[words.ROWS : words.D + 1] = address(rows), H, G, T, D
    call[words.PAIRS : words.HAS_SLOPES] = B * G, num_panels, num_stretches, num_workers
    call[words.FACTORS : words.COLUMNS + 1] = 0 if factors is None else address(factors), address(columns)
    launch(_sums_worker(tile), call, num_workers)
    return columns[..., :S]


def _reads_codes(pages: Pages, queries_per_key_head: int, D: int) -> bool:
    """Whether codes go straight from a page into the products.

    Whole numbers do for any number of queries, as their products have other bits than those of the numbers
    they stand for; codes of floats do for few. Both need rows of whole vectors.
    """
    if pages.element in INTEGERS:
        keys, values = INTEGERS[pages.element]
        shared = pages.shares_values and keys != values
        whole = D % (WORDS * keys.halves) == 0 and pages.value_dim % WORDS == 0
        return whole and not shared
    if pages.element not in CODES or queries_per_key_head > ROW_LANES:
        return False
    return D % CHAINS == 0 and pages.value_dim % HOST_TILE.width == 0


def _rows(pages: Pages, reach: Reach, T: int) -> Words:
    q_lengths = T if reach.q_lengths is None else np.asarray(reach.q_lengths)[:, None]
    pairs = pages.table.shape[0], pages.table.shape[1]
    return rows_of(pairs, reach.offsets, q_lengths, reach.kv_lengths, reach.left, reach.first_keys)


def _put_pages(call: Words, pages: Pages, reach: Reach, sees: int) -> None:
    """Write down where keys and values are; what the call points to must outlive it."""
    assert pages.table.flags.c_contiguous, "a table of pages lies in one piece"
    call[words.TABLE], call[words.TABLE_STEP] = address(pages.table), pages.table.shape[2]
    call[words.PAGE_KEYS : words.OWN_PAGE], call[words.OWN_PAGE] = _form_words(pages[1:]), sees
    if reach.positions is not None:
        assert reach.positions.flags.c_contiguous and reach.positions.dtype == np.int32
        call[words.POSITIONS] = address(reach.positions)
        call[words.POSITIONS_STEP] = reach.positions.shape[2]


@lru_cache(maxsize=256)
def _form_words(form: tuple[Any, ...]) -> Words:
    """Return the words from `PAGE_KEYS` on that say what is in pages: of `Pages` all but the table."""
    page_size, element, _, shares_values, *places = form
    code = words.ELEMENTS.index(element)
    widens = code_address(widen) if element != "float32" else 0
    return np.array([page_size, code, *places, widens, shares_values], np.int64)


@cache
def _sums_worker(tile: Tile | str) -> Any:
    vectors, width = (tile.vectors, tile.width) if isinstance(tile, Tile) else (1, layout_for(tile).lanes)
    return make_sums_worker(layout_for(tile), vectors, width)
