"""Multi-head attention as a layer with weights: the block the papers draw, to try things on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qkv.arguments import as_whole, whole_number
from qkv.cache import ContiguousCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import OptionError, ShapeError
from qkv.ops import scaled_dot_product_attention
from qkv.ops.masks import Causal
from qkv.ops.projection import merge_heads, project, split_heads
from qkv.shapes import Array, Hidden, Scores

Weight = NDArray[np.floating]


class MultiHeadAttention:
    """Several attentions side by side, each on its own projection of the input.

    ``concat(head_1, ..., head_H) W_o``, with ``head_h = attend(x W_q, x W_k, x W_v)`` on slices of
    size D = E/H. Source: Vaswani et al. 2017, section 3.2.2; with fewer key heads than query heads
    it is grouped-query attention (Ainslie et al. 2023), with one it is multi-query (Shazeer 2019).

    Parameters
    ----------
    d_model : int
        E, the width of input and output.
    num_heads : int
        H, which must divide E.
    num_kv_heads : int, optional
        G, which must divide H; H when left out.
    rng : numpy.random.Generator, optional
        Draws the weights, Xavier-normal (Glorot and Bengio 2010); a fresh one when left out.

    Attributes
    ----------
    w_q, w_k, w_v, w_o : (H*D, E), (G*D, E), (G*D, E), (E, H*D)
        Stored out by in, as checkpoints store them.
    b_q, b_k, b_v, b_o : arrays or None
        Biases; none unless loaded.

    Raises
    ------
    ShapeError
        If H does not divide E, or G does not divide H.
    OptionError
        If E is no whole number, or less than 1.

    Examples
    --------
    >>> layer = MultiHeadAttention(d_model=64, num_heads=8, num_kv_heads=2, rng=np.random.default_rng(0))
    >>> output, weights = layer(np.ones((2, 10, 64)), causal=True)
    >>> output.shape, weights.shape
    ((2, 10, 64), (2, 8, 10, 10))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(d_model, num_heads, num_kv_heads)
        rng = np.random.default_rng() if rng is None else rng
        head_dim = d_model // num_heads
        self.d_model = d_model
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.w_q = _xavier(rng, num_heads * head_dim, d_model)
        self.w_k = _xavier(rng, num_kv_heads * head_dim, d_model)
        self.w_v = _xavier(rng, num_kv_heads * head_dim, d_model)
        self.w_o = _xavier(rng, d_model, num_heads * head_dim)
        self.b_q: Weight | None = None
        self.b_k: Weight | None = None
        self.b_v: Weight | None = None
        self.b_o: Weight | None = None

    def __call__(
        self,
        query: Hidden,
        key: Hidden | None = None,
        value: Hidden | None = None,
        mask: Array | None = None,
        *,
        causal: Causal = False,
    ) -> tuple[Hidden, Scores]:
        """Attend from ``query`` to ``key`` and ``value``.

        Parameters
        ----------
        query : (B, T, E)
        key : (B, S, E), optional
            The query itself when left out (self-attention); another text for cross-attention.
        value : (B, S, E), optional
            The key when left out.
        mask : bool, broadcasts to (B, H, T, S), optional
            ``True`` = may attend.
        causal : bool or "top_left"
            No key after the query's own; see `attend`.

        Returns
        -------
        output : (B, T, E)
        weights : (B, H, T, S)
        """
        q, k, v = self.project_heads(query, key, value)
        mixed, weights = scaled_dot_product_attention(q, k, v, mask, causal=causal)
        return self.join_heads(mixed), weights

    forward = __call__

    def project_heads(
        self, query: Hidden, key: Hidden | None = None, value: Hidden | None = None
    ) -> tuple[Array, Array, Array]:
        """Return q ``(B, H, T, D)``, k and v ``(B, G, S, D)``."""
        seen: Hidden = query if key is None else key
        taken: Hidden = seen if value is None else value
        for name, x in (("query", query), ("key", seen), ("value", taken)):
            if x.ndim != 3 or x.shape[-1] != self.d_model:
                raise ShapeError(f"{name} must be (B, positions, E = {self.d_model}), not {tuple(x.shape)}")
        q = split_heads(project(query, self.w_q, self.b_q), self.num_heads)
        k = split_heads(project(seen, self.w_k, self.b_k), self.num_kv_heads)
        v = split_heads(project(taken, self.w_v, self.b_v), self.num_kv_heads)
        return q, k, v

    def join_heads(self, mixed: Array) -> Hidden:
        """Lay the heads side by side and mix them: ``(B, H, T, D)`` to ``(B, T, E)``."""
        return project(merge_heads(mixed), self.w_o, self.b_o)

    @classmethod
    def from_torch(cls, state: Mapping[str, Any], num_heads: int) -> "MultiHeadAttention":
        """Take the weights of a ``torch.nn.MultiheadAttention``.

        Parameters
        ----------
        state : mapping
            Its ``state_dict()``; tensors or arrays.
        num_heads : int
            H, which the state does not tell.

        Returns
        -------
        MultiHeadAttention
            Gives what the module gives in eval mode with ``batch_first=True``.

        Raises
        ------
        OptionError
            If the state holds something this layer lacks, such as ``bias_k``.
        ShapeError
            If its shapes do not fit ``num_heads``.
        """
        arrays = {name: np.asarray(tensor) for name, tensor in state.items()}
        unknown = sorted(set(arrays) - {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"})
        missing = sorted({"in_proj_weight", "out_proj.weight"} - set(arrays))
        if unknown or missing:
            raise OptionError(
                "from_torch takes in_proj_weight and out_proj.weight with their biases (kdim, vdim and "
                f"add_bias_kv left at their defaults); unknown: {unknown}, missing: {missing}"
            )
        layer = cls(arrays["out_proj.weight"].shape[0], num_heads)
        layer.w_q, layer.w_k, layer.w_v = np.split(arrays["in_proj_weight"], 3)
        layer.w_o, layer.b_o = arrays["out_proj.weight"], arrays.get("out_proj.bias")
        if "in_proj_bias" in arrays:
            layer.b_q, layer.b_k, layer.b_v = np.split(arrays["in_proj_bias"], 3)
        return layer


class CachedMultiHeadAttention:
    """Multi-head attention that remembers keys and values: causal, one token or many at a time.

    Parameters
    ----------
    d_model, num_heads, num_kv_heads, rng
        As `MultiHeadAttention`.

    Examples
    --------
    >>> layer = CachedMultiHeadAttention(d_model=16, num_heads=4, rng=np.random.default_rng(0))
    >>> x = np.random.default_rng(1).normal(size=(1, 5, 16))
    >>> at_once, _ = layer(x, use_cache=False)
    >>> one_by_one = np.concatenate([layer(x[:, t : t + 1])[0] for t in range(5)], axis=1)
    >>> bool(np.allclose(at_once, one_by_one)), layer.cache.length
    (True, 5)
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.attention = MultiHeadAttention(d_model, num_heads, num_kv_heads, rng=rng)
        self.clear_cache()

    def __call__(self, x: Hidden, use_cache: bool = True) -> tuple[Hidden, Scores]:
        """Attend from each new token to itself and to everything before it.

        Parameters
        ----------
        x : (B, T, E)
            The new tokens. Without the cache they are the whole text.
        use_cache : bool
            Remember this step's keys and values and see those of earlier steps.

        Returns
        -------
        output : (B, T, E)
        weights : (B, H, T, S)
            S = T without the cache, all tokens so far with it.

        Raises
        ------
        ShapeError
            If B is not that of the earlier steps; `clear_cache` begins anew.
        """
        if not use_cache:
            return self.attention(x, causal=True)
        q, k, v = self.attention.project_heads(x)
        if self.cache.length == 0:
            self.cache = self._empty_cache(x.shape[0], k.dtype)
        self.cache.append(0, k, v)
        mixed, weights = self.cache.attend(0, q, return_weights=True)
        return self.attention.join_heads(mixed), weights

    forward = __call__

    def clear_cache(self) -> None:
        """Forget every token."""
        self.cache = self._empty_cache(1, np.float64)

    def _empty_cache(self, batch_size: int, dtype: DTypeLike) -> ContiguousCache:
        layer = self.attention
        return ContiguousCache(CacheShape(1, layer.num_kv_heads, layer.head_dim, dtype), batch_size)


def _check_heads(d_model: int, num_heads: int, num_kv_heads: int) -> None:
    whole_number("d_model", d_model, least=1)
    if as_whole(num_heads) is None or num_heads < 1 or d_model % num_heads:
        raise ShapeError(f"num_heads must divide d_model = {d_model}, but is {num_heads}")
    if as_whole(num_kv_heads) is None or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ShapeError(f"num_kv_heads must divide num_heads = {num_heads}, but is {num_kv_heads}")


def _xavier(rng: np.random.Generator, width_out: int, width_in: int) -> Weight:
    return rng.normal(scale=(2 / (width_in + width_out)) ** 0.5, size=(width_out, width_in))
