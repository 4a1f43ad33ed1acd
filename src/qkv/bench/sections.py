"""What can be measured, by name, and how much of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qkv.bench.attention import attention_cases
from qkv.bench.caching import Caching
from qkv.bench.comparison import Instruments
from qkv.bench.decode import HEADS, Heads, decode_cases
from qkv.bench.latent import LatentDecode
from qkv.bench.matmul import Products
from qkv.bench.measurement import Result
from qkv.bench.policies import CachePolicies
from qkv.bench.tiling import Tiling
from qkv.errors import OptionError


class Case(Protocol):
    """Something to measure."""

    def measure(self, instruments: Instruments) -> list[Result]:
        """Measure it."""
        ...


@dataclass(frozen=True)
class Extent:
    """How much is measured; the values are those of a whole run.

    Parameters
    ----------
    prefill_lengths, short_lengths, head_sizes : tuple of int
        Tokens of long and of short texts, and D.
    decode_calls : tuple of (int, int)
        Keys and batch size, S and B.
    decode_heads : Heads
    window : int
    window_lengths : tuple of int
        Keys; each is compared with the first.
    products : tuple of (int, int, int)
        Rows, width, and how many matrices.
    tiling_lengths, cache_lengths : tuple of int
        Tokens.
    policy_lengths, latent_lengths : tuple of int
        Keys, S.
    """

    prefill_lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    short_lengths: tuple[int, ...] = (8, 16, 32, 64, 100)
    head_sizes: tuple[int, ...] = (64, 128)
    decode_calls: tuple[tuple[int, int], ...] = (
        (1024, 1), (8192, 1), (32768, 1), (1024, 8), (8192, 8), (32768, 8),
    )  # fmt: skip
    decode_heads: Heads = HEADS
    window: int = 1024
    window_lengths: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768)
    products: tuple[tuple[int, int, int], ...] = (
        (1, 4096, 4), (4, 4096, 4), (16, 1536, 1), (128, 1536, 1), (1536, 1536, 1),
    )  # fmt: skip
    tiling_lengths: tuple[int, ...] = (32, 128, 256, 512, 1024, 2048)
    cache_lengths: tuple[int, ...] = (25, 50, 100, 200, 400)
    policy_lengths: tuple[int, ...] = (8192, 32768)
    latent_lengths: tuple[int, ...] = (128, 1024, 8192)


QUICK = Extent(
    prefill_lengths=(1024,),
    short_lengths=(32, 100),
    head_sizes=(64,),
    decode_calls=((1024, 1), (8192, 1)),
    window_lengths=(2048, 8192),
    products=((1, 4096, 4), (1536, 1536, 1)),
    tiling_lengths=(128, 512),
    cache_lengths=(25, 100),
    policy_lengths=(8192,),
    latent_lengths=(1024,),
)
"""A first impression in a minute or two."""

SECTIONS: Mapping[str, Callable[[Extent], Sequence[Case]]] = {
    "attention": lambda e: attention_cases(e.prefill_lengths, e.head_sizes, e.short_lengths),
    "decode": lambda e: decode_cases(e.decode_calls, e.window_lengths, e.window, e.decode_heads),
    "matmul": lambda e: [Products(*sizes) for sizes in e.products],
    "tiling": lambda e: [Tiling(n) for n in e.tiling_lengths],
    "cache": lambda e: [Caching(n) for n in e.cache_lengths],
    "policies": lambda e: [CachePolicies(S, e.decode_heads) for S in e.policy_lengths],
    "latent": lambda e: [LatentDecode(S) for S in e.latent_lengths],
}


def chosen_cases(names: Sequence[str], extent: Extent) -> dict[str, Sequence[Case]]:
    """Return the cases of each section that is asked for, in our order; of all where none is.

    Raises
    ------
    OptionError
        If there is no such section.

    Examples
    --------
    >>> list(chosen_cases(["tiling", "decode"], QUICK))
    ['decode', 'tiling']
    """
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise OptionError(f"there is no section {unknown[0]!r} to measure; try {', '.join(SECTIONS)}")
    return {name: cases(extent) for name, cases in SECTIONS.items() if not names or name in names}
