"""Attention on float32 arrays in compiled code: writes down a call and starts its workers."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels.attention_layouts import ROW_LANES, Layout, panel_layout, row_layout
from qkv.kernels.attention_words import NO_LIMIT, STRETCH_KEYS
from qkv.kernels.attention_workers import make_workers, workspace_numbers
from qkv.kernels.compiler import compiled
from qkv.kernels.host import HOST_TILE, Tile, num_threads
from qkv.kernels.launch import LINE_BYTES, LINE_NUMBERS, address, code_address, launch

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

ALONE_UP_TO_PRODUCTS = 1 << 20
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
    tile : Tile or str
        How queries are held: in panels, in `ROWS`, or in rows beside codes of the element that is named;
        chosen by how many there are when left out. Over pages of integer codes the element named has bits
        of its own, and the others those of the numbers that codes stand for.
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
    (B, H, T, D), (_, G, S, value_size) = q.shape, v.shape
    sizes = Sizes(B, H, G, T, S, D, value_size)
    if q_lengths is None and kv_lengths is None and isinstance(offsets, int) and _is_plain(rules):
        prepare_once: Any = _prepare_plain
        prepared = prepare_once(sizes, offsets, left, **_with_workers(sizes, rules))
    else:
        rows = rows_of(
            (B, G),
            _for_all_heads(offsets),
            _for_all_heads(T if q_lengths is None else q_lengths),
            _for_all_heads(S if kv_lengths is None else kv_lengths),
            left,
        )
        prepared = prepare(sizes, rows, **rules)
    k, v = with_whole_heads(k), with_whole_heads(v)
    call = prepared.call.copy()
    for place, array in ((words.K, k), (words.V, v)):
        call[place] = address(array)
        call[place + 1], call[place + 2], call[place + 3] = (step // 4 for step in array.strides[:3])
    for place, grid in ((words.MASK, mask), (words.BIAS, bias)):
        if grid is not None:
            whole = np.broadcast_to(grid, (B, H, T, S))
            call[place : place + 5] = address(whole), *(step // whole.itemsize for step in whole.strides)
    return run(call, prepared, q)


def _for_all_heads(numbers: int | Sequence[int]) -> NDArray[Any]:
    """Return a number of each sequence, or one for all: (B, 1) or (1, 1)."""
    return np.reshape(numbers, (-1, 1))


def rows_of(
    pairs: tuple[int, int], offsets: Any, q_lengths: Any, kv_lengths: Any, left: Any, first_keys: Any = 0
) -> Words:
    """Return what is told of each sequence and key head, (B, G, ROW_WORDS); numbers are (B, 1) or (B, G)."""
    rows = np.empty((*pairs, words.ROW_WORDS), np.int64)
    rows[..., words.OFFSET], rows[..., words.Q_LENGTH] = offsets, q_lengths
    rows[..., words.KV_LENGTH], rows[..., words.FIRST_KEYS] = kv_lengths, first_keys
    rows[..., words.LEFT] = NO_LIMIT if left is None else left
    return rows


class Sizes(NamedTuple):
    """The axes of a call; ``value_size`` is D of the values."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    value_size: int


class Prepared(NamedTuple):
    """All of a call that does not depend on where its arrays are.

    Attributes
    ----------
    sizes : Sizes
    call : (NUM_WORDS,) int64
        With the addresses of the arrays below, and without those of the call's own. Twice as many words
        where there is a second call for the queries' own pages.
    kept : tuple of arrays
        What the words point to.
    workers : compiled functions
        To be run one after the other.
    num_workers, scratch_numbers : int
        Threads, and the float32 numbers of scratch memory for all of them.
    """

    sizes: Sizes
    call: Words
    kept: tuple[Any, ...]
    workers: tuple[Any, ...]
    num_workers: int
    scratch_numbers: int


