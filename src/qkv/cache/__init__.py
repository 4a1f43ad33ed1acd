"""Keys and values remembered between steps, so that each token is projected once."""

from qkv.cache.contiguous import CacheShape, ContiguousCache
from qkv.cache.evicting import Rotation
from qkv.cache.paged import PagedCache
from qkv.cache.policy import Policy
from qkv.cache.pool import PagePool
from qkv.cache.prefix import PrefixIndex
from qkv.cache.protocol import Cache, StepCache

__all__ = [
    "Cache",
    "CacheShape",
    "ContiguousCache",
    "PagePool",
    "PagedCache",
    "Policy",
    "PrefixIndex",
    "Rotation",
    "StepCache",
]
