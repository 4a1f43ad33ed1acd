"""Products with packed weights: float32 against NumPy, compact weights against float32."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qkv.bench.comparison import Instruments, Way, fastest_forms, judge, require_equal
from qkv.bench.measurement import Result, Skipped, Workload
from qkv.bench.stopwatch import Run
from qkv.ops.backend import is_compiled

Form = Literal["float32", "bfloat16", "int8"]

FORMS: tuple[Form, ...] = ("float32", "bfloat16", "int8")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Products:
    """``x W^T`` by square matrices in turn.

    A few rows wait for the weights: with more bytes of them than the caches hold, they come from
    memory, as the layers of a model do.

    Parameters
    ----------
    rows, width : int
        Of x; W is (width, width).
    matrices : int
        How many W there are in turn; figures are of one product.
    """

    rows: int
    width: int
    matrices: int

    def work(self, form: str, weight_bytes: int = 0) -> Workload:
        """Return a product with one form of weights as a piece of work."""
        sizes = {"rows": self.rows, "width": self.width, "weights": form}
        x_and_y_bytes = 2 * 4 * self.rows * self.width
        return Workload("matmul", sizes, 2 * self.rows * self.width**2, weight_bytes + x_and_y_bytes)

    def measure(self, instruments: Instruments) -> list[Result]:
        """Time NumPy and every form of weights in turn."""
        if not is_compiled():
            return [Skipped(self.work(form), "the compiled kernels are turned off") for form in FORMS]
        random = np.random.default_rng(0)
        x = random.standard_normal((self.rows, self.width), np.float32)
        weights = [random.standard_normal((self.width, self.width), np.float32) for _ in range(self.matrices)]
        (by_numpy,) = fastest_forms(numpy_ways(x, weights), instruments.stopwatch)
        runs: dict[str, Run] = {by_numpy.name: by_numpy.run}
        works = {}
        for form in FORMS:
            runs[form], num_bytes = self._checked_run(x, weights, form)
            works[form] = self.work(form, num_bytes)
        times = instruments.stopwatch.time_in_turn(runs | dict(instruments.limits.runs))
        for name in runs:
            times[name] = tuple(seconds / self.matrices for seconds in times[name])
        with_numpy = {by_numpy.name: by_numpy.form}
        peers = {form: with_numpy if form == "float32" else with_numpy | {"float32": ""} for form in FORMS}
        return [judge(works[form], times, form, peers[form], instruments.limits) for form in FORMS]

    def _checked_run(self, x: Floats, weights: Sequence[Floats], form: Form) -> tuple[Run, int]:
        """Return a run whose results are NumPy's with the weights as they are kept, and the bytes of one."""
        from qkv.kernels.matmul import matmul, pack  # the compiler is loaded when it is first needed

        packed = [pack(weight, form) for weight in weights]

        def run() -> list[Floats]:
            return [matmul(x, weight) for weight in packed]

        for peer in numpy_ways(x, [weight.unpack() for weight in packed]):
            require_equal(self.work(form), peer, np.asarray(run()))
        return run, packed[0].nbytes


def numpy_ways(x: Floats, weights: Sequence[Floats]) -> list[Way]:
    """Return NumPy's products with the weights as they are, and turned beforehand."""
    turned = [np.ascontiguousarray(weight.T) for weight in weights]
    return [
        Way("NumPy", lambda: [np.matmul(x, weight.T) for weight in weights], "W as (E_out, E_in)"),
        Way("NumPy", lambda: [np.matmul(x, weight) for weight in turned], "W as (E_in, E_out)"),
    ]