def prepare(
    sizes: Sizes,
    rows: Words,
    has_own_call: bool = False,
    *,
    scale: float,
    softcap: float | None = None,
    right: int | None = None,
    slopes: Floats | None = None,
    sinks: Floats | None = None,
    tile: Tile | str | None = None,
    splits_keys: bool | None = None,
    num_workers: int | None = None,
) -> Prepared:
    """Choose how a call is cut, and write down what is known of it without its arrays.

    Parameters
    ----------
    sizes : Sizes
    rows : (B, G, ROW_WORDS) int64
        From `rows_of`.
    has_own_call : bool
        Whether queries see the pages they stand in by a call whose words follow those of the first.
    scale, softcap, right, slopes, sinks, tile, splits_keys, num_workers
        See `Rules`.
    """
    B, H, G, T, S, D, value_size = sizes
    num_workers = num_workers or workers_for(count_products(sizes))
    tile = tile or tile_for(H // G * T)
    layout, (attend_stretch, attend_units, join_stretches) = workers_of(tile)
    num_stretches, num_panels = max(1, -(-S // STRETCH_KEYS)), -(-(H // G * T) // layout.lanes)
    if splits_keys is None:
        splits_keys = num_stretches > 1 and B * G * num_panels < 4 * num_workers
    numbers = np.array([scale, softcap or 0.0], np.float32)
    head_numbers = _head_numbers(H, slopes, sinks)
    # Own pages hold float32; for these all layouts of rows, which have as many lanes, have one beside them.
    own_layout, (attend_own, *_) = workers_of(tile if isinstance(tile, Tile) or not has_own_call else ROWS)
    per_worker = max(workspace_numbers(one, D, value_size) for one in (layout, own_layout))
    num_parts = B * G * num_panels * num_stretches if splits_keys else 0
    spans_numbers, parts_numbers = (
        2 * words.SPAN_WORDS * layout.lanes * num_workers,
        num_parts * (value_size + 2) * layout.lanes,
    )

    call = np.zeros(words.NUM_WORDS, np.int64)
    call[words.PAGE_KEYS] = 1
    call[words.WORKSPACE_SIZE] = per_worker
    call[words.NUMBERS : words.D_V + 1] = (
        address(numbers), address(head_numbers), address(rows), H, G, T, D, value_size,
    )  # fmt: skip
    call[words.RIGHT : words.TABLE] = (
        NO_LIMIT if right is None else right, B * G, num_panels, num_stretches, num_workers,
        slopes is not None, sinks is not None,
        code_address(attend_stretch),
        splits_keys,
    )  # fmt: skip
    # In bytes behind the beginning of the scratch memory, which `run` adds.
    call[words.WORKSPACE] = 4 * spans_numbers
    call[words.PARTS] = 4 * (spans_numbers + per_worker * num_workers)
    if has_own_call:
        call = np.concatenate([call, call])
        call[words.NUM_WORDS + words.STRETCH] = code_address(attend_own)
        call[words.OWN_CALL] = 8 * words.NUM_WORDS
    workers = (attend_units, join_stretches) if splits_keys else (attend_units,)
    scratch_numbers = spans_numbers + per_worker * num_workers + parts_numbers
    return Prepared(sizes, call, (numbers, head_numbers, rows), workers, num_workers, scratch_numbers)


def run(call: Words, prepared: Prepared, q: Floats) -> tuple[Floats, Floats]:
    """Run a call that says where keys and values are: a copy of a prepared one, finished here."""
    B, H, _, T, _, _, value_size = prepared.sizes
    output, lse = np.empty((B, H, T, value_size), np.float32), np.empty((B, H, T), np.float32)
    if not lse.size:
        return output, lse
    q = with_whole_heads(q)
    scratch = np.empty(prepared.scratch_numbers + LINE_NUMBERS, np.float32)
    call[words.Q + 1 : words.Q + 4] = [step // 4 for step in q.strides[:3]]
    _point_to(call, q[0, 0, 0], output[0, 0, 0], lse[0, 0], scratch)
    for worker in prepared.workers:
        launch(worker, call, prepared.num_workers)
    return output, lse


@compiled()
def _point_to(call: Any, q: Any, output: Any, lse: Any, scratch: Any) -> None:
    """Write down where arrays begin, by a row of each: faster than Python finds the address of one."""
    call[words.Q], call[words.OUT], call[words.LSE] = q.ctypes.data, output.ctypes.data, lse.ctypes.data
    # Scratch memory begins with a line of the cache, so that no vector has two.
    start = (scratch.ctypes.data + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
    call[words.SPANS] = start
    call[words.WORKSPACE] += start
    call[words.PARTS] += start


def _is_plain(rules: Rules) -> bool:
    """Whether a call's rules are numbers only, by which it may be found again."""
    return rules.get("slopes") is None and rules.get("sinks") is None


@lru_cache(maxsize=256)
def _prepare_plain(sizes: Sizes, offset: int, left: int | None, **rules: Unpack[Rules]) -> Prepared:
    """Prepare a call once for all calls of its kind: in a model each layer makes the same."""
    rows = rows_of((sizes.B, sizes.G), offset, sizes.T, sizes.S, left)
    return prepare(sizes, rows, **rules)


def prepare_again(sizes: Sizes, rows: Words, has_own_call: bool = False, **rules: Unpack[Rules]) -> Prepared:
    """Return what `prepare` does for rows that are others in each call of a kind: the rest is found again."""
    if not _is_plain(rules):
        return prepare(sizes, rows, has_own_call, **rules)
    find: Any = _prepare_kind
    kind: Prepared = find(sizes, has_own_call, **_with_workers(sizes, rules))
    call = kind.call.copy()
    call[words.ROWS :: words.NUM_WORDS] = address(rows)
    return Prepared(sizes, call, (*kind.kept, rows), kind.workers, kind.num_workers, kind.scratch_numbers)


@lru_cache(maxsize=256)
def _prepare_kind(sizes: Sizes, has_own_call: bool, **rules: Unpack[Rules]) -> Prepared:
    """Prepare a call without its rows."""
    return prepare(sizes, np.zeros(0, np.int64), has_own_call, **rules)


def _with_workers(sizes: Sizes, rules: Rules) -> Rules:
    """Return rules that say how many threads there are now: a call is found again for that many only."""
    return {**rules, "num_workers": rules.get("num_workers") or workers_for(count_products(sizes))}


def count_products(sizes: Sizes) -> int:
    """Return how many multiplications a call takes at most."""
    return sizes.B * sizes.H * sizes.T * sizes.S * (sizes.D + sizes.value_size)


def workers_for(num_products: int) -> int:
    """Return how many threads a call of so many multiplications is worth."""
    return num_threads() if num_products > ALONE_UP_TO_PRODUCTS else 1


def tile_for(queries_per_key_head: int) -> Tile | str:
    """Return how so many queries are held."""
    return ROWS if queries_per_key_head <= ROW_LANES else HOST_TILE


@cache
def layout_for(tile: Tile | str) -> Layout:
    """Return the layout for a tile, or of rows: of float32, or of the element that is named."""
    return panel_layout(tile) if isinstance(tile, Tile) else row_layout(HOST_TILE, tile)


@cache
def workers_of(tile: Tile | str) -> tuple[Layout, tuple[Any, Any, Any]]:
    """Return a layout and its workers: attend to one stretch, to all, and join what was split."""
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
    if x.flags.c_contiguous:
        return x
    in_place = x.strides[-1] == x.itemsize and all(step % x.itemsize == 0 for step in x.strides)
    return x if in_place else np.ascontiguousarray(x)
