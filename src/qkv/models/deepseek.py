"""DeepSeek-V2 and V3 with dense layers: multi-head latent attention (MLA).

The keys and values of all H heads are linear maps of one short vector per token, its latent ``c``, and
only the latent is remembered. Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1. Its equations, for a
token's vector x and head i, ``[a; b]`` being one vector behind the other::

    c   = norm(W_DKV x)                                            (9)
    k_i = [W_UK_i c; k_R],  k_R = rotate(W_KR x)                   (10, 15, 17)
    v_i = W_UV_i c                                                 (11)
    q_i = [W_UQ_i c_Q; rotate(W_QR_i c_Q)],  c_Q = norm(W_DQ x)    (12-14, 16)
    o_i = sum_s softmax_s(q_i . k_i,s / sqrt(nope + rope)) v_i,s   (18)
    y   = W_O [o_1; ...; o_H]                                      (19)

The two parts of a query or key have the sizes nope and rope, c is of size latent and v_i of size value.
Positions have a part of their own, ``k_R``, one for all heads: a rotation between W_UK and W_UQ would
change with every pair of tokens, and the two could not be multiplied once for all. Some models have no
``c_Q`` (V2-Lite): x stands in its place. The norms are in section 3.1.2.

A token costs ``[c; k_R]`` in each layer, and no value beside it: with the published 512 + 64 numbers, 128
heads of 128 and 60 layers (V2), 69,120 bytes in float16, where multi-head attention of the same size takes
2 x 128 x 128 numbers a layer, 3,932,160 bytes, 57 times as many.

`qkv.ops.latent` has the two ways to compute this. The model runs the absorbed form, with a cache and without:
in float32 the two differ in the last bits, and a token's logits must not depend on how its context came in.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache import Cache, Rotation, StepCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import CheckpointError
from qkv.models.checkpoint import Checkpoint
from qkv.models.config import ConfigFields
from qkv.models.llama import ACTIVATIONS, Matrix, take_linear, take_tables
from qkv.models.model import fingerprint_of
from qkv.models.positions import RotaryScheme, rotary_scheme
from qkv.models.step import Step
from qkv.ops.embedding import embed
from qkv.ops.latent import AbsorbedWeights, Attend, attend_absorbed
from qkv.ops.logits import unembed
from qkv.ops.mlp import Activation, gated_mlp
from qkv.ops.norm import rms_norm
from qkv.ops.projection import merge_heads, project, split_heads
from qkv.ops.rotary import rotary_table, rotate
from qkv.shapes import Array, Hidden, Keys, Logits, Queries, TokenIds, Visible
from qkv.tokens import Tokenizer

Weight = NDArray[np.float32]

V2, V3 = "deepseek_v2", "deepseek_v3"
LATENT_NORM_EPS = 1e-6
"""Of the norms of latents, in every model of the family: ``rms_norm_eps`` is that of the other norms."""


@dataclass(frozen=True)
class DeepSeekConfig:
    """The sizes and switches of one model, by the dimension key and by the parts of a head."""

    V: int
    E: int
    F: int
    L: int
    H: int
    nope_size: int
    """Numbers of each head's query and key that are not rotated."""
    rope_size: int
    """Numbers of each head's query and of the shared key that are."""
    value_size: int
    latent_size: int
    query_latent_size: int | None
    """``None`` = queries come straight from the model's width."""
    context_length: int
    norm_eps: float
    activation: Activation
    rotary: RotaryScheme
    interleaved: bool
    """Whether neighbours are rotated as a pair, rather than one number of each half."""
    scale: float
    """Multiplies the dot products."""
    tied: bool
    attention_bias: bool
    """Whether the maps to latents and from the heads have biases."""
    mlp_bias: bool
    num_extra_layers: int
    """Layers behind the last that predict later tokens; they are no part of the model."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "DeepSeekConfig":
        """Read a config.json; fields left out take the values their model type documents."""
        fields = ConfigFields(config)
        is_v2 = fields.text("model_type") == V2
        L = fields.integer("num_hidden_layers")
        check_dense(fields, L)
        nope_size = fields.integer("qk_nope_head_dim", 128)
        rope_size = fields.integer("qk_rope_head_dim", 64)
        context_length = fields.integer("max_position_embeddings", 2048 if is_v2 else 4096)
        rotary = rotary_scheme(config, rope_size, context_length)
        if rotary.size != rope_size:
            raise CheckpointError(
                "config.json: partial_rotary_factor must be 1, as all numbers of qk_rope_head_dim "
                f"{rope_size} are rotated, not {rotary.size / rope_size:g}"
            )
        return cls(
            V=fields.integer("vocab_size"),
            E=fields.integer("hidden_size"),
            F=fields.integer("intermediate_size"),
            L=L,
            H=fields.integer("num_attention_heads"),
            nope_size=nope_size,
            rope_size=rope_size,
            value_size=fields.integer("v_head_dim", 128),
            latent_size=fields.integer("kv_lora_rank", 512),
            query_latent_size=query_latent_size(fields),
            context_length=context_length,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            rotary=rotary,
            # Left out it is true, but null is false.
            interleaved=is_v2 or "rope_interleave" not in config or fields.flag("rope_interleave", False),
            scale=attention_scale(nope_size + rope_size, rotary),
            tied=fields.flag("tie_word_embeddings", False),
            attention_bias=fields.flag("attention_bias", False),
            mlp_bias=is_v2 and fields.flag("mlp_bias", False),
            num_extra_layers=fields.integer("num_nextn_predict_layers", 0, least=0),
        )


def check_dense(fields: ConfigFields, L: int) -> None:
    """Raise `CheckpointError` if a layer is a mixture of experts.

    Examples
    --------
    >>> fields = {"model_type": "deepseek_v2", "n_routed_experts": 64, "first_k_dense_replace": 27}
    >>> check_dense(ConfigFields(fields), L=27)
    """
    num_experts = fields.integer("n_routed_experts", 0, least=0)
    num_dense = fields.integer("first_k_dense_replace", 0 if fields.text("model_type") == V2 else 3, least=0)
    if num_experts and num_dense < L:
        raise CheckpointError(
            f"config.json: every layer must be dense for qkv to run it, but of {L} those from "
            f"first_k_dense_replace = {num_dense} on are mixtures of n_routed_experts = {num_experts}"
        )


def query_latent_size(fields: ConfigFields) -> int | None:
    """Return ``q_lora_rank``, where null is a value of its own: queries without a latent.

    Examples
    --------
    >>> [query_latent_size(ConfigFields(config)) for config in ({"q_lora_rank": None}, {})]
    [None, 1536]
    """
    is_null = "q_lora_rank" in fields.values and not fields.holds("q_lora_rank")
    return None if is_null else fields.integer("q_lora_rank", 1536)


def attention_scale(size: int, rotary: RotaryScheme) -> float:
    """Return what dot products of ``size`` numbers are multiplied by: ``1/sqrt(size)``, or more by YaRN.

    YaRN sharpens scores by lengthening queries and keys, but here only a part of them is rotated. What
    ``mscale_all_dim`` says goes into the scale, squared, for it is meant for both of them.

    Examples
    --------
    >>> config = {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1, "mscale_all_dim": 1}}
    >>> round(attention_scale(192, rotary_scheme(config, 64, 4096)) * 192**0.5, 4)
    1.8739
    """
    if rotary.rope_type == "default" or not rotary.scaling.values.get("mscale_all_dim"):
        return size**-0.5
    stretch = max(rotary.scaling.number("factor"), 1.0)
    return size**-0.5 * (0.1 * rotary.scaling.number("mscale_all_dim") * math.log(stretch) + 1.0) ** 2


@dataclass(frozen=True)
class DeepSeekLayer:
    """One layer's weights, stored out by in."""

    attention_norm: Weight
    w_in: Matrix
    """W_DQ, or W_Q where queries have no latent; below it W_DKV and W_KR: one product for all x gives."""
    b_in: Weight | None
    query_latent_norm: Weight | None
    w_q: Matrix | None
    """From the queries' latent."""
    latent_norm: Weight
    absorbed: AbsorbedWeights
    w_o: Matrix
    b_o: Weight | None
    mlp_norm: Weight
    w_gate_up: Matrix
    b_gate_up: Weight | None
    w_down: Matrix
    b_down: Weight | None


