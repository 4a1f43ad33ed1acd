"""Evict: score what a layer holds, keep the best, and move the rest together so that pages come back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.attending import Rules, Sight, held_keys, positions_of, sum_weights
from qkv.cache.closing import put_encoded
from qkv.cache.eviction import Eviction
from qkv.cache.expected_attention import (
    FUTURE_POSITIONS,
    SKIPPED_QUERIES,
    expected_scores,
    query_statistics,
    rotate_on_average,
    unrotate,
)
from qkv.cache.importance import (
    accumulate,
    decay_factors,
    heavy_hitter_scores,
    key_norm_scores,
    last_query_scores,
    observed_scores,
)
from qkv.cache.retention import OBSERVED_QUERIES, AlwaysKept, always_kept, keep
from qkv.cache.rows import read_rows, write_rows
from qkv.cache.tables import SequenceTables, between
from qkv.ops.rotary import Rotary, rotary_table, rotate


@dataclass(frozen=True)
class Rotation:
    """How a model turns its keys: what re-rotation and expected attention must know."""

    rotary: Rotary
    interleaved: bool = False


@dataclass(frozen=True)
class SeenStep:
    """One sequence's step in one layer, as its queries saw it.

    Attributes
    ----------
    q : (H, T, D)
    lse : (H, T)
    sight : Sight
        Of this sequence alone.
    rules : Rules
    """

    q: NDArray[Any]
    lse: NDArray[Any]
    sight: Sight
    rules: Rules


@dataclass(frozen=True)
class Dropped:
    """Tokens that one layer dropped after a step.

    Attributes
    ----------
    at : int
        Tokens of the text so far.
    layer : int
    positions : (G, n) int32
        Where in the text each head's dropped tokens stood.
    by : str
        The eviction.
    """

    at: int
    layer: int
    positions: NDArray[np.int32]
    by: str


def adds_up_attention(eviction: Eviction | None) -> bool:
    """Whether every step changes the scores of all tokens, and so every page."""
    return eviction is not None and eviction.name == "h2o"


def note_attention(sequence: SequenceTables, layer: int, step: SeenStep, eviction: Eviction) -> None:
    """Add what each key got in this step to its score, where an eviction goes by that.

    Raises
    ------
    CacheFull
        If copies of pages that others hold too do not fit.
    """
    if not adds_up_attention(eviction):
        return
    held, T, decay = sequence.held[layer : layer + 1], step.q.shape[1], eviction.scoring.decay
    sums = _sums(sequence, layer, step, decay_factors(T, decay))
    past = read_rows(sequence.pages, layer, ["score"], int(held[0, 0]) - T)["score"]
    first = np.zeros_like(held)
    sequence.pages.make_own(slice(layer, layer + 1), first, -(-held // sequence.layout.P))
    sequence.scored_at = int(sequence.tokens[layer])
    write_rows(sequence.pages, layer, first[0], {"score": accumulate(past, sums, T, decay)})


def evict(
    sequence: SequenceTables,
    layer: int,
    step: SeenStep,
    eviction: Eviction,
    *,
    budget: int,
    sinks: int,
    rotation: Rotation | None,
    rerotates: bool,
) -> Dropped:
    """Bring a layer down to its budget.

    Parameters
    ----------
    sequence : SequenceTables
        Holding more than ``budget`` tokens in each head of this layer.
    layer : int
    step : SeenStep
        What was last attended.
    eviction : Eviction
    budget, sinks : int
        Tokens that stay per key head, and how many of the first among them.
    rotation : Rotation, optional
        For expected attention and re-rotation.
    rerotates : bool
        Whether kept tokens are turned to consecutive positions.

    Returns
    -------
    Dropped
    """
    stays = always_kept(eviction.name, budget, sinks)
    scores = _scores(sequence, layer, step, eviction, stays, rotation)
    kept = keep(scores, budget, stays.sinks, stays.recent)
    gone = np.ones(scores.shape, bool)
    np.put_along_axis(gone, kept, False, axis=1)
    positions = positions_of(sequence, layer)
    dropped = positions[gone].reshape(len(positions), -1)
    compact(sequence, layer, kept, rotation if rerotates else None)
    sequence.evicted_at = int(sequence.tokens[layer])
    return Dropped(sequence.evicted_at, layer, dropped, str(eviction))


def compact(sequence: SequenceTables, layer: int, kept: NDArray[np.int64], rotation: Rotation | None) -> None:
    """Move the kept tokens of each head together, in order, and give back the pages behind them.

    A page that another sequence holds too is left to it, and a copy is written to.

    Parameters
    ----------
    sequence : SequenceTables
    layer : int
    kept : (G, n) int64
        Slots, ascending.
    rotation : Rotation, optional
        By which keys are turned from their old slots to their new ones.

    Raises
    ------
    CacheFull
        If copies of pages that others hold too do not fit.
    """
    if sequence.closes_pages:
        _compact_encoded(sequence, layer, kept)
        return
    table, layers, P = sequence.pages, slice(layer, layer + 1), sequence.layout.P
    (G, count), S = kept.shape, int(sequence.held[layer, 0])
    rows = read_rows(table, layer, list(table.layout.sections), S)
    chosen = {name: _choose(some, kept) for name, some in rows.items()}
    moves = np.arange(count) - kept
    if rotation is not None:
        chosen["k"] = _turned(chosen["k"], moves, rotation)
    stay = count - int(np.logical_or.accumulate(moves.any(axis=0)).sum())
    sequence.cut(layers, np.full((1, G), count))
    table.make_own(layers, np.full((1, G), stay // P), np.full((1, G), -(-count // P)))
    write_rows(table, layer, np.full(G, stay), {name: some[:, stay:] for name, some in chosen.items()})


def _compact_encoded(sequence: SequenceTables, layer: int, kept: NDArray[np.int64]) -> None:
    """Choose, and encode in new pages: the step's tokens as they came, earlier ones as they are stored."""
    (G, count), P, layers = kept.shape, sequence.layout.P, slice(layer, layer + 1)
    k, v = decoded_rows(sequence, layer)
    rows = {"k": k, "positions": positions_of(sequence, layer)}
    rows |= {} if sequence.layout.shares_values else {"v": v}
    rows = {name: _choose(some, kept) for name, some in rows.items()}
    sequence.cut(layers, np.zeros((1, G), np.int64))
    sequence.held[layer] = count
    full, end = (np.full((1, G), pages) for pages in (count // P, -(-count // P)))
    whole = {name: some[:, : count // P * P].reshape(-1, P, *some.shape[2:]) for name, some in rows.items()}
    if count >= P:
        put_encoded(sequence, layer, between(np.zeros_like(full), full), whole)
    sequence.filling.take(layers, sequence.filling.missing(layers, full, end))
    under_way = {name: some[:, count // P * P :] for name, some in rows.items()}
    write_rows(sequence.filling, layer, full[0] * P, under_way)


def _choose(rows: NDArray[Any], slots: NDArray[np.int64]) -> NDArray[Any]:
    """Return the rows of some slots of each head: (G, S, ...) by (G, n)."""
    return np.take_along_axis(rows, slots.reshape(*slots.shape, *[1] * (rows.ndim - 2)), axis=1)


def decoded_rows(sequence: SequenceTables, layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what a layer holds, ``(G, S, D)``: what is still there as it came, the rest decoded."""
    S, P = int(sequence.held[layer].max(initial=0)), sequence.layout.P
    k, v = held_keys(sequence.pages, layer, S)
    if not sequence.closes_pages:
        return k, v
    came_k, came_v = held_keys(sequence.filling, layer, S)
    as_it_came = np.repeat(sequence.filling.present[layer], P, axis=1)[:, :S, None]
    return np.where(as_it_came, came_k, k), np.where(as_it_came, came_v, v)


def _scores(
    sequence: SequenceTables,
    layer: int,
    step: SeenStep,
    eviction: Eviction,
    stays: AlwaysKept,
    rotation: Rotation | None,
) -> NDArray[np.float32]:
    G, S, T = sequence.held.shape[1], int(sequence.held[layer, 0]), step.q.shape[1]
    match eviction.name:
        case "streaming":
            return np.zeros((G, S), np.float32)
        case "h2o":
            score = read_rows(sequence.pages, layer, ["score"], S)["score"]
            ages = int(sequence.tokens[layer]) - positions_of(sequence, layer)
            return heavy_hitter_scores(score, ages, eviction.scoring.rule)
        case "snapkv" | "pyramidkv":
            window = min(OBSERVED_QUERIES, stays.recent, T)
            observed = (np.arange(T) >= T - window).astype(np.float32)
            return observed_scores(_sums(sequence, layer, step, observed), G, stays.recent)
        case "tova":
            last = (np.arange(T) == T - 1).astype(np.float32)
            return last_query_scores(_sums(sequence, layer, step, last), G)
        case "knorm":
            return key_norm_scores(decoded_rows(sequence, layer)[0])
        case "expected":
            assert rotation is not None, "the cache checks that expected attention has a rotation"
            return _expected(sequence, layer, step, stays.sinks, rotation)


def _expected(
    sequence: SequenceTables, layer: int, step: SeenStep, sinks: int, rotation: Rotation
) -> NDArray[np.float32]:
    # Where tokens were moved together their positions are others, but only differences count here.
    end, T = int(sequence.tokens[layer]), step.q.shape[1]
    turning = {"interleaved": rotation.interleaved}
    q = unrotate(step.q, rotation.rotary, np.arange(end - T, end), **turning)
    skipped = max(0, SKIPPED_QUERIES - (end - T))
    statistics = query_statistics(q[:, skipped:] if skipped < T else q)
    coming = rotate_on_average(statistics, rotation.rotary, end, num_positions=FUTURE_POSITIONS, **turning)
    k, v = decoded_rows(sequence, layer)
    return expected_scores(coming, k, v, scale=step.rules.scale, sinks=sinks)


def _sums(
    sequence: SequenceTables, layer: int, step: SeenStep, factors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the mean over each group's heads of what each key got, ``(G, S)``."""
    q, lse = step.q[None], step.lse[None]
    sums = sum_weights([sequence], layer, q, lse, step.sight, step.rules, factors[None])[0]
    return sums / np.float32(step.q.shape[0] // sums.shape[0])


def _turned(keys: NDArray[Any], moves: NDArray[np.int64], rotation: Rotation) -> NDArray[Any]:
    """Turn each key by as many positions as it moves: (G, n, D) by (G, n)."""
    cosines, sines = rotary_table(Rotary(rotation.rotary.frequencies), moves)
    turned = rotate(keys.astype(np.float32), cosines, sines, interleaved=rotation.interleaved)
    return turned.astype(keys.dtype)
