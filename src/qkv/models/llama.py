"""The Llama family: Llama 2 and 3, Mistral, Qwen2, Qwen3.

One wiring; the members differ in a few optional tensors (biases, per-head norms) and in which
layers see through a window, all of which the config says.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache import Cache, Rotation, StepCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import CheckpointError, CheckpointWarning
from qkv.models.checkpoint import Checkpoint
from qkv.models.config import ConfigFields, head_dim_of
from qkv.models.decoding import Decoding
from qkv.models.model import fingerprint_of
from qkv.models.positions import RotaryScheme, rotary_scheme
from qkv.models.step import Step
from qkv.ops.embedding import embed
from qkv.ops.logits import unembed
from qkv.ops.mlp import Activation, gated_mlp, gelu_tanh, silu
from qkv.ops.norm import rms_norm
from qkv.ops.projection import merge_heads, prepare, project, split_heads
from qkv.ops.rotary import rotary_table, rotate
from qkv.shapes import Array, Hidden, Logits, TokenIds, Visible
from qkv.tokens import Tokenizer

Weight = NDArray[np.float32]
Matrix = Any
"""An array, or a weight laid out for the kernels: only `project` and `embed` look inside."""

ACTIVATIONS: Mapping[str, Activation] = {"silu": silu, "gelu_pytorch_tanh": gelu_tanh}
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and switches of one model, by the dimension key."""

    V: int
    E: int
    F: int
    L: int
    H: int
    G: int
    D: int
    context_length: int
    norm_eps: float
    activation: Activation
    rotary: RotaryScheme
    windows: tuple[int | None, ...]
    """Each layer's window W; ``None`` = the whole context."""
    tied: bool
    """Whether the embedding table is also the output head."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    """Whether each head's query and key are normed before rotation (Qwen3)."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Read a config.json; fields left out take the values their model type documents."""
        fields = ConfigFields(config)
        kind = fields.text("model_type", "llama")
        E, H = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        D, context_length = head_dim_of(fields, E, H), fields.integer("max_position_embeddings", 2048)
        attention_bias = fields.flag("attention_bias", False)
        G = fields.integer("num_key_value_heads", H)
        if H % G:
            raise CheckpointError(
                f"config.json: num_attention_heads {H} is no multiple of num_key_value_heads {G}"
            )
        return cls(
            V=fields.integer("vocab_size"),
            E=E,
            F=fields.integer("intermediate_size"),
            L=fields.integer("num_hidden_layers"),
            H=H,
            G=G,
            D=D,
            context_length=context_length,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            rotary=rotary_scheme(config, D, context_length),
            windows=layer_windows(fields),
            tied=fields.flag("tie_word_embeddings", False),
            qkv_bias=kind == "qwen2" or attention_bias,
            out_bias=kind != "qwen2" and attention_bias,
            mlp_bias=fields.flag("mlp_bias", False),
            head_norms=kind == "qwen3",
        )


def layer_windows(fields: ConfigFields) -> tuple[int | None, ...]:
    """Return each layer's window: none for Llama, one for all of Mistral, the upper layers of Qwen.

    A window of 0 or less in a config means none.

    Examples
    --------
    >>> qwen = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 8, "max_window_layers": 3}
    >>> layer_windows(ConfigFields(qwen | {"use_sliding_window": True}))
    (None, None, None, 8)
    >>> layer_windows(ConfigFields(qwen | {"use_sliding_window": False}))
    (None, None, None, None)
    """
    L, kind = fields.integer("num_hidden_layers"), fields.text("model_type", "llama")
    is_qwen = kind.startswith("qwen")
    full_layers = fields.integer("max_window_layers", 28, least=0) if is_qwen else 0
    kinds = fields.items("layer_types") or [FULL if layer < full_layers else SLIDING for layer in range(L)]
    if len(kinds) != L or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise CheckpointError(
            f"config.json: layer_types must name {FULL} or {SLIDING} for each of {L} layers, not {kinds}"
        )
    window = fields.values.get("sliding_window", 4096)  # null is a value of its own: no window
    if window is not None and type(window) is not int:
        raise CheckpointError(f"config.json: sliding_window must be an integer or null, not {window!r}")
    uses_window = kind == "mistral" or (is_qwen and fields.flag("use_sliding_window", False))
    if not uses_window or window is None or window <= 0:
        return (None,) * L
    return tuple(window if kind == SLIDING else None for kind in kinds)


