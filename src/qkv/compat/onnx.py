"""ONNX's ``Attention`` (opsets 23, 24, 25), on arrays of any kind.

================  ======================================  =======================================
what              ONNX                                    `qkv.attend`
================  ======================================  =======================================
layout            (B, H, T, D), or (B, T, H*D) with       (B, H, T, D), leading axes may be absent
                  the head counts as attributes
attn_mask         bool, True = may attend; or float,      bool only; floats go to ``bias=``
                  added; 3 axes are (H, T, S); from       3 axes are refused as ambiguous
                  opset 24 a shorter one hides the rest
is_causal         the first query stands on key           the last query stands on the last key
                  past_sequence_length; with lengths
                  each row's last query on its last key
window (25)       (left, right) of the own key, aligned   (left, right) with None = no limit;
                  as is_causal; -1 = no limit             an integer W counts the own key
lengths (24)      ``nonpad_kv_seqlen``, keys only         ``q_lengths``, ``kv_lengths``
cache             past and present keys and values        kept by `qkv.cache`
softcap           0 = off; before the mask                None = off; before the mask
fully hidden row  0                                       0
================  ======================================  =======================================

The text of the operator is followed where the reference evaluator of onnx 1.23 differs from it:
mode 0 of ``qk_matmul_output`` is the product before the soft cap, which the evaluator gives
after it; and a mask of one row or one axis is broadcast before ``is_causal`` is applied, where the
evaluator, without a window, gives every query the keys of the first, or fails. A negative
``scale``, of which the text has no square root to take, is a scale here.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from array_api_compat import device

from qkv.compat.layout import heads_of
from qkv.compat.masks import mask_or_bias
from qkv.errors import OptionError, ShapeError
from qkv.ops.arrays import array_namespace, dtype_name, narrow, widen
from qkv.ops.attention import Attended, attend_by
from qkv.ops.dense import mix
from qkv.ops.operands import Operands
from qkv.ops.projection import merge_heads
from qkv.ops.scores import dot_products, softcapped
from qkv.ops.weights import normalise
from qkv.shapes import Array, Scores

FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16
"""ONNX's numbers for the types that ``softmax_precision`` may name."""


def onnx_attention(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    opset: int = 25,
) -> tuple[Array, Array, Array, Scores]:
    """Attend as the ONNX operator does, with its inputs, attributes and outputs.

    Parameters
    ----------
    Q : (B, H, T, D) or (B, T, H*D)
    K, V : (B, G, S, D) or (B, S, G*D)
        V's D and dtype may be others.
    attn_mask : broadcasts to (B, H, T, S), optional
        bool, ``True`` = may attend; or float, added to the scores. S includes the past.
    past_key, past_value : (B, G, past S, D), optional
        The cache to put before K and V.
    nonpad_kv_seqlen : B integers, optional
        How many leading keys of each row are real, where K and V are a whole cache. From opset 24.
    is_causal : int
        1: no key after the query's own, which is key t + past S of query t, or, with
        ``nonpad_kv_seqlen``, key t + length - T.
    q_num_heads, kv_num_heads : int, optional
        H and G, for inputs with three axes.
    left_window_size, right_window_size : int
        How many keys before and after its own each query sees; -1 = no limit. From opset 25.
    qk_matmul_output_mode : int
        The fourth result: 0 the scaled products of queries and keys, 1 after the soft cap,
        2 after the mask as well (``-inf`` = hidden), 3 the weights.
    scale : float, optional
        ``1/sqrt(D)`` when left out.
    softcap : float
        Squeezes scores into (-softcap, softcap); 0 = off.
    softmax_precision : int, optional
        The softmax's type in ONNX's numbering. It is a lower bound: nothing here is summed in
        less than float32, so that only 11, double, changes anything.
    opset : int
        Which opset's inputs and attributes are allowed.

    Returns
    -------
    Y : (B, H, T, D) or (B, T, H*D)
        As Q, in its dtype. A query that may see nothing gets 0.
    present_key, present_value : (B, G, S, D)
        Past and new keys and values together.
    qk_matmul_output : (B, H, T, S)
        In Q's dtype. It takes O(T*S) memory.

    Raises
    ------
    OptionError
        If an attribute has no meaning, or is not part of ``opset``.
    ShapeError
        If axes do not fit together.
    TypeError
        If dtypes are not floating point, or differ where they must not.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 5, 1)), np.arange(1.0, 6.0).reshape(1, 1, 5, 1)
    >>> onnx_attention(q, k, v, is_causal=1)[0].ravel().round(3).tolist()
    [1.0, 1.5]

    With the first three keys in the past, query 0 stands on the fourth:

    >>> new, past = np.s_[:, :, 3:], np.s_[:, :, :3]
    >>> y, *_ = onnx_attention(q, k[new], v[new], past_key=k[past], past_value=v[past], is_causal=1)
    >>> y.ravel().round(3).tolist()
    [2.5, 3.0]
    """
    _check_opset(
        opset,
        lengths=nonpad_kv_seqlen is not None,
        windowed=left_window_size != -1 or right_window_size != -1,
        needless_heads=Q.ndim == 4 and (q_num_heads, kv_num_heads) != (None, None),
    )
    _check_cache(past_key, past_value, nonpad_kv_seqlen)
    if qk_matmul_output_mode not in (0, 1, 2, 3):
        raise OptionError(f"qk_matmul_output_mode must be 0, 1, 2 or 3, not {qk_matmul_output_mode}")
    if softmax_precision not in (None, FLOAT, FLOAT16, DOUBLE, BFLOAT16):
        raise OptionError(f"softmax_precision must be 1, 10, 11 or 16, not {softmax_precision}")
    present_key = _appended(past_key, heads_of("K", K, kv_num_heads))
    present_value = _appended(past_value, heads_of("V", V, kv_num_heads))
    if attn_mask is not None:
        attn_mask = _full_mask(attn_mask, present_key.shape[2], nonpad_kv_seqlen, opset)
    mask, bias = mask_or_bias(attn_mask)
    if bias is not None:
        mask = bias != -array_namespace(bias).inf
    q = widen(heads_of("Q", Q, q_num_heads), "Q")
    attended = attend_by(
        partial(
            _path,
            # A row with a length is aligned by that, as `attend` does it.
            query_start=None if nonpad_kv_seqlen is not None else _length(past_key),
            in_double=softmax_precision == DOUBLE,
            mode=qk_matmul_output_mode,
        ),
        q,
        widen(present_key, "K"),
        narrow(widen(present_value, "V"), q.dtype),
        mask=mask,
        bias=bias,
        causal=bool(is_causal),
        window=(_reach(left_window_size), _reach(right_window_size)),
        scale=scale,
        softcap=softcap or None,
        kv_lengths=nonpad_kv_seqlen,
    )
    with np.errstate(over="ignore"):  # a product beyond float16's largest is shown as infinite
        Y, shown = narrow(attended.output, Q.dtype), narrow(attended.weights, Q.dtype)
    return Y if Q.ndim == 4 else merge_heads(Y), present_key, present_value, shown


