"""Plain loops along rows, one rounding at a time, and instructions that are compiled alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from qkv.kernels.compiler import compiled
from qkv.kernels.memory import at, instruction
from qkv.kernels.micro import CHAINS
from qkv.kernels.vectors import VectorWriter

LANES = 8


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fma(a: Any, b: Any, c: Any) -> np.float32:
    """One rounding: a product of two float32 numbers is exact in float64."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


def bits(x: Any) -> list:
    return np.asarray(x, np.float32).view(np.uint32).tolist()


def score(k: np.ndarray, q: np.ndarray) -> np.float32:
    """Number d of a key belongs to chain d % CHAINS; the chains are added up in order."""
    chains = [np.float32(0)] * CHAINS
    for d, (a, b) in enumerate(zip(k, q, strict=True)):
        chains[d % CHAINS] = fma(a, b, chains[d % CHAINS])
    total = chains[0]
    for chain in chains[1:]:
        total = np.float32(total + chain)
    return total


def made(width: int, write: Callable[[VectorWriter, Any, Any, Any], None]) -> Any:
    """Compile instructions that take two arrays and an integer."""

    @instruction
    def step(typing_context: Any, x: Any, y: Any, count: Any) -> Any:
        def body(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write(VectorWriter(builder, width), *arguments)
            return context.get_dummy_value()

        return types.void(x, y, types.intp), body

    @compiled()
    def run(x, y, count):
        step(at(x, 0), at(y, 0), count)

    return run
