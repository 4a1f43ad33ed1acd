"""Attention over page tables: what the queries of one step get from what their sequences hold.

The compiled form, `qkv.cache.attending_compiled`, reads codes where they lie. Its twin gathers and decodes
what a layer holds and calls `qkv.ops.attend`. Both let a query see, of the keys its head holds, those up to
its own; of these the ones in its window and the first ones that no window hides; and where pages are encoded
when full, its own page as it came and the earlier ones as they are stored: the compiled form in one walk, its
twin in two parts that it merges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.contiguous import CacheShape
from qkv.cache.rows import read_rows
from qkv.cache.tables import Counts, PageTable, SequenceTables
from qkv.errors import OptionError, ShapeError
from qkv.ops import attend, merge_attended
from qkv.ops.backend import is_compiled
from qkv.ops.columns import attention_columns
from qkv.ops.operands import Operands
from qkv.shapes import Array, LogSumExp, Queries


@dataclass(frozen=True)
class Sight:
    """Which held keys the queries of a step see.

    Attributes
    ----------
    new : (B,) int64
        Queries of each sequence, whose keys are the last ones held.
    windows : (B, G) int64, optional
        W of each head; ``None`` = no head has one.
    first_keys : (B, G) int64
        How many keys at the beginning no window hides.
    positions : (B, G, S) int32, optional
        Where in the text the keys held stand, for the windows; at their slots when left out.
    """

    new: Counts
    windows: Counts | None
    first_keys: Counts
    positions: NDArray[np.int32] | None = None

    def of_row(self, row: int) -> "Sight":
        """Return what one sequence sees, as a batch of its own."""
        one = slice(row, row + 1)
        return Sight(
            self.new[one],
            None if self.windows is None else self.windows[one],
            self.first_keys[one],
            None if self.positions is None else self.positions[one],
        )


@dataclass(frozen=True)
class Rules:
    """How scores become weights: ``scale`` and ``softcap`` as for `qkv.attend`, ``sinks`` one per head."""

    scale: float
    softcap: float | None = None
    sinks: Any = None


def check_queries(shape: CacheShape, batch_size: int, q: Queries) -> None:
    """Raise `ShapeError` unless queries fit the cache's shape."""
    G, D = shape.num_kv_heads, shape.head_dim
    if q.ndim != 4 or (q.shape[0], q.shape[3]) != (batch_size, D) or q.shape[1] % G:
        raise ShapeError(
            f"the cache takes q of shape (B, H, T, D) = ({batch_size}, a multiple of {G}, T, {D}), "
            f"not {tuple(q.shape)}"
        )


def attend_tables(
    sequences: Sequence[SequenceTables], layer: int, q: Queries, sight: Sight, rules: Rules
) -> tuple[Array, LogSumExp]:
    """Return output ``(B, H, T, D_v)`` and lse ``(B, H, T)`` of a step's queries.

    Parameters
    ----------
    sequences : B SequenceTables
        Of one layout; the step's keys and values are in them.
    layer : int
    q : (B, H, T, D)
    sight : Sight
    rules : Rules

    Raises
    ------
    OptionError
        If the pages of the queries have been encoded since they came.
    """
    if sequences[0].closes_pages:
        _check_still_there(sequences, layer, sight.new)
    if is_compiled() and q.dtype == np.float32:
        from qkv.cache.attending_compiled import attend_compiled  # the compiler is loaded when first needed

        return attend_compiled(sequences, layer, q, sight, rules)
    return _attend_decoded(sequences, layer, q, sight, rules)


