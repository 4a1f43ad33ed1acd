"""`python -m benchmarks.matmul`: the compiled product against NumPy, and compact weights against float32.

Every figure is a ratio of two ways measured in turn in this one process. Single rows go through several
matrices, more bytes than the caches hold, as the layers of a model do.
"""

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import Work, compare
from qkv.kernels.matmul import matmul, pack

PAIRS = 15
SIZES = ((1, 4096, 4), (4, 4096, 4), (16, 1536, 1), (128, 1536, 1), (1536, 1536, 1))
REST_SECONDS = 0.1  # OpenBLAS's threads hold their cores about this long after a product


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def products(num_rows, width, num_matrices) -> dict[str, Work]:
    """The same products by NumPy and with each form of packed weights."""
    x = normal(num_rows, width)
    weights = [normal(width, width) for _ in range(num_matrices)]

    def by_numpy():
        for weight in weights:
            np.matmul(x, weight.T)

    def by_qkv(packed):
        for weight in packed:
            matmul(x, weight)

    work: dict[str, Work] = {"NumPy": by_numpy}
    for form in ("float32", "bfloat16", "int8"):
        packed = [pack(weight, form) for weight in weights]
        work[form] = lambda packed=packed: by_qkv(packed)
    return work


def table() -> Table:
    table = Table(
        title="x W^T, float32 x: how many times as fast as NumPy, and as our own float32",
        caption=f"median of {PAIRS} pairs, in brackets the quartiles",
        box=None,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("rows", "W", "float32 / NumPy", "bfloat16 / float32", "int8 / float32"):
        table.add_column(name, justify="right", no_wrap=True)
    for num_rows, width, num_matrices in SIZES:
        work = products(num_rows, width, num_matrices)
        pairs = (("NumPy", "float32"), ("float32", "bfloat16"), ("float32", "int8"))
        ratios = [compare(work[slow], work[fast], PAIRS, rest_seconds=REST_SECONDS) for slow, fast in pairs]
        table.add_row(str(num_rows), f"{width} x {width}", *map(str, ratios))
    return table


if __name__ == "__main__":
    Console(width=110).print(table())
