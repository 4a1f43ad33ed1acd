"""Attention's backward on float32 arrays in compiled code: writes down a call and starts its workers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_backward_words as words
from qkv.kernels.attention import with_whole_heads, workers_for
from qkv.kernels.attention_backward_words import NO_LIMIT, part_numbers
from qkv.kernels.attention_backward_workers import Workers, make_workers
from qkv.kernels.host import HOST_TILE, Tile
from qkv.kernels.launch import address, code_address, launch

Floats = NDArray[np.float32]

LINE_BYTES = 64
"""Where a vector begins in memory, it crosses no line."""


def attend_backward(
    d_output: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    output: Floats,
    lse: Floats,
    *,
    scale: float,
    offsets: int | Sequence[int] = 0,
    q_lengths: Sequence[int] | None = None,
    kv_lengths: Sequence[int] | None = None,
    left: int | None = None,
    right: int | None = None,
    tile: Tile = HOST_TILE,
    num_workers: int | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Return the gradients of q, k and v, with the same bits on any number of threads.

    Parameters
    ----------
    d_output, q, k, v, output, lse
        As for `qkv.training.attention.attend_backward`.
    scale, q_lengths, kv_lengths
        As for `qkv.attend`.
    offsets : int or B integers
        Key position of query 0.
    left, right : int, optional
        How many keys before and after its own a query sees; ``None`` is no limit.
    tile : Tile
        The rectangle of registers.
    num_workers : int, optional
        The number of threads when left out; a key head of a sequence is one thread's.

    Returns
    -------
    d_q : (B, H, T, D)
        Its axes lie in memory as those of q.
    d_k, d_v : (B, G, S, D)
    """
    (B, H, T, D), (_, G, S, value_size) = q.shape, v.shape
    tile, (held_size, held_value_size) = held_as(tile, D, value_size)
    threads = min(B * G, num_workers or workers_for(B * H * T * S * (D + value_size)))
    q, k, v, d_output, output = (with_whole_heads(x) for x in (q, k, v, d_output, output))
    if held_size != D:
        k = np.pad(k, ((0, 0), (0, 0), (0, 0), (0, held_size - D)))
    lse, rows = np.ascontiguousarray(lse), np.empty((B, words.ROW_WORDS), np.int64)
    told = offsets, T if q_lengths is None else q_lengths, S if kv_lengths is None else kv_lengths
    for word, numbers in enumerate(told):
        rows[:, word] = numbers
    d_q, d_k = np.empty_like(q), aligned_zeros(B, G, S, held_size)
    d_v = aligned_zeros(B, G, S, held_value_size)
    parts = part_numbers(held_size, held_value_size)
    workspace = aligned_zeros(threads, sum(parts))
    states = states_of(workspace, parts)

    workers, call = _workers(tile), np.empty(words.NUM_WORDS, np.int64)
    for place, array in enumerate((q, k, v, d_output, output, d_q, d_k, d_v)):
        call[4 * place : 4 * place + 4] = address(array), *(step // 4 for step in array.strides[:3])
    call[words.LSE :] = (
        address(lse), address(rows), address(states), threads,
        B, H, G, T, D, value_size, held_size, held_value_size,
        NO_LIMIT if left is None else left, NO_LIMIT if right is None else right,
        np.float32(scale).view(np.int32),
        code_address(workers.load_panel), code_address(workers.add_block),
    )  # fmt: skip
    launch(workers.attend_backward, call, threads)
    return d_q, d_k[..., :D], d_v[..., :value_size]


def held_as(tile: Tile, *sizes: int) -> tuple[Tile, list[int]]:
    """Return sizes as whole vectors, and before them a rectangle whose columns divide them all."""
    held = [-(-size // tile.width) * tile.width for size in sizes]
    fits = all(size % tile.columns == 0 for size in held)
    return tile if fits else replace(tile, vectors=1), held


def states_of(workspace: Floats, parts: tuple[int, ...]) -> NDArray[np.int64]:
    """Return each worker's state, which knows where the parts of its workspace begin."""
    states = np.zeros((len(workspace), words.STATE_WORDS), np.int64)
    starts = 4 * np.cumsum((0, *parts[:-1]))
    states[:, : words.NUM_PARTS] = (
        address(workspace) + workspace.strides[0] * np.arange(len(workspace))[:, None] + starts
    )
    return states


def aligned_zeros(*shape: int) -> Floats:
    """Return zeros whose vectors cross no line of memory."""
    numbers, beyond = prod(shape), LINE_BYTES // 4
    zeros = np.zeros(numbers + beyond, np.float32)
    first = -address(zeros) % LINE_BYTES // 4
    return zeros[first : first + numbers].reshape(shape)


@cache
def _workers(tile: Tile) -> Workers:
    return make_workers(tile)
