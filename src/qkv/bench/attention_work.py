"""What attention is asked for: the sizes of a call, what it costs, and arrays to run it on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.bench.measurement import Sizes, Workload

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class AttentionCall:
    """Sizes of one call, by the letters of the dimension key.

    Examples
    --------
    Two queries, the first sees one key and the second two: 3 pairs for each of 5 heads.

    >>> call = AttentionCall(B=1, H=5, G=5, T=2, S=2, D=7, causal=True)
    >>> call.num_pairs, call.flops == 4 * 7 * 3 * 5
    (3, True)
    """

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    causal: bool = False
    window: int | None = None

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that it sees, in one head; the last query is on the last key."""
        lasts = range(self.S - self.T, self.S) if self.causal else [self.S - 1] * self.T
        return sum(min(last + 1, self.window or self.S) for last in lasts)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the two products; exponentials are not counted."""
        return 4 * self.B * self.H * self.D * self.num_pairs

    @property
    def num_bytes(self) -> int:
        """Bytes of float32 queries, outputs, and keys and values that are seen."""
        seen = min(self.S, self.T - 1 + self.window) if self.window else self.S
        return 4 * self.B * self.D * (2 * self.H * self.T + 2 * self.G * seen)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all keys and values in float32."""
        return 4 * self.B * self.G * self.D * 2 * self.S

    @property
    def scores_bytes(self) -> int:
        """Bytes of all scores in float32, for a way that writes them down."""
        return 4 * self.B * self.H * self.T * self.S

    def workload(self, name: str, sizes: Sizes) -> Workload:
        """Return the call as a piece of work of some kind."""
        return Workload(name, sizes, self.flops, self.num_bytes)

    def draw(self) -> tuple[Floats, Floats, Floats]:
        """Return random q, k and v; the same ones each time."""
        random = np.random.default_rng(0)
        q = random.standard_normal((self.B, self.H, self.T, self.D), np.float32)
        k, v = (random.standard_normal((self.B, self.G, self.S, self.D), np.float32) for _ in range(2))
        return q, k, v


def fold_groups(q: Floats, G: int) -> Floats:
    """Make the queries of a group positions of one head: (B, H, 1, D) to (B, G, H/G, D).

    One query sees every key, so that no order is lost, and each key is read once for its group.
    """
    B, H, T, D = q.shape
    assert T == 1, "positions of several queries would mix"
    return q.reshape(B, G, H // G, D)
