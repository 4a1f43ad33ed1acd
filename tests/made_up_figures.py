"""Measurements with made-up numbers."""

from qkv.bench.limits import MATRIX, READ
from qkv.bench.machine import Machine
from qkv.bench.measurement import Measurement, Ratio, Report, Share, Skipped, Workload
from qkv.bench.stopwatch import Spread

MACHINE = Machine(
    cpu="Some CPU",
    system="Linux x86_64",
    cores=2,
    threads=2,
    threads_reason="cores of the machine",
    cache_bytes=32 * 2**20,
    memory_bytes=24 * 2**30,
    backend="compiled",
    blas="openblas 0.3",
    versions={"Python": "3.11.7", "numpy": "2.4.6"},
)


def attention(n, ratios, seconds=0.004):
    """A call of 1 GFLOP and 20 MB that takes 4 ms: 250 GFLOP/s and 5 GB/s."""
    return Measurement(
        work=Workload("prefill", {"H": 8, "n": n}, flops=10**9, num_bytes=20_000_000),
        seconds=Spread(seconds, 0.003, 0.005),
        ratios=ratios,
        shares=(
            Share(MATRIX, Spread(0.832, 0.801, 0.856), 300.4e9),
            Share(READ, Spread(0.05, 0.041, 0.06), 44.04e9),
        ),
    )


BY_NUMPY = Ratio("NumPy", Spread(12.34, 11.6, 13.4))
FOLDED = Ratio("PyTorch", Spread(2.041, 1.96, 2.17), "groups folded")
PLAIN = Ratio("PyTorch", Spread(0.994, 0.9, 1.04), "enable_gqa")
CACHE = Measurement(
    Workload("KV cache", {"E": 128, "n": 25}),
    Spread(2.0, 1.0, 3.0),
    (Ratio("no cache", Spread(102.6, 99.2, 107.7)),),
    peak_bytes={"qkv": 1_500_000},
    notes=("one layer",),
)
SKIPPED = Skipped(Workload("prefill", {"H": 8, "n": 8192}), "needs 9.9 GB of memory; 2.0 GB are free")
REPORT = Report(
    MACHINE, 15, ("a note",), (attention(1024, (BY_NUMPY, FOLDED)), attention(4096, (PLAIN,)), SKIPPED, CACHE)
)