@dataclass(frozen=True)
class LlamaLayer:
    """One layer's weights, stored out by in."""

    attention_norm: Weight
    w_qkv: Matrix
    """Queries, keys and values, one below the other: one product makes all three."""
    b_qkv: Weight | None
    q_norm: Weight | None
    k_norm: Weight | None
    w_o: Matrix
    b_o: Weight | None
    mlp_norm: Weight
    w_gate_up: Matrix
    b_gate_up: Weight | None
    w_down: Matrix
    b_down: Weight | None


@dataclass(frozen=True)
class Llama:
    """A model of the Llama family: weights and the way through them."""

    config: LlamaConfig
    embedding: Matrix
    layers: tuple[LlamaLayer, ...]
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
        return step.unpack(self._logits(step))

    def next_logits(self, ids: TokenIds, cache: Cache | None = None, mask: Visible | None = None) -> Logits:
        """Return only the logits after each row's last token, 0 where it has none: ``(V,)`` or ``(B, V)``."""
        step = Step.of(ids, cache, mask)
        if step.ids.shape[1] == 1:
            logits = step.last(self._logits(step))[:, 0]
        else:
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
        """What a cache for this model must hold."""
        return CacheShape(self.config.L, self.config.G, self.config.D)

    @property
    def rotation(self) -> Rotation | None:
        """How keys are turned, whole, by their positions."""
        return Rotation(self.config.rotary.at(self.context_length))

    @property
    def fingerprint(self) -> str:
        """Tells this model's saved caches from another's."""
        return fingerprint_of(self)

    def _hidden(self, step: Step) -> Hidden:
        turns = self._turns(step)
        y = self._decoding.run(step, turns, unembeds=False)
        return self._through_layers(step, turns) if y is None else y

    def _logits(self, step: Step) -> Logits:
        turns = self._turns(step)
        y = self._decoding.run(step, turns, unembeds=True)
        return unembed(self._through_layers(step, turns), self.head) if y is None else y

    def _turns(self, step: Step) -> tuple[Array, Array]:
        return rotary_table(self.config.rotary.at(step.longest), step.positions[:, None])  # B 1 T D/2

    def _through_layers(self, step: Step, turns: tuple[Array, Array]) -> Hidden:
        x = embed(step.ids, self.embedding)  # B T E
        for index, layer in enumerate(self.layers):
            x = x + self._attention(index, layer, rms_norm(x, layer.attention_norm, self._eps), turns, step)
            x = x + self._mlp(layer, rms_norm(x, layer.mlp_norm, self._eps))
        return rms_norm(x, self.final_norm, self._eps)

    def _attention(
        self, index: int, layer: LlamaLayer, x: Hidden, turns: tuple[Array, Array], step: Step
    ) -> Hidden:
        H, G = self.config.H, self.config.G
        heads = split_heads(project(x, layer.w_qkv, layer.b_qkv), H + 2 * G)  # B H+2G T D
        q, k, v = heads[:, :H], heads[:, H:-G], heads[:, -G:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, self._eps), rms_norm(k, layer.k_norm, self._eps)
        q, k = rotate(q, *turns), rotate(k, *turns)
        mixed = step.attend(index, q, k, v, window=self.config.windows[index])
        return project(merge_heads(mixed), layer.w_o, layer.b_o)  # B T E

    def _mlp(self, layer: LlamaLayer, x: Hidden) -> Hidden:
        weights = layer.w_gate_up, layer.w_down, layer.b_gate_up, layer.b_down
        return gated_mlp(x, *weights, activation=self.config.activation)

    @cached_property
    def _decoding(self) -> Decoding:
        return Decoding(self.config, self.embedding, self.layers, self.final_norm, self.head)

    @property
    def _eps(self) -> float:
        return self.config.norm_eps

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "Llama":
        """Take every parameter from a checkpoint, once.

        Raises
        ------
        CheckpointError
            If a tensor is missing or has another shape than the config says.
        """
        config = LlamaConfig.from_dict(checkpoint.config)
        tables = "model.embed_tokens.weight", (config.V, config.E), config.tied
        embedding, head = take_tables(checkpoint, *tables)
        return cls(
            config,
            embedding,
            layers=tuple(_take_layer(checkpoint, config, index) for index in range(config.L)),
            final_norm=checkpoint.take("model.norm.weight", (config.E,)),
            head=head,
        )


