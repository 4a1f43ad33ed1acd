"""What the machine itself can do: float32 products and reading memory, both measured.

The limits run in the same rounds as the work they are compared with, so that a slow moment of the
machine lowers both.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from qkv.bench.machine import cache_bytes
from qkv.bench.measurement import Share, Workload
from qkv.bench.stopwatch import Run, Spread, Times
from qkv.ops.backend import is_compiled

MATRIX = "matrix rate"
NUMPY_MATRIX = "NumPy's matrix rate"
READ = "read bandwidth"

NUMPY_PRODUCT, OWN_PRODUCT, READING = "product by NumPy", "product by qkv", "reading"

SIDE = 1536
"""Rows and columns of the matrices whose product tells the matrix rate."""

LEAST_READ_BYTES = 256 * 2**20
CACHES_READ = 4
"""An array of so many times the caches: what they may still hold of it does not count."""

PIECES_PER_THREAD = 8


@dataclass(frozen=True)
class Limits:
    """Pieces of work that take what the machine can give.

    Parameters
    ----------
    runs : mapping of str to callable
        To be timed beside other work.
    amounts : mapping of str to int
        Operations of the products and bytes of the reading.
    names : tuple of str
        The limits to compare with.
    """

    runs: Mapping[str, Run] = field(default_factory=dict)
    amounts: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = (MATRIX, READ)

    def shares(self, times: Times, ours: str, work: Workload) -> tuple[Share, ...]:
        """Return which part of each limit a piece of work reached, round by round."""
        if not self.runs:
            return ()
        products = [name for name in (NUMPY_PRODUCT, OWN_PRODUCT) if name in self.runs]
        fastest = max(products, key=lambda name: self._rates(times, name).median)
        measures = {MATRIX: (fastest, work.flops), NUMPY_MATRIX: (NUMPY_PRODUCT, work.flops)}
        measures[READ] = READING, work.num_bytes
        return tuple(
            self._share(limit, times, ours, name, amount)
            for limit, (name, amount) in measures.items()
            if limit in self.names and amount is not None
        )

    def _share(self, limit: str, times: Times, ours: str, name: str, amount: int) -> Share:
        parts = [
            (amount / own) / (self.amounts[name] / seconds)
            for own, seconds in zip(times[ours], times[name], strict=True)
        ]
        return Share(limit, Spread.of(parts), self._rates(times, name).median)

    def _rates(self, times: Times, name: str) -> Spread:
        return Spread.of([self.amounts[name] / seconds for seconds in times[name]])


def machine_limits(side: int = SIDE, read_bytes: int | None = None) -> Limits:
    """Prepare the limits of this machine.

    The matrix rate is the better of NumPy's product and ours. The read bandwidth is that of all
    threads together summing an array that no cache holds.

    Parameters
    ----------
    side : int
        Rows and columns of the matrices.
    read_bytes : int, optional
        Of the array that is summed; well beyond the caches when left out.

    Returns
    -------
    Limits
    """
    x, weight = np.random.default_rng(0).standard_normal((2, side, side), np.float32)
    size = read_bytes or max(LEAST_READ_BYTES, CACHES_READ * (cache_bytes() or 0))
    runs: dict[str, Run] = {NUMPY_PRODUCT: lambda: np.matmul(x, weight.T)}
    if is_compiled():
        runs[OWN_PRODUCT] = _own_product(x, weight)
    runs[READING] = _reading(size)
    amounts = dict.fromkeys(runs, 2 * side**3) | {READING: size // 8 * 8}
    return Limits(runs, amounts)


def _own_product(x: np.ndarray, weight: np.ndarray) -> Run:
    from qkv.kernels.matmul import matmul, pack  # the compiler is loaded when it is first needed

    packed = pack(weight)
    return lambda: matmul(x, packed)


def _reading(num_bytes: int) -> Run:
    """Return a run that sums an array on all threads, as the widest integers: the least work per byte."""
    from qkv.kernels.host import num_threads

    pool = ThreadPoolExecutor(num_threads())
    pieces = np.array_split(np.ones(num_bytes // 8, np.int64), PIECES_PER_THREAD * num_threads())
    return lambda: sum(pool.map(np.sum, pieces))
