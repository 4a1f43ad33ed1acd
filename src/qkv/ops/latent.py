"""Latent attention: keys and values of every head are linear maps of one short vector per token.

Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1. Of a token s there are its latent ``c_s`` and ``k_R``,
a rotated part that all heads share. A head's queries come in two parts, and it attends by::

    k_s = [W_UK c_s; k_R,s]                                                    (10, 17)
    v_s = W_UV c_s                                                             (11)
    o   = sum_s softmax_s((q_nope . W_UK c_s + q_rope . k_R,s) * scale) v_s    (18)

This can be computed in two ways, which differ in float32's last bits:

- `attend_up_projected` makes every head's keys and values from the latents; then it is attention as always.
  So the paper has it, and so it is cheapest over a text that is new as a whole. But with a cache every
  remembered latent is mapped anew at each step, ``latent x (nope + value)`` products per head.
- `attend_absorbed` moves both maps off the keys: ``q . (W_UK c) = (W_UK^T q) . c``, and
  ``sum_s w_s (W_UV c_s) = W_UV (sum_s w_s c_s)``. It is attention to the latents themselves: one key head,
  shared by all query heads, whose values are its own first numbers. The maps act once per query.

With the published sizes (latent 512, nope 128, rope 64, value 128) a pair of query and key takes 1,088
products absorbed and 320 up-projected, 3.4 times as many. Against a long cached text the absorbed form is
still the cheaper one up to 170 new tokens at once, and at a single one 120 times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.ops.arrays import array_namespace
from qkv.ops.projection import prepare, project, split_heads
from qkv.shapes import Array, Keys, Queries

if TYPE_CHECKING:
    from qkv.kernels.panels import Form

Attend = Callable[[Queries, Keys, Array], Array]
"""Attention on q, k and v, every other rule of the call settled."""


@dataclass(frozen=True)
class AbsorbedWeights:
    """W_UK and W_UV of each head, laid out to act on queries and outputs rather than on latents."""

    onto_queries: tuple[Any, ...]
    """H times W_UK^T, (latent, nope)."""
    onto_outputs: tuple[Any, ...]
    """H times W_UV, (value, latent)."""

    @classmethod
    def of(cls, w_kv: Array, H: int, nope_size: int) -> "AbsorbedWeights":
        """Take ``w_kv`` apart, (H * (nope + value), latent): for each head, W_UK's rows and then W_UV's."""
        xp = array_namespace(w_kv)
        heads = xp.reshape(w_kv, (H, -1, w_kv.shape[1]))
        return cls(
            tuple(xp.matrix_transpose(heads[head, :nope_size, :]) for head in range(H)),
            tuple(heads[head, nope_size:, :] for head in range(H)),
        )

    def prepared(self, form: "Form | None" = None) -> "AbsorbedWeights":
        """Return the same weights as `prepare` lays them out."""
        return AbsorbedWeights(
            tuple(prepare(weight, form) for weight in self.onto_queries),
            tuple(prepare(weight, form) for weight in self.onto_outputs),
        )


def attend_absorbed(
    q_nope: Queries, q_rope: Queries, keys: Keys, weights: AbsorbedWeights, attend: Attend
) -> Array:
    """Attend to latents: W_UK goes onto the queries before, W_UV onto what was mixed after.

    Parameters
    ----------
    q_nope, q_rope : (B, H, T, nope), (B, H, T, rope)
        The part of each query that meets latents, and the rotated part.
    keys : (B, 1, S, latent + rope)
        Latents, each followed by the rotated part of the key.
    weights : AbsorbedWeights
    attend : callable
        From q, k and v to ``(B, H, T, D)`` of the values' D.

    Returns
    -------
    (B, H, T, value)
        As `attend_up_projected`.
    """
    xp = array_namespace(q_nope, q_rope, keys)
    latents = keys[..., : -q_rope.shape[-1]]
    q = xp.concat([project_by_head(q_nope, weights.onto_queries), q_rope], axis=-1)  # B H T latent+rope
    mixed = attend(q, keys, latents)  # B H T latent
    return project_by_head(mixed, weights.onto_outputs)


def attend_up_projected(q_nope: Queries, q_rope: Queries, keys: Keys, w_kv: Array, attend: Attend) -> Array:
    """Make every head's keys and values from the latents, then attend: the equations as they stand.

    Parameters
    ----------
    q_nope, q_rope, keys, attend
        As for `attend_absorbed`.
    w_kv : (H * (nope + value), latent)
        For each head, nope rows of W_UK and then the rows of W_UV; or what `prepare` made of it.

    Returns
    -------
    (B, H, T, value)

    Examples
    --------
    Three heads of 7 + 2 numbers, which also set the scale of the absorbed form, and latents of 11:

    >>> import numpy as np
    >>> from functools import partial
    >>> from qkv import attend
    >>> rng, shapes = np.random.default_rng(0), [(1, 3, 5, 7), (1, 3, 5, 2), (1, 1, 5, 11 + 2), (33, 11)]
    >>> *queries_and_keys, w_kv = (rng.normal(size=shape) for shape in shapes)
    >>> by_heads = attend_up_projected(*queries_and_keys, w_kv, attend)
    >>> weights = AbsorbedWeights.of(w_kv, H=3, nope_size=7)
    >>> absorbed = attend_absorbed(*queries_and_keys, weights, partial(attend, scale=9**-0.5))
    >>> by_heads.shape, np.allclose(absorbed, by_heads)
    ((1, 3, 5, 4), True)
    """
    xp = array_namespace(q_nope, q_rope, keys)
    (_, H, _, nope_size), rope_size = q_nope.shape, q_rope.shape[-1]
    latents, k_rope = keys[..., :-rope_size], keys[..., -rope_size:]
    up = split_heads(project(latents[:, 0, ...], w_kv), H)  # B H S nope+value
    k_rope = xp.broadcast_to(k_rope, (*up.shape[:-1], rope_size))
    q = xp.concat([q_nope, q_rope], axis=-1)
    k = xp.concat([up[..., :nope_size], k_rope], axis=-1)
    return attend(q, k, up[..., nope_size:])


def project_by_head(x: Array, weights: tuple[Any, ...]) -> Array:
    """Map each head by a matrix of its own: ``(B, H, T, D)`` to ``(B, H, T, D_out)``."""
    # Not one product over all heads, whose bits NumPy lets depend on the number of rows.
    heads = [project(x[:, head, ...], weight) for head, weight in enumerate(weights)]
    return array_namespace(*heads).stack(heads, axis=1)