def take_tables(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], tied: bool
) -> tuple[Matrix, Matrix]:
    """Return embedding table and output head: where they are tied one and the same, held once."""
    if not tied:
        embedding, head = (
            prepare(checkpoint.take_matrix(one, shape), checkpoint.form) for one in (name, "lm_head.weight")
        )
        return embedding, head
    table = checkpoint.take_matrix(name, shape)
    is_stored = checkpoint.holds("lm_head.weight")
    if is_stored and not np.array_equal(checkpoint.take_matrix("lm_head.weight", shape), table):
        warnings.warn(
            "lm_head.weight differs from the embedding that config.json ties it to, and is not used",
            CheckpointWarning,
            stacklevel=2,
        )
    embedding = prepare(table, checkpoint.form)
    return embedding, embedding


def take_linear(
    checkpoint: Checkpoint, width_in: int, *maps: tuple[str, int, bool]
) -> tuple[Matrix, Weight | None]:
    """Return weight and bias of linear maps that read the same vector, one below the other.

    Parameters
    ----------
    checkpoint : Checkpoint
    width_in : int
    *maps : (str, int, bool)
        Each one's name, how many numbers it gives, and whether it has a bias.
    """
    weights = [checkpoint.take_matrix(f"{name}.weight", (width, width_in)) for name, width, _ in maps]
    # -0.0 + y is y to the bit.
    biases = [
        checkpoint.take(f"{name}.bias", (width,)) if has_bias else np.full(width, -0.0, np.float32)
        for name, width, has_bias in maps
    ]
    any_bias = any(has_bias for _, _, has_bias in maps)
    return prepare(np.concatenate(weights), checkpoint.form), np.concatenate(biases) if any_bias else None


def _take_layer(checkpoint: Checkpoint, config: LlamaConfig, index: int) -> LlamaLayer:
    prefix, E, F = f"model.layers.{index}", config.E, config.F
    query_width, key_width = config.H * config.D, config.G * config.D
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def take_norm(name: str, width: int, when: bool = True) -> Any:
        return checkpoint.take(f"{name}.weight", (width,)) if when else None

    checkpoint.skip(f"{attention}.rotary_emb.inv_freq")  # a buffer old files carry, no parameter
    w_qkv, b_qkv = take_linear(
        checkpoint,
        E,
        (f"{attention}.q_proj", query_width, config.qkv_bias),
        (f"{attention}.k_proj", key_width, config.qkv_bias),
        (f"{attention}.v_proj", key_width, config.qkv_bias),
    )
    w_o, b_o = take_linear(checkpoint, query_width, (f"{attention}.o_proj", E, config.out_bias))
    w_gate_up, b_gate_up = take_linear(
        checkpoint, E, (f"{mlp}.gate_proj", F, config.mlp_bias), (f"{mlp}.up_proj", F, config.mlp_bias)
    )
    w_down, b_down = take_linear(checkpoint, F, (f"{mlp}.down_proj", E, config.mlp_bias))
    return LlamaLayer(
        attention_norm=take_norm(f"{prefix}.input_layernorm", E),
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        q_norm=take_norm(f"{attention}.q_norm", config.D, config.head_norms),
        k_norm=take_norm(f"{attention}.k_norm", config.D, config.head_norms),
        w_o=w_o,
        b_o=b_o,
        mlp_norm=take_norm(f"{prefix}.post_attention_layernorm", E),
        w_gate_up=w_gate_up,
        b_gate_up=b_gate_up,
        w_down=w_down,
        b_down=b_down,
    )
