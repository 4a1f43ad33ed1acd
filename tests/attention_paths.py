"""Every way to compute attention, under one name each, and what tests need to compare them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.kernels.host import Tile
from qkv.ops import attend
from qkv.ops.attention import Attended, Path, attend_by, dense_path, fastest_path, tiled_path
from qkv.ops.compiled import attend_compiled, takes
from qkv.ops.operands import Operands
from qkv.ops.tiles import attend_tiled

Attend = Callable[..., tuple[np.ndarray, np.ndarray]]


def by(path: Path) -> Attend:
    """Return ``attend`` by one path, giving output and lse."""

    def run(q: Any, k: Any, v: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        attended = attend_by(path, q, k, v, **options)
        return attended.output, attended.lse

    return run


def tiled_by(tile_queries: int, tile_keys: int) -> Attend:
    """Return ``attend`` in tiles of a given size, giving output and lse."""

    def path(operands: Operands) -> Attended:
        output, lse = attend_tiled(operands, tile_queries, tile_keys)
        return Attended(output, None, lse)

    return by(path)


def kernel_by(tile: Tile, *, splits_keys: bool, num_workers: int) -> Attend:
    """Return ``attend`` by the kernels, cut in a given way; float64, which they lack, as `attend` does it."""

    def path(operands: Operands) -> Attended:
        if not takes(operands):
            return fastest_path(operands)
        output, lse = attend_compiled(operands, tile=tile, splits_keys=splits_keys, num_workers=num_workers)
        return Attended(output, None, lse)

    return by(path)


def automatic(q: Any, k: Any, v: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what `attend` gives when it chooses the path itself."""
    return attend(q, k, v, return_lse=True, **options)


PATHS: dict[str, Attend] = {
    "automatic": automatic,
    "dense": by(dense_path),
    "tiled": by(tiled_path),
    "tiled 1x1": tiled_by(1, 1),
    "tiled 2x3": tiled_by(2, 3),
    "tiled 4x4": tiled_by(4, 4),
    "tiled 7x5": tiled_by(7, 5),
    "kernel by panels": kernel_by(Tile(8, 2, 16), splits_keys=False, num_workers=2),
    "kernel by panels of 8": kernel_by(Tile(8, 1, 8), splits_keys=True, num_workers=1),
}


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Return numbers from the standard normal distribution, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bits(x: np.ndarray) -> np.ndarray:
    """Return the bit pattern of each number, so that ``==`` tells -0.0 from 0.0 and finds NaN equal."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
