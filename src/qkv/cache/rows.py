"""Rows of a page table, by what they are: keys, values, scales, positions of the tokens of a layer.

A section that has one row per token is written and read through its table in one go; compiled where
kernels are in use, page by page in Python where they are not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache.layout import PageLayout, Section
from qkv.cache.tables import Counts, PageTable
from qkv.ops.backend import is_compiled

Rows = Mapping[str, NDArray[Any]]
"""By the name of their section: (G, T, ...)."""


def write_rows(table: PageTable, layer: int, first: Counts, rows: Rows) -> None:
    """Write rows of tokens into the slots of each head from ``first`` on; the pages must be there.

    Parameters
    ----------
    table : PageTable
    layer : int
    first : (G,) int64
    rows : mapping of str to (G, T, ...)
    """
    for name, numbers in rows.items():
        section = table.layout.sections[name]
        numbers = np.ascontiguousarray(numbers, section.dtype)
        if is_compiled():
            from qkv.kernels.page_rows import put_rows  # the compiler is loaded when it is first needed

            put_rows(table.addresses[layer], table.layout.P, section.offset, numbers, first)
        else:
            for inside, outside in _runs(table, layer, first, section, numbers):
                inside[...] = outside


def write_next(layout: PageLayout, addresses: NDArray[np.int64], slots: Counts, rows: Rows) -> None:
    """Write one row for each head of several sequences through the compiled kernel; the pages must be there.

    Parameters
    ----------
    layout : PageLayout
        Of all pages.
    addresses : (B, G, N) int64
    slots : (B, G) int64
    rows : mapping of str to (B, G, 1, ...)
    """
    from qkv.kernels.page_rows import put_rows

    B, G, N = addresses.shape
    for name, numbers in rows.items():
        section = layout.sections[name]
        numbers = np.ascontiguousarray(numbers, section.dtype).reshape(B * G, *numbers.shape[2:])
        put_rows(addresses.reshape(B * G, N), layout.P, section.offset, numbers, slots.ravel())


def read_rows(
    table: PageTable, layer: int, names: Sequence[str], count: int, first: Counts | None = None
) -> dict[str, NDArray[Any]]:
    """Return ``count`` rows of each head by section, ``(G, count, ...)``, from slot ``first`` on.

    The pages must be there.
    """
    G = table.ids.shape[1]
    first = np.zeros(G, np.int64) if first is None else first
    rows = {}
    for name in names:
        section = table.layout.sections[name]
        numbers = np.empty((G, count, *section.shape[1:]), section.dtype)
        if is_compiled():
            from qkv.kernels.page_rows import get_rows

            get_rows(table.addresses[layer], table.layout.P, section.offset, numbers, first)
        else:
            for inside, outside in _runs(table, layer, first, section, numbers):
                outside[...] = inside
        rows[name] = numbers
    return rows


def _runs(table: PageTable, layer: int, first: Counts, section: Section, rows: NDArray[Any]) -> Any:
    """Yield, page by page, the slots in a page and the rows outside that belong together."""
    P, T = table.layout.P, rows.shape[1]
    for head in range(rows.shape[0]):
        token = 0
        while token < T:
            page, slot = divmod(int(first[head]) + token, P)
            count = min(T - token, P - slot)
            run = table.pool.page(table.ids[layer, head, page])
            inside = run[section.offset : section.offset + section.nbytes].view(section.dtype)
            yield inside.reshape(section.shape)[slot : slot + count], rows[head, token : token + count]
            token += count
