"""A product with weights that lie in panels, in whichever form they are stored.

A panel is what one rectangle of registers is wide: for each step along the inner axis, the weights of
``vectors * width`` results lie side by side, so that a product reads a panel from front to end.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from qkv.kernels.panels import GROUP
from qkv.kernels.vectors import VectorWriter, index, repeat

STEPS_AHEAD = 64
"""One row on codes is much work for a line of memory, so the processor does not run far enough ahead by
itself: each step asks for what so many steps later reads. With wider numbers that changes nothing."""


def panel_product(rows: int, vectors: int, width: int, *, panels: int = 1) -> Any:
    """Make ``c += a w`` for as many whole rectangles as there are rows, each held in registers.

    The result takes ``(a, a_row, w, w_panel, scales, scales_panel, c, c_panel, depth, row, num_rows)``,
    works on rows from ``row`` on, and returns the row before which it stopped. Row r of a stands at
    ``a + r * a_row``; c is stored row by row without gaps. Where there is more than one panel, they stand
    ``w_panel`` apart, their scales ``scales_panel``, their results ``c_panel``. The type of w says its
    form: float32, uint16 (the bits of bfloat16) or int8.

    float32 and bfloat16: each result is one chain of fused multiply-adds in the order of the inner axis.
    int8: each group of `GROUP` codes, counted from the start of w, is such a chain from 0, and one more
    fused multiply-add takes it, times the group's scale, into the result.

    Parameters
    ----------
    rows, vectors, width : int
        The rectangle of one panel: rows x (vectors * width) numbers.
    panels : int
        Panels at once: more chains, which hide how long one multiply-add takes, and more streams from
        memory, which hide how long that takes.
    """

    @intrinsic
    def product(typing_context: Any, a: Any, a_row: Any, w: Any, w_panel: Any, scales: Any, scales_panel: Any, c: Any, c_panel: Any, depth: Any, row: Any, num_rows: Any) -> Any:  # noqa: E501  # fmt: skip
        size = types.intp
        signature = size(a, size, w, size, scales, size, c, size, size, size, size)
        return signature, _write_product(rows, vectors, width, panels)

    return product


def _write_product(rows: int, vectors: int, width: int, panels: int) -> Callable[..., Any]:
    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, a_row, w, w_panel, scales, scales_panel, c, c_panel, depth, first_row, num_rows = arguments
        add_rectangle = _rectangle(rows, vectors, width, panels, builder, signature.args[2].dtype)
        num_rectangles = builder.sdiv(builder.sub(num_rows, first_row), index(rows))

        def rectangle(number: Any, _: list[Any]) -> list[Any]:
            row = builder.add(first_row, builder.mul(number, index(rows)))
            a_rows = [builder.mul(a_row, builder.add(row, index(beyond))) for beyond in range(rows)]
            starts = [builder.gep(a, [offset]) for offset in a_rows]
            place = builder.gep(c, [builder.mul(row, index(vectors * width))])
            add_rectangle(starts, (w, w_panel), (scales, scales_panel), (place, c_panel), depth)
            return []

        repeat(builder, num_rectangles, [], rectangle)
        return builder.add(first_row, builder.mul(num_rectangles, index(rows)))

    return write


def _rectangle(rows: int, vectors: int, width: int, panels: int, builder: ir.IRBuilder, form: Any) -> Any:
    writer = VectorWriter(builder, width)
    load_weight = {
        types.float32: writer.load,
        types.uint16: writer.load_bfloat16,
        types.int8: writer.load_int8,
    }[form]
    columns = [index(vector * width) for vector in range(vectors)]

    def places(start: Any, panel_step: Any, row: Any) -> list[tuple[Any, Any]]:
        """Return where the vectors of one row are, panel after panel."""
        offset = builder.mul(row, index(vectors * width))
        apart = [builder.add(offset, builder.mul(panel_step, index(panel))) for panel in range(panels)]
        return [(builder.gep(start, [place]), column) for place in apart for column in columns]

    def chains(a_rows: list[Any], w: tuple[Any, Any], first: Any, count: Any, sums: list[Any]) -> list[Any]:
        def step(number: Any, sums: list[Any]) -> list[Any]:
            k, growing = builder.add(first, number), iter(sums)
            weights = [load_weight(*place) for place in places(*w, k)]
            if form == types.int8 and rows == 1:
                for start, _ in places(*w, builder.add(k, index(STEPS_AHEAD)))[::vectors]:
                    writer.prefetch(start, index(0))
            # One at a time: all scalars together would push sums out of the registers.
            scalars = (writer.splat(builder.load(builder.gep(start, [k]))) for start in a_rows)
            return [writer.fma(scalar, weight, next(growing)) for scalar in scalars for weight in weights]

        return repeat(builder, count, sums, step)

    def groups(
        a_rows: list[Any], w: tuple[Any, Any], scales: tuple[Any, Any], depth: Any, totals: list[Any]
    ) -> list[Any]:
        def group(number: Any, totals: list[Any]) -> list[Any]:
            first = builder.mul(number, index(GROUP))
            left = builder.sub(depth, first)
            count = builder.select(builder.icmp_signed("<", left, index(GROUP)), left, index(GROUP))
            sums = chains(a_rows, w, first, count, [writer.constant(0.0)] * len(totals))
            factors = [writer.load(*place) for place in places(*scales, number)] * rows
            return [writer.fma(*terms) for terms in zip(sums, factors, totals, strict=True)]

        num_groups = builder.sdiv(builder.add(depth, index(GROUP - 1)), index(GROUP))
        return repeat(builder, num_groups, totals, group)

    def add(
        a_rows: list[Any], w: tuple[Any, Any], scales: tuple[Any, Any], c: tuple[Any, Any], depth: Any
    ) -> None:
        results = [place for row in range(rows) for place in places(*c, index(row))]
        totals = [writer.load(*place) for place in results]
        if form == types.int8:
            totals = groups(a_rows, w, scales, depth, totals)
        else:
            totals = chains(a_rows, w, index(0), depth, totals)
        for total, place in zip(totals, results, strict=True):
            writer.store(total, *place)

    return add