def _check_still_there(sequences: Sequence[SequenceTables], layer: int, new: Counts) -> None:
    layers = slice(layer, layer + 1)
    for one, count in zip(sequences, new.tolist(), strict=True):
        held, P = one.held[layers], one.layout.P
        if all(number % P >= count for number in held[0].tolist()):
            continue  # all stand in the page under way, which is there
        if one.filling.missing(layers, (held - count) // P, -(-held // P)).where.any():
            raise OptionError(
                f"queries see their own page of {one.layout.element} as it came, and these pages have been "
                f"encoded since; attend once in each layer after append"
            )


def sum_weights(
    sequences: Sequence[SequenceTables],
    layer: int,
    q: Queries,
    lse: LogSumExp,
    sight: Sight,
    rules: Rules,
    factors: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return what each held key got: weights summed over queries and over the heads of its group.

    Parameters
    ----------
    sequences, layer, q, sight, rules
        As for `attend_tables`.
    lse : (B, H, T)
        What that returned.
    factors : (B, T), optional
        How much each query counts.

    Returns
    -------
    (B, G, S)
    """
    parts = [("all", [one.pages for one in sequences])]
    if sequences[0].closes_pages:
        parts = [("earlier", parts[0][1]), ("own", [one.filling for one in sequences])]
    sums = [
        _sum_part(tables, sequences, layer, q, lse, sight, rules, factors, sees) for sees, tables in parts
    ]
    return sum(sums[1:], sums[0])


def _sum_part(
    tables: Sequence[PageTable],
    sequences: Sequence[SequenceTables],
    layer: int,
    q: Queries,
    lse: LogSumExp,
    sight: Sight,
    rules: Rules,
    factors: NDArray[np.float32] | None,
    sees: str,
) -> NDArray[np.float32]:
    if is_compiled() and q.dtype == np.float32 and rules.softcap is None:
        from qkv.cache.attending_compiled import sum_compiled

        return sum_compiled(tables, sequences, layer, q, lse, sight, rules.scale, factors, sees)
    k, v, mask = _decoded(tables, sequences, layer, q, sight, sees)
    operands = Operands.of(q, k, v, mask=mask, scale=rules.scale, softcap=rules.softcap)
    columns = attention_columns(operands, lse, factors)
    return columns.reshape(*k.shape[:2], -1, k.shape[2]).sum(axis=2)


def held_keys(
    table: PageTable, layer: int, count: int, first_page: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the decoded keys and values, ``(G, count, D)``, of every head's slots from a page on.

    Where there is no page, because it fell behind a window or a head holds less, there are zeros.
    """
    layout, G = table.layout, table.ids.shape[1]
    num_pages = -(-count // layout.P)
    k = np.zeros((G, num_pages, layout.P, layout.D_k), np.float32)
    v = np.zeros((G, num_pages, layout.P, layout.D_v), np.float32)
    for head, page in np.argwhere(table.present[layer, :, first_page : first_page + num_pages]):
        k[head, page], v[head, page] = layout.read(table.pool.page(table.ids[layer, head, first_page + page]))
    k, v = (x.reshape(G, -1, x.shape[-1])[:, :count] for x in (k, v))
    return k, v


def held_of_layer(sequences: Sequence[SequenceTables], layer: int) -> Counts:
    """Return how many keys each head of a layer holds, ``(B, G)``; not to be written to."""
    if len(sequences) == 1:
        return sequences[0].held[layer : layer + 1]
    return np.stack([one.held[layer] for one in sequences])


def held_positions(sequences: Sequence[SequenceTables], layer: int) -> NDArray[np.int32]:
    """Return where in the text the keys that a layer holds stand, ``(B, G, S)``; 0 behind the last."""
    most = max(int(one.held[layer].max()) for one in sequences)
    positions = np.zeros((len(sequences), sequences[0].held.shape[1], most), np.int32)
    for row, one in zip(positions, sequences, strict=True):
        row[:, : int(one.held[layer, 0])] = positions_of(one, layer)
    return positions


def positions_of(sequence: SequenceTables, layer: int) -> NDArray[np.int32]:
    """Return where in the text the tokens stand that a layer of one sequence holds, ``(G, S)``.

    For layouts that keep positions: an eviction leaves all heads of a layer as many tokens.
    """
    G, S, P = sequence.held.shape[1], int(sequence.held[layer, 0]), sequence.layout.P
    encoded = S // P * P if sequence.closes_pages else S
    positions = read_rows(sequence.pages, layer, ["positions"], encoded)["positions"]
    if encoded == S:
        return positions
    under_way = read_rows(sequence.filling, layer, ["positions"], S - encoded, np.full(G, encoded))
    return np.concatenate([positions, under_way["positions"]], axis=1)


def _attend_decoded(
    sequences: Sequence[SequenceTables], layer: int, q: Queries, sight: Sight, rules: Rules
) -> tuple[Array, LogSumExp]:
    pages = [one.pages for one in sequences]
    if not sequences[0].closes_pages:
        return _attend_part(pages, sequences, layer, q, sight, rules, "all")
    earlier = _attend_part(pages, sequences, layer, q, sight, rules, "earlier")
    beside, filling = Rules(rules.scale, rules.softcap), [one.filling for one in sequences]
    return merge_attended(*earlier, *_attend_part(filling, sequences, layer, q, sight, beside, "own"))


def _attend_part(
    tables: Sequence[PageTable],
    sequences: Sequence[SequenceTables],
    layer: int,
    q: Queries,
    sight: Sight,
    rules: Rules,
    sees: str,
) -> tuple[Array, LogSumExp]:
    k, v, mask = _decoded(tables, sequences, layer, q, sight, sees)
    options = {"scale": rules.scale, "softcap": rules.softcap, "sinks": rules.sinks}
    return attend(q, k, v, mask=mask, return_lse=True, **options)


def _decoded(
    tables: Sequence[PageTable],
    sequences: Sequence[SequenceTables],
    layer: int,
    q: Queries,
    sight: Sight,
    sees: str,
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return the keys and values held, ``(B, G, S, D)``, and which each query sees, ``(B, H, T, S)``."""
    held = held_of_layer(sequences, layer)
    (_, H, T, _), (_, G), S = q.shape, held.shape, int(held.max(initial=0))
    pairs = [held_keys(table, layer, S) for table in tables]
    k, v = (np.stack(x).astype(q.dtype, copy=False) for x in zip(*pairs, strict=True))
    visible = visible_slots(held, sight, T, S, tables[0].layout.P, sees)
    return k, v, np.repeat(visible, H // G, axis=1)


def visible_slots(
    held: Counts,
    sight: Sight,
    num_queries: int,
    num_slots: int,
    page_size: int,
    sees: str = "all",
) -> NDArray[np.bool_]:
    """Return which slots each query of a step sees: ``(B, G, T, S)``.

    Parameters
    ----------
    held : (B, G) int64
    sight : Sight
    num_queries, num_slots : int
        T and S.
    page_size : int
        P.
    sees : "all", "earlier" or "own"
        All pages, those before the one a query stands in, or only that one.

    Examples
    --------
    Two queries behind three keys, a window of 2, and the first key always seen:

    >>> sight = Sight(np.array([2]), windows=np.array([[2]]), first_keys=np.array([[1]]))
    >>> visible_slots(np.array([[5]]), sight, 2, 5, page_size=4)[0, 0].astype(int)
    array([[1, 0, 1, 1, 0],
           [1, 0, 0, 1, 1]])
    """
    slots = np.arange(num_slots)
    queries = np.arange(num_queries)
    own = (held - sight.new[:, None])[..., None] + queries  # B G T
    seen = (slots <= own[..., None]) & (queries < sight.new[:, None])[:, None, :, None]
    if sight.windows is not None:
        at_slots = np.broadcast_to(slots, (*held.shape, num_slots))
        places = at_slots if sight.positions is None else sight.positions[..., :num_slots]
        within = np.take_along_axis(places, np.clip(own, 0, max(num_slots - 1, 0)), axis=2)
        near = places[:, :, None] > within[..., None] - sight.windows[..., None, None]
        seen &= near | (slots < sight.first_keys[..., None, None])
    page_start = own[..., None] // page_size * page_size
    if sees == "earlier":
        seen &= slots < page_start
    if sees == "own":
        seen &= slots >= page_start
    return seen
