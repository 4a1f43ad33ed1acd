"""Rows of bytes whose addresses stand in a table: where one begins, and how to ask for some."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from qkv.kernels.launch import LINE_BYTES
from qkv.kernels.vectors import I8, I64, VectorWriter, index, repeat


def row_at(builder: ir.IRBuilder, table: Any, key: Any) -> Any:
    """Return where a row begins, as a pointer to bytes."""
    words = builder.inttoptr(table, I64.as_pointer())
    return builder.inttoptr(builder.load(builder.gep(words, [key])), I8.as_pointer())


def least(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    """Return the lesser of two integers."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def rows_abreast(
    builder: ir.IRBuilder,
    tables: tuple[Any, Any],
    first: Any,
    count: int,
    last: Any,
    num_bytes: Any,
    *,
    near: bool,
) -> tuple[list[Any], list[Any]]:
    """Return ``count`` keys from ``first`` on and where their rows begin, and ask for the next block's.

    Where fewer are left the last one comes again, so that nothing behind it is read. ``tables`` say where
    rows begin, and which rows of so many bytes to ask for meanwhile.
    """
    table, following = tables
    keys = [least(builder, builder.add(first, index(number)), last) for number in range(count)]
    ask_for_rows(builder, [row_at(builder, following, key) for key in keys], num_bytes, near=near)
    return keys, [row_at(builder, table, key) for key in keys]


def ask_for_rows(builder: ir.IRBuilder, rows: Sequence[Any], num_bytes: Any, *, near: bool) -> None:
    """Ask for the lines of some rows, of which each has one at least; into the first level if ``near``."""
    writer = VectorWriter(builder, 1)
    lines = builder.sdiv(builder.add(num_bytes, index(LINE_BYTES - 1)), index(LINE_BYTES))

    def ask(line: Any, _: list[Any]) -> list[Any]:
        for row in rows:
            writer.prefetch(row, builder.mul(line, index(LINE_BYTES)), near=near)
        return []

    ask(index(0), [])
    repeat(builder, builder.sub(lines, index(1)), [], lambda line, _: ask(builder.add(line, index(1)), _))
