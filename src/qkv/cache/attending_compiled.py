"""Attention over page tables in compiled code, which reads codes where they lie."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.attending import Rules, Sight, held_of_layer
from qkv.cache.layout import PageLayout
from qkv.cache.tables import PageTable, SequenceTables, stacked_addresses
from qkv.kernels.attention_words import ALL_PAGES, EARLIER_PAGES, OWN_PAGE_ONLY
from qkv.kernels.paged_attention import Pages, Reach, attend_pages, sum_columns
from qkv.shapes import Array, LogSumExp, Queries


def attend_compiled(
    sequences: Sequence[SequenceTables], layer: int, q: Queries, sight: Sight, rules: Rules
) -> tuple[Array, LogSumExp]:
    """Do what `qkv.cache.attending.attend_tables` does, in one call; ``q`` is float32."""
    pages, own_pages, sees = _pages([one.pages for one in sequences], layer), None, ALL_PAGES
    if sequences[0].closes_pages:
        own_pages, sees = _pages([one.filling for one in sequences], layer), EARLIER_PAGES
    reach = _reach(sequences, layer, sight, sees)
    sinks = None if rules.sinks is None else np.asarray(rules.sinks, np.float32)
    return attend_pages(q, pages, reach, own_pages, scale=rules.scale, softcap=rules.softcap, sinks=sinks)


def sum_compiled(
    tables: Sequence[PageTable],
    sequences: Sequence[SequenceTables],
    layer: int,
    q: Queries,
    lse: LogSumExp,
    sight: Sight,
    scale: float,
    factors: NDArray[np.float32] | None,
    sees: str,
) -> NDArray[np.float32]:
    """Sum the weights of the keys in some tables as `qkv.cache.attending.sum_weights` does."""
    reach = _reach(sequences, layer, sight, _SEES[sees])
    return sum_columns(q, _pages(tables, layer), reach, lse, scale=scale, factors=factors)


_SEES = {"all": ALL_PAGES, "earlier": EARLIER_PAGES, "own": OWN_PAGE_ONLY}


def _pages(tables: Sequence[PageTable], layer: int) -> Pages:
    return Pages(stacked_addresses(tables, layer), **_form_of_pages(tables[0].layout))


@lru_cache(maxsize=256)
def _form_of_pages(layout: PageLayout) -> dict[str, Any]:
    """Return what `Pages` tells of all pages of a layout."""
    at = {name: section.offset for name, section in layout.sections.items()}
    return {
        "page_size": layout.P,
        "element": layout.element,
        "value_dim": layout.D_v,
        "shares_values": layout.shares_values,
        "k": at["k"],
        "v": at.get("v", 0),
        "k_steps": at.get("k_scale", at.get("k_step", 0)),
        "v_steps": at.get("v_scale", at.get("v_step", 0)),
        "k_lows": at.get("k_low", 0),
        "v_lows": at.get("v_low", 0),
    }


def _reach(sequences: Sequence[SequenceTables], layer: int, sight: Sight, sees: int) -> Reach:
    held = held_of_layer(sequences, layer)
    left = None if sight.windows is None else sight.windows - 1
    offsets, positions = held - sight.new[:, None], sight.positions
    return Reach(offsets, held, left, sight.first_keys, sight.new, sees, positions)
