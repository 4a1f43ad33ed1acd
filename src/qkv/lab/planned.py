"""What the planner says a cache will take, asked by the shape of the cache alone."""

from qkv.cache import Policy
from qkv.cache.contiguous import CacheShape
from qkv.planner import LayerGroup, ModelMemory, plan


def planned_nbytes(shape: CacheShape, num_tokens: int, policy: Policy | str = "") -> int:
    """Return the bytes of one text's cache as the planner counts them for qkv's own pages.

    Parameters
    ----------
    shape : CacheShape
        Of float32 numbers.
    num_tokens : int
    policy : Policy or str

    Examples
    --------
    20 tokens are two pages of 16, for each of 3 layers and 2 key heads of 8 numbers:

    >>> planned_nbytes(CacheShape(3, 2, 8), 20), 2 * 16 * 3 * 2 * (8 + 8) * 4
    (12288, 12288)
    """
    value_dim = 0 if shape.shares_values else shape.value_size
    layers = (LayerGroup(shape.num_layers, shape.num_kv_heads, shape.head_dim, value_dim),)
    model = ModelMemory("this one", "", layers)
    return plan(model, context=num_tokens, cache=str(policy), engine="qkv").bytes
