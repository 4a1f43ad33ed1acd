"""GPT-2: learned positions, LayerNorm before each step, biases everywhere, a plain MLP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.cache import Cache, Rotation, StepCache
from qkv.cache.contiguous import CacheShape
from qkv.errors import CheckpointError, PromptError
from qkv.models.checkpoint import Checkpoint
from qkv.models.config import ConfigFields
from qkv.models.llama import Matrix, take_tables
from qkv.models.model import fingerprint_of
from qkv.models.step import Step
from qkv.ops.embedding import embed
from qkv.ops.logits import unembed
from qkv.ops.mlp import Activation, gelu, gelu_tanh, mlp, silu
from qkv.ops.norm import layer_norm
from qkv.ops.projection import merge_heads, prepare, project, split_heads
from qkv.shapes import Hidden, Logits, TokenIds, Visible
from qkv.tokens import Tokenizer

Weight = NDArray[np.float32]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": gelu,
    "silu": silu,
}


@dataclass(frozen=True)
class GPT2Config:
    """The sizes and switches of one model, by the dimension key."""

    V: int
    E: int
    F: int
    L: int
    H: int
    context_length: int
    norm_eps: float
    activation: Activation
    tied: bool
    scales: tuple[float, ...]
    """What each layer multiplies its dot products by."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "GPT2Config":
        """Read a config.json; fields left out take GPT-2's own values."""
        fields = ConfigFields(config)
        E, H, L = fields.integer("n_embd", 768), fields.integer("n_head", 12), fields.integer("n_layer", 12)
        if E % H:
            raise CheckpointError(f"config.json: n_embd {E} is not a multiple of n_head {H}")
        scale = (E // H) ** -0.5 if fields.flag("scale_attn_weights", True) else 1.0
        by_depth = fields.flag("scale_attn_by_inverse_layer_idx", False)
        return cls(
            V=fields.integer("vocab_size", 50257),
            E=E,
            F=fields.integer("n_inner", 4 * E),
            L=L,
            H=H,
            context_length=fields.integer("n_positions", 1024),
            norm_eps=fields.number("layer_norm_epsilon", 1e-5),
            activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
            tied=fields.flag("tie_word_embeddings", True),
            scales=tuple(scale / (index + 1) if by_depth else scale for index in range(L)),
        )


@dataclass(frozen=True)
class GPT2Layer:
    """One layer's weights, stored out by in."""

    attention_norm: tuple[Weight, Weight]
    w_qkv: Matrix
    b_qkv: Weight
    w_o: Matrix
    b_o: Weight
    mlp_norm: tuple[Weight, Weight]
    w_in: Matrix
    b_in: Weight
    w_out: Matrix
    b_out: Weight


@dataclass(frozen=True)
class GPT2:
    """A GPT-2: weights and the way through them."""

    config: GPT2Config
    embedding: Matrix
    position_embedding: Weight
    layers: tuple[GPT2Layer, ...]
    final_norm: tuple[Weight, Weight]
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

        Raises
        ------
        PromptError
            If the text outgrows the learned positions.
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
        """How many positions the model has learned."""
        return self.config.context_length

    @property
    def vocab_size(self) -> int:
        """V, how many ids there are."""
        return self.config.V

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache for this model must hold."""
        return CacheShape(self.config.L, self.config.H, self.config.E // self.config.H)

    @property
    def rotation(self) -> Rotation | None:
        """Keys are not turned: positions are part of the embedding."""
        return None

    @property
    def fingerprint(self) -> str:
        """Tells this model's saved caches from another's."""
        return fingerprint_of(self)

    def _hidden(self, step: Step) -> Hidden:
        if step.longest > self.context_length:
            raise PromptError(
                f"the text has {step.longest} tokens, but GPT-2 has learned {self.context_length} positions"
            )
        x = embed(step.ids, self.embedding) + embed(step.positions, self.position_embedding)  # B T E
        for index, layer in enumerate(self.layers):
            x = x + self._attention(index, layer, self._norm(x, layer.attention_norm), step)
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
        return self._norm(x, self.final_norm)

    def _attention(self, index: int, layer: GPT2Layer, x: Hidden, step: Step) -> Hidden:
        H = self.config.H
        heads = split_heads(project(x, layer.w_qkv, layer.b_qkv), 3 * H)  # B 3H T D
        q, k, v = heads[:, :H], heads[:, H : 2 * H], heads[:, 2 * H :]
        mixed = step.attend(index, q, k, v, scale=self.config.scales[index])
        return project(merge_heads(mixed), layer.w_o, layer.b_o)  # B T E

    def _mlp(self, layer: GPT2Layer, x: Hidden) -> Hidden:
        weights = layer.w_in, layer.w_out, layer.b_in, layer.b_out
        return mlp(x, *weights, activation=self.config.activation)

    def _norm(self, x: Hidden, norm: tuple[Weight, Weight]) -> Hidden:
        return layer_norm(x, *norm, self.config.norm_eps)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "GPT2":
        """Take every parameter from a checkpoint, once.

        Raises
        ------
        CheckpointError
            If a tensor is missing or has another shape than the config says.
        """
        config = GPT2Config.from_dict(checkpoint.config)
        # OpenAI's own files name tensors without the prefix that Hugging Face saves with.
        prefix = "transformer." if checkpoint.holds("transformer.wte.weight") else ""
        tables = f"{prefix}wte.weight", (config.V, config.E), config.tied
        embedding, head = take_tables(checkpoint, *tables)
        return cls(
            config,
            embedding,
            checkpoint.take(f"{prefix}wpe.weight", (config.context_length, config.E)),
            layers=tuple(_take_layer(checkpoint, config, f"{prefix}h.{i}") for i in range(config.L)),
            final_norm=_take_norm(checkpoint, f"{prefix}ln_f", config.E),
            head=head,
        )


def _take_layer(checkpoint: Checkpoint, config: GPT2Config, prefix: str) -> GPT2Layer:
    E, F = config.E, config.F
    checkpoint.skip(f"{prefix}.attn.bias", f"{prefix}.attn.masked_bias")  # the causal mask, as a buffer
    return GPT2Layer(
        _take_norm(checkpoint, f"{prefix}.ln_1", E),
        *_take_linear(checkpoint, f"{prefix}.attn.c_attn", E, 3 * E),
        *_take_linear(checkpoint, f"{prefix}.attn.c_proj", E, E),
        _take_norm(checkpoint, f"{prefix}.ln_2", E),
        *_take_linear(checkpoint, f"{prefix}.mlp.c_fc", E, F),
        *_take_linear(checkpoint, f"{prefix}.mlp.c_proj", F, E),
    )


def _take_linear(checkpoint: Checkpoint, name: str, width_in: int, width_out: int) -> tuple[Matrix, Weight]:
    """Return weight and bias; GPT-2's files store the weight in by out, the transpose of ours."""
    weight = checkpoint.take_matrix(f"{name}.weight", (width_in, width_out))
    return prepare(weight.T, checkpoint.form), checkpoint.take(f"{name}.bias", (width_out,))


def _take_norm(checkpoint: Checkpoint, name: str, width: int) -> tuple[Weight, Weight]:
    return checkpoint.take(f"{name}.weight", (width,)), checkpoint.take(f"{name}.bias", (width,))
