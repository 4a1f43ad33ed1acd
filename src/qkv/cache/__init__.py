"""Keys and values remembered between steps, so that each token is projected once."""

from qkv.cache.contiguous import ContiguousCache

__all__ = ["ContiguousCache"]
