"""A product of named factors: why a token takes what it takes."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Term:
    """A product: what one kind of layer keeps of one token, in bytes.

    Parameters
    ----------
    layers : str
        Which layers, and how much of the context they keep.
    factors : tuple of (int, str)
        Each factor and what it counts.
    tokens : int
        How many tokens the product is for: those of a page, where a page is the smallest unit.

    Examples
    --------
    >>> term = Term("every token", ((2, "keys and values"), (32, "layers"), (1024, "bytes each")))
    >>> term.bytes_per_token, str(term)
    (65536, '2 (keys and values) × 32 (layers) × 1,024 (bytes each) = 65,536 bytes per token')
    """

    layers: str
    factors: tuple[tuple[int, str], ...]
    tokens: int = 1

    @property
    def bytes_per_token(self) -> int:
        """The product for one token, rounded up."""
        return -(-prod(factor for factor, _ in self.factors) // self.tokens)

    def __str__(self) -> str:
        factors = " × ".join(f"{factor:,} ({name})" for factor, name in self.factors)
        product = prod(factor for factor, _ in self.factors)
        per = "token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{factors} = {product:,} bytes per {per}"
