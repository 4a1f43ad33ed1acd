"""The tiled path: the same formula over small rectangles, in O(T + S) memory.

For each tile of queries the keys pass by tile after tile. What is kept per query is the highest
score so far, the sum of exponentials, and the unnormalised output, rescaled whenever a higher
score arrives: the online softmax of Milakov and Gimelshein 2018, arranged as in FlashAttention
(Dao et al. 2022, algorithm 1). Tiles that order and lengths hide entirely are never computed.
"""

from collections.abc import Iterator

from array_api_compat import device

from qkv.ops.arrays import array_namespace
from qkv.ops.dense import mix
from qkv.ops.operands import Operands
from qkv.ops.scores import masked_scores
from qkv.ops.weights import finite_shift, log_sum_exp, nonzero, row_max
from qkv.shapes import Array, LogSumExp

TILE_QUERIES = 128
TILE_KEYS = 512


def attend_tiled(
    operands: Operands, tile_queries: int = TILE_QUERIES, tile_keys: int = TILE_KEYS
) -> tuple[Array, LogSumExp]:
    """Return what `attend_dense` returns, but the weights, which never exist as a whole."""
    xp = array_namespace(operands.q)
    rows = [
        _attend_rows(operands, queries, tile_keys)
        for queries in spans(range(operands.num_queries), tile_queries)
    ]
    outputs, lses = zip(*rows, strict=True)
    return xp.concat(outputs, axis=2), xp.concat(lses, axis=2)


def _attend_rows(operands: Operands, queries: slice, tile_keys: int) -> tuple[Array, LogSumExp]:
    xp = array_namespace(operands.q)
    highest, denominator, output = _nothing_seen(operands, queries)
    for keys in spans(operands.visibility.reachable_keys(queries, operands.num_keys), tile_keys):
        scores, visible = masked_scores(operands, queries, keys)
        raised = xp.maximum(highest, row_max(scores))
        shift = finite_shift(raised)
        rescale = xp.exp(highest - shift)
        exponentials = xp.exp(scores - shift)
        denominator = denominator * rescale + xp.sum(exponentials, axis=-1, keepdims=True)
        output = output * rescale + mix(exponentials, operands.v[:, :, keys, :], visible)
        highest = raised
    return output / nonzero(denominator), log_sum_exp(highest, denominator)[..., 0]


def _nothing_seen(operands: Operands, queries: slice) -> tuple[Array, Array, Array]:
    """Return the state before the first key: a sink is a key seen already, whose value is 0."""
    xp = array_namespace(operands.q)
    q = operands.q[:, :, queries, :]
    highest = xp.full_like(q[..., :1], -xp.inf)
    denominator = xp.zeros_like(highest)
    if operands.sinks is not None:
        highest = xp.broadcast_to(operands.sinks, highest.shape)
        denominator = xp.ones_like(highest)
    output = xp.zeros((*q.shape[:3], operands.v.shape[3]), dtype=q.dtype, device=device(q))
    return highest, denominator, output


def spans(positions: range, size: int) -> Iterator[slice]:
    """Cut a range into slices of at most ``size`` positions; an empty range gives one empty slice.

    Examples
    --------
    >>> list(spans(range(2, 7), 3))
    [slice(2, 5, None), slice(5, 7, None)]
    """
    for start in range(positions.start, max(positions.stop, positions.start + 1), size):
        yield slice(start, min(start + size, positions.stop))