def _path(operands: Operands, query_start: int | None, in_double: bool, mode: int) -> Attended:
    """Attend in the operator's steps, and return the one that ``mode`` asks for as the weights."""
    xp = array_namespace(operands.q)
    visibility = operands.visibility
    if query_start is not None:
        visibility = replace(visibility, offsets=query_start)
    everything = slice(0, operands.num_queries), slice(0, operands.num_keys)
    visible = visibility.tile(*everything)
    products = dot_products(operands.q, operands.k) * operands.scale
    capped = products if operands.softcap is None else softcapped(products, operands.softcap)
    biased = capped if operands.bias is None else capped + operands.bias
    biased = biased if visible is None else xp.where(visible, biased, -xp.inf)
    weights, lse = normalise(xp.astype(biased, xp.float64) if in_double else biased)
    weights = narrow(weights, products.dtype)
    return Attended(mix(weights, operands.v, visible), (products, capped, biased, weights)[mode], lse)


def _appended(past: Array | None, new: Array) -> Array:
    return new if past is None else array_namespace(past, new).concat([past, new], axis=2)


def _length(past: Array | None) -> int:
    return 0 if past is None else past.shape[2]


def _reach(window_size: int) -> int | None:
    return None if window_size == -1 else window_size


def _full_mask(attn_mask: Array, num_keys: int, lengths: Array | None, opset: int) -> Array:
    """Return the mask over all keys, with its axes in place."""
    if opset >= 24 and attn_mask.ndim > 0:
        longest = 0 if lengths is None else max((int(length) for length in lengths), default=0)
        attn_mask = _padded(attn_mask, num_keys, longest)
    return attn_mask[None] if attn_mask.ndim == 3 else attn_mask


def _padded(attn_mask: Array, num_keys: int, longest: int) -> Array:
    """Hide the keys that a mask is too short for; the real ones of a cache it must reach."""
    *leading, length = attn_mask.shape
    if length < longest:
        raise ShapeError(f"attn_mask {tuple(attn_mask.shape)} must reach nonpad_kv_seqlen's {longest} keys")
    if length >= num_keys:
        return attn_mask
    xp = array_namespace(attn_mask)
    hidden = False if dtype_name(attn_mask) == "bool" else -xp.inf
    rest = xp.full((*leading, num_keys - length), hidden, dtype=attn_mask.dtype, device=device(attn_mask))
    return xp.concat([attn_mask, rest], axis=-1)


def _check_opset(opset: int, *, lengths: bool, windowed: bool, needless_heads: bool) -> None:
    if opset < 23:
        raise OptionError(f"Attention came with opset 23, not with {opset}")
    if opset < 24 and lengths:
        raise OptionError(f"nonpad_kv_seqlen came with opset 24, not with {opset}")
    if opset < 25 and windowed:
        raise OptionError(f"left_window_size and right_window_size came with opset 25, not with {opset}")
    if opset >= 25 and needless_heads:
        raise OptionError("from opset 25 q_num_heads and kv_num_heads are only for inputs with three axes")


def _check_cache(past_key: Array | None, past_value: Array | None, nonpad_kv_seqlen: Array | None) -> None:
    if (past_key is None) != (past_value is None):
        raise OptionError("past_key and past_value go together; only one was given")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise OptionError("nonpad_kv_seqlen counts a cache given as K and V; it cannot go with past_key")