@dataclass(frozen=True)
class DeepSeek:
    """A model of the DeepSeek family: weights and the way through them."""

    config: DeepSeekConfig
    embedding: Matrix
    layers: tuple[DeepSeekLayer, ...]
    final_norm: Weight
    head: Matrix
    tokenizer: Tokenizer | None = None
    end_ids: frozenset[int] = frozenset()

    def logits(self, ids: TokenIds, cache: StepCache | None = None, mask: Visible | None = None) -> Logits:
        """Return the logits of the token after each id.

        Parameters
        ----------
        ids : (T,) or (B, T) integers
            New tokens; with a cache they continue what it holds, and are added to it.
        cache : StepCache, optional
            Without one, every token is computed anew.
        mask : (B, T) bool, optional
            ``True`` = a real token; padding on either side is neither run nor stored.

        Returns
        -------
        (T, V) or (B, T, V) float32
        """
        step = Step.of(ids, cache, mask)
        return step.unpack(unembed(self._hidden(step), self.head))

    def next_logits(self, ids: TokenIds, cache: Cache | None = None, mask: Visible | None = None) -> Logits:
        """Return only the logits after each row's last token, 0 where it has none: ``(V,)`` or ``(B, V)``."""
        step = Step.of(ids, cache, mask)
        logits = unembed(step.last(self._hidden(step)), self.head)[:, 0]
        return logits[0] if np.ndim(ids) == 1 else logits

    def hidden(self, ids: TokenIds, cache: StepCache | None = None) -> Hidden:
        """Return what the output head reads, ``(T, E)`` or ``(B, T, E)``: see `Model.hidden`."""
        step = Step.of(ids, cache, None)
        return step.unpack(self._hidden(step))

    def unembed(self, x: Hidden) -> Logits:
        """Return the logits ``(..., V)`` that belong to vectors ``(..., E)`` from `hidden`."""
        return unembed(x, self.head)

    @property
    def context_length(self) -> int:
        """How many tokens the model was made for."""
        return self.config.context_length

    @property
    def vocab_size(self) -> int:
        """V, how many ids there are."""
        return self.config.V

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache for this model must hold: one key head, whose keys begin with their values."""
        latent_size, rope_size = self.config.latent_size, self.config.rope_size
        return CacheShape(
            self.config.L, 1, latent_size + rope_size, value_dim=latent_size, shares_values=True
        )

    @property
    def rotation(self) -> Rotation | None:
        """Only a part of a key is turned."""
        return None

    @property
    def fingerprint(self) -> str:
        """Tells this model's saved caches from another's."""
        return fingerprint_of(self)

    def _hidden(self, step: Step) -> Hidden:
        x = embed(step.ids, self.embedding)  # B T E
        turns = rotary_table(self.config.rotary.at(step.longest), step.positions[:, None])  # B 1 T rope/2
        for index, layer in enumerate(self.layers):
            attend = partial(step.attend, index, scale=self.config.scale)
            x = x + self._attention(layer, rms_norm(x, layer.attention_norm, self._eps), turns, attend)
            x = x + self._mlp(layer, rms_norm(x, layer.mlp_norm, self._eps))
        return rms_norm(x, self.final_norm, self._eps)

    def _attention(
        self, layer: DeepSeekLayer, x: Hidden, turns: tuple[Array, Array], attend: Attend
    ) -> Hidden:
        mapped = project(x, layer.w_in, layer.b_in)  # B T queries+latent+rope
        key_size = self.config.latent_size + self.config.rope_size
        q_nope, q_rope = self._queries(layer, mapped[..., :-key_size], turns)
        keys = self._keys(layer, mapped[:, None, :, -key_size:], turns)
        heads = attend_absorbed(q_nope, q_rope, keys, layer.absorbed, attend)  # B H T value
        return project(merge_heads(heads), layer.w_o, layer.b_o)  # B T E

    def _queries(
        self, layer: DeepSeekLayer, x: Hidden, turns: tuple[Array, Array]
    ) -> tuple[Queries, Queries]:
        if layer.query_latent_norm is not None and layer.w_q is not None:
            x = project(rms_norm(x, layer.query_latent_norm, LATENT_NORM_EPS), layer.w_q)
        q = split_heads(x, self.config.H)  # B H T nope+rope
        q_nope, q_rope = q[..., : self.config.nope_size], q[..., self.config.nope_size :]
        return q_nope, rotate(q_rope, *turns, interleaved=self.config.interleaved)

    def _keys(self, layer: DeepSeekLayer, key: Keys, turns: tuple[Array, Array]) -> Keys:
        latents, k_rope = key[..., : self.config.latent_size], key[..., self.config.latent_size :]
        latents = rms_norm(latents, layer.latent_norm, LATENT_NORM_EPS)
        k_rope = rotate(k_rope, *turns, interleaved=self.config.interleaved)
        return np.concatenate([latents, k_rope], axis=-1)

    def _mlp(self, layer: DeepSeekLayer, x: Hidden) -> Hidden:
        weights = layer.w_gate_up, layer.w_down, layer.b_gate_up, layer.b_down
        return gated_mlp(x, *weights, activation=self.config.activation)

    @property
    def _eps(self) -> float:
        return self.config.norm_eps

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "DeepSeek":
        """Take every parameter from a checkpoint, once.

        Raises
        ------
        CheckpointError
            If a layer is a mixture of experts, or a tensor is missing or of another shape than the
            config says.
        """
        config = DeepSeekConfig.from_dict(checkpoint.config)
        for index in range(config.L, config.L + config.num_extra_layers):
            checkpoint.skip(partial(_is_of_layer, index))
        tables = "model.embed_tokens.weight", (config.V, config.E), config.tied
        embedding, head = take_tables(checkpoint, *tables)
        return cls(
            config,
            embedding,
            layers=tuple(_take_layer(checkpoint, config, index) for index in range(config.L)),
            final_norm=checkpoint.take("model.norm.weight", (config.E,)),
            head=head,
        )


def _is_of_layer(index: int, name: str) -> bool:
    return name.startswith(f"model.layers.{index}.")


def _take_layer(checkpoint: Checkpoint, config: DeepSeekConfig, index: int) -> DeepSeekLayer:
    prefix, E, F, H = f"model.layers.{index}", config.E, config.F, config.H
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    latent_size, query_latent_size = config.latent_size, config.query_latent_size
    query_width = H * (config.nope_size + config.rope_size)
    kv_width = H * (config.nope_size + config.value_size)

    def take_norm(name: str, width: int) -> Weight:
        return checkpoint.take(f"{name}.weight", (width,))

    checkpoint.skip(f"{attention}.rotary_emb.inv_freq")  # a buffer old files carry, no parameter
    if query_latent_size is None:
        first = f"{attention}.q_proj", query_width, False
        query_latent_norm = w_q = None
    else:
        first = f"{attention}.q_a_proj", query_latent_size, config.attention_bias
        query_latent_norm = take_norm(f"{attention}.q_a_layernorm", query_latent_size)
        w_q, _ = take_linear(checkpoint, query_latent_size, (f"{attention}.q_b_proj", query_width, False))
    second = f"{attention}.kv_a_proj_with_mqa", latent_size + config.rope_size, config.attention_bias
    w_in, b_in = take_linear(checkpoint, E, first, second)
    w_kv = checkpoint.take_matrix(f"{attention}.kv_b_proj.weight", (kv_width, latent_size))
    w_o, b_o = take_linear(
        checkpoint, H * config.value_size, (f"{attention}.o_proj", E, config.attention_bias)
    )
    w_gate_up, b_gate_up = take_linear(
        checkpoint, E, (f"{mlp}.gate_proj", F, config.mlp_bias), (f"{mlp}.up_proj", F, config.mlp_bias)
    )
    w_down, b_down = take_linear(checkpoint, F, (f"{mlp}.down_proj", E, config.mlp_bias))
    return DeepSeekLayer(
        attention_norm=take_norm(f"{prefix}.input_layernorm", E),
        w_in=w_in,
        b_in=b_in,
        query_latent_norm=query_latent_norm,
        w_q=w_q,
        latent_norm=take_norm(f"{attention}.kv_a_layernorm", latent_size),
        absorbed=AbsorbedWeights.of(w_kv, H, config.nope_size).prepared(checkpoint.form),
        w_o=w_o,
        b_o=b_o,
        mlp_norm=take_norm(f"{prefix}.post_attention_layernorm", E),
        w_gate_up=w_gate_up,
        b_gate_up=b_gate_up,
        w_down=w_down,
        b_down=b_down,
    )
