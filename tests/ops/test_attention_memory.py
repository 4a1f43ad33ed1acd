"""How much memory attention takes beyond its inputs."""

import json
import os
import subprocess
import sys

import pytest

from qkv.ops.backend import DISABLE_VARIABLE

# A process of its own, with one BLAS thread: on a busy machine two would wait for each other.
MEASURE = """
import json, sys, tracemalloc
import numpy as np
from qkv.ops import attend

def peak_bytes(T, S, causal):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, size, 64), np.float32) for size in (T, S, S))
    tracemalloc.start()
    attend(q, k, v, causal=causal)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak

print(json.dumps([peak_bytes(*case) for case in json.loads(sys.argv[1])]))
"""


def peak_bytes(backend: str, *cases: tuple[int, int, bool]) -> list[int]:
    """Return the most memory in use at once for each ``(T, S, causal)``, one float32 head of 64."""
    command = [sys.executable, "-c", MEASURE, json.dumps(cases)]
    disabled = "1" if backend == "numpy" else "0"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", DISABLE_VARIABLE: disabled}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
@pytest.mark.parametrize("causal", [True, False])
def test_32768_queries_and_keys_need_less_than_100_mb(causal, backend):
    (peak,) = peak_bytes(backend, (32768, 32768, causal))
    assert peak < 100e6  # the scores alone would be 4.3 GB


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
def test_memory_grows_with_positions_and_not_with_their_square(backend):
    _, small, large = peak_bytes(backend, (64, 64, True), (2048, 2048, True), (8192, 8192, True))
    assert large < 4 * small  # the square would be 16 times as much
