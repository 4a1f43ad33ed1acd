"""Keys and values put into pages, and the same read back into arrays: what tests of the kernels compare."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.cache.layout import PageLayout
from qkv.kernels.attention_words import EARLIER_PAGES, OWN_PAGE_ONLY
from qkv.kernels.paged_attention import Pages, Reach


@dataclass(frozen=True)
class Stored:
    """Pages, the bytes they are made of, and the keys and values that these stand for, in float32."""

    pages: Pages
    memory: np.ndarray
    k: np.ndarray
    v: np.ndarray


def store(layout: PageLayout, k: np.ndarray, v: np.ndarray) -> Stored:
    """Put ``(B, G, S, D)`` keys and values into pages; what is not written is NaN, or no number at all."""
    (B, G, S, _), P = k.shape, layout.P
    num_pages = -(-S // P)
    whole = [np.zeros((B, G, num_pages * P, size), np.float32) for size in (layout.D_k, layout.D_v)]
    for padded, x in zip(whole, (k, v), strict=True):
        padded[:, :, :S] = x
    memory = np.full((B, G, num_pages, layout.nbytes), 255, np.uint8)
    for b, g, page in np.ndindex(B, G, num_pages):
        filled = P if layout.codecs.closes_pages else min(P, S - page * P)
        rows = slice(page * P, page * P + filled)
        values = None if layout.shares_values else whole[1][b, g, rows]
        layout.write(memory[b, g, page], 0, whole[0][b, g, rows], values)
    read = [x.reshape(B, G, -1, x.shape[-1])[:, :, :S] for x in layout.read(memory)]
    return Stored(pages_of(layout, memory), memory, *map(np.ascontiguousarray, read))


def pages_of(layout: PageLayout, memory: np.ndarray) -> Pages:
    """Say to kernels what pages of bytes ``(B, G, N, nbytes)`` hold, and where."""
    first = memory.__array_interface__["data"][0]
    numbers = np.arange(np.prod(memory.shape[:3])).reshape(memory.shape[:3])
    at = {name: section.offset for name, section in layout.sections.items()}
    return Pages(
        first + numbers * layout.nbytes, layout.P, layout.element, layout.D_v, layout.shares_values,
        at["k"], at.get("v", 0), at.get("k_scale", at.get("k_step", 0)),
        at.get("v_scale", at.get("v_step", 0)), at.get("k_low", 0), at.get("v_low", 0),
    )  # fmt: skip


def visible(reach: Reach, T: int, S: int, P: int) -> np.ndarray:
    """Which keys each query sees, from the sentences that say it: (B, G, T, S)."""
    B, G = reach.offsets.shape
    seen = np.zeros((B, G, T, S), bool)
    first_keys = np.broadcast_to(reach.first_keys, (B, G))
    for b, g, t, s in np.ndindex(B, G, T, S):
        own = int(reach.offsets[b, g]) + t
        if reach.q_lengths is not None and t >= reach.q_lengths[b]:
            continue
        if s > own or s >= reach.kv_lengths[b, g]:
            continue
        places = np.arange(S) if reach.positions is None else reach.positions[b, g]
        near = reach.left is None or places[own] - places[s] <= reach.left[b, g]
        same_page = s // P == own // P
        by_page = {EARLIER_PAGES: not same_page, OWN_PAGE_ONLY: same_page}.get(reach.sees, True)
        seen[b, g, t, s] = by_page and (near or s < first_keys[b, g])
    return seen


def same(one: Any, other: Any) -> bool:
    """Whether two results have the same bits, whichever NaN stands for NaN."""
    return all(
        ((x.view(np.uint32) == y.view(np.uint32)) | (np.isnan(x) & np.isnan(y))).all()
        for x, y in zip(one, other, strict=True)
    )
