"""A Llama that can learn: the same way forward as `qkv.models.llama`, and the way back.

Each backward method reads like its forward upside down: where the forward adds a branch to the
residual stream, the backward sends the stream's gradient into the branch and adds what comes out of
it. Nothing records what was done: a block hands on what its own backward will need.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError
from qkv.models.llama import LlamaConfig
from qkv.ops.attention import attend
from qkv.ops.embedding import embed
from qkv.ops.mlp import gate, silu
from qkv.ops.norm import rms_norm
from qkv.ops.projection import merge_heads, split_heads
from qkv.ops.rotary import rotary_table, rotate
from qkv.shapes import Hidden, TokenIds
from qkv.training.attention import attend_backward
from qkv.training.cross_entropy import IGNORED, cross_entropy, token_nats
from qkv.training.dropout import Dropout
from qkv.training.embedding import embed_backward
from qkv.training.mlp import gate_backward
from qkv.training.norm import rms_norm_backward
from qkv.training.parameters import Parameters
from qkv.training.projection import project_backward, project_plain
from qkv.training.rotary import rotate_backward

EMBEDDING, FINAL_NORM = "model.embed_tokens.weight", "model.norm.weight"
STANDARD_DEVIATION = 0.02
"""Of the weights at the beginning, unless said otherwise."""

Weight = NDArray[np.floating]
Turns = tuple[Any, Any]
"""Cosine and sine of each position's angles, (T, D/2) each."""
Keep = NDArray[np.floating] | None
"""What dropout multiplied a branch by; ``None`` without dropout."""


@dataclass(frozen=True)
class Block:
    """One layer's weights, or their gradients, out by in: views of the one vector."""

    attention_norm: Weight
    w_qkv: Weight
    w_o: Weight
    mlp_norm: Weight
    w_gate_up: Weight
    w_down: Weight

    @classmethod
    def of(cls, parameters: Parameters, layer: int) -> "Block":
        """Return a layer's part of all parameters."""
        at = f"model.layers.{layer}."
        return cls(
            attention_norm=parameters[at + "input_layernorm.weight"],
            w_qkv=parameters.joined(*(f"{at}self_attn.{name}_proj.weight" for name in "qkv")),
            w_o=parameters[at + "self_attn.o_proj.weight"],
            mlp_norm=parameters[at + "post_attention_layernorm.weight"],
            w_gate_up=parameters.joined(*(f"{at}mlp.{name}_proj.weight" for name in ("gate", "up"))),
            w_down=parameters[at + "mlp.down_proj.weight"],
        )


@dataclass(frozen=True)
class AttentionPass:
    """What the way back through attention needs of the way there."""

    x: Hidden
    normed: Hidden
    q: Weight
    k: Weight
    v: Weight
    mixed: Weight
    lse: Weight
    keep: Keep


@dataclass(frozen=True)
class MlpPass:
    """What the way back through the gated MLP needs of the way there."""

    x: Hidden
    normed: Hidden
    gate_up: Hidden
    gated: Hidden
    keep: Keep


class TrainableLlama:
    """A small Llama, its parameters in one vector, with loss and gradients.

    Parameters
    ----------
    config : LlamaConfig
        Without biases or per-head norms, SiLU, the embedding table tied to the output head.
    parameters : Parameters
        By the names and shapes of `shapes_of`: float32, or float64 to check gradients with.

    Raises
    ------
    OptionError
        If the config asks for something that this does not learn.

    Examples
    --------
    >>> sizes = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2)
    >>> heads = dict(num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    >>> model = TrainableLlama.begin(LlamaConfig.from_dict(sizes | heads), seed=0)
    >>> ids = np.array([[1, 2, 3, 4]])
    >>> loss = model.loss(ids[:, :-1], ids[:, 1:])
    >>> abs(loss - 2.398) < 0.05  # ln 11: nothing learned yet
    True
    """

    def __init__(self, config: LlamaConfig, parameters: Parameters) -> None:
        check_learnable(config)
        if parameters.shapes != shapes_of(config):
            raise OptionError("the parameters are not those of this config; make them with `shapes_of`")
        self.config, self.parameters = config, parameters
        self.blocks = tuple(Block.of(parameters, layer) for layer in range(config.L))

    @classmethod
    def begin(cls, config: LlamaConfig, seed: int, deviation: float = STANDARD_DEVIATION) -> "TrainableLlama":
        """Return a model before its first step: normal weights, norms at 1.

        Weights that write to the residual stream are smaller by sqrt(2L), so that it does not grow with
        the number of layers (Radford et al. 2019, section 2.3).
        """
        generator, parameters = np.random.default_rng(seed), Parameters(shapes_of(config))
        for name, array in parameters.items():
            if array.ndim == 1:
                array[:] = 1
            else:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                factor = np.float32(deviation / (math.sqrt(2 * config.L) if writes else 1))
                array[:] = generator.standard_normal(array.shape, np.float32) * factor
        return cls(config, parameters)

    def nats(self, ids: TokenIds, targets: TokenIds) -> Weight:
        """Return each target's surprise in nats, (B, T): minus the log of the probability it had."""
        x, _, turns = self._embedded(ids, None)
        for block in self.blocks:
            x, _ = self._attend(block, x, turns, None)
            x, _ = self._mlp(block, x, None)
        _, logits = self._logits(x)
        return token_nats(logits, targets)

    def loss(self, ids: TokenIds, targets: TokenIds) -> float:
        """Return the mean nats per target: see `loss_and_gradients`, without its way back."""
        return float(self.nats(ids, targets).sum(dtype=np.float64)) / int((targets != IGNORED).sum())

    def loss_and_gradients(
        self, ids: TokenIds, targets: TokenIds, gradients: Parameters, dropout: Dropout | None = None
    ) -> float:
        """Return the mean nats per target, and write its derivative by each parameter.

        Parameters
        ----------
        ids : (B, T) integers
        targets : (B, T) integers
            The id to follow each; `qkv.training.cross_entropy.IGNORED` where none is asked for.
        gradients : Parameters
            Overwritten.
        dropout : Dropout, optional
            On the embedded ids and on what each branch adds to them (Radford et al. 2018, section 4.1).

        Returns
        -------
        float
        """
        loss, d_x = self._there_and_back(ids, targets, gradients, dropout)
        gradients[EMBEDDING][:] += embed_backward(d_x, ids, self.config.V)
        return loss

    def input_gradients(self, ids: TokenIds, targets: TokenIds) -> Hidden:
        """Return the derivative of the mean nats per target by each embedded id, (B, T, E).

        It is by the vector at a place, not by the row of the table that it was taken from: where an id
        stands twice, each place has its own. What the table does as output head has no part in it.

        Parameters
        ----------
        ids, targets : (B, T) integers
            As of `loss_and_gradients`.

        Examples
        --------
        What comes after the only target cannot have moved it:

        >>> sizes = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2)
        >>> heads = dict(num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
        >>> model = TrainableLlama.begin(LlamaConfig.from_dict(sizes | heads), seed=0)
        >>> d_x = model.input_gradients(np.array([[1, 2, 3, 4]]), np.array([[IGNORED, 5, IGNORED, IGNORED]]))
        >>> np.any(d_x, axis=-1).tolist()
        [[True, True, False, False]]
        """
        return self._there_and_back(ids, targets, self.parameters.zeros(), None)[1]

    def _there_and_back(
        self, ids: TokenIds, targets: TokenIds, gradients: Parameters, dropout: Dropout | None
    ) -> tuple[float, Hidden]:
        """Return the loss and its gradient by the embedded ids; write all others but the lookup's."""
        x, keep, turns = self._embedded(ids, dropout)
        passes = []
        for block in self.blocks:
            x, attention = self._attend(block, x, turns, dropout)
            x, mlp = self._mlp(block, x, dropout)
            passes.append((attention, mlp))
        normed, logits = self._logits(x)
        loss, d_logits = cross_entropy(logits, targets)
        d_x = self._logits_backward(d_logits, x, normed, gradients)
        for layer in reversed(range(self.config.L)):
            block, to = self.blocks[layer], Block.of(gradients, layer)
            attention, mlp = passes.pop()
            d_x = self._mlp_backward(block, d_x, mlp, to)
            d_x = self._attend_backward(block, d_x, attention, turns, to)
        return loss, kept(d_x, keep)

    def _embedded(self, ids: TokenIds, dropout: Dropout | None) -> tuple[Hidden, Keep, Turns]:
        rotary, table = self.config.rotary.at(self.config.context_length), self.parameters[EMBEDDING]
        turns = rotary_table(rotary, np.arange(ids.shape[-1]))  # T D/2
        return *dropped(embed(ids, table), dropout), turns

    def _attend(
        self, block: Block, x: Hidden, turns: Turns, dropout: Dropout | None
    ) -> tuple[Hidden, AttentionPass]:
        H, G = self.config.H, self.config.G
        normed = rms_norm(x, block.attention_norm, self._eps)
        heads = split_heads(project_plain(normed, block.w_qkv), H + 2 * G)  # B H+2G T D
        turned, v = rotate(heads[:, :-G], *turns), heads[:, -G:]
        q, k = turned[:, :H], turned[:, H:]
        mixed, lse = attend(q, k, v, causal=True, window=self.config.windows[0], return_lse=True)
        branch, keep = dropped(project_plain(merge_heads(mixed), block.w_o), dropout)
        return np.add(x, branch, out=branch), AttentionPass(x, normed, q, k, v, mixed, lse, keep)

    def _attend_backward(
        self, block: Block, d_x: Hidden, there: AttentionPass, turns: Turns, to: Block
    ) -> Hidden:
        d_branch = kept(d_x, there.keep)
        d_merged, to.w_o[:] = project_backward(d_branch, merge_heads(there.mixed), block.w_o)
        d_mixed = split_heads(d_merged, self.config.H)
        rules = {"causal": True, "window": self.config.windows[0]}
        d_q, d_k, d_v = attend_backward(d_mixed, there.q, there.k, there.v, there.mixed, there.lse, **rules)
        d_turned = rotate_backward(np.concatenate([d_q, d_k], axis=1), *turns)
        d_heads = merge_heads(np.concatenate([d_turned, d_v], axis=1))
        d_normed, to.w_qkv[:] = project_backward(d_heads, there.normed, block.w_qkv)
        d_x, to.attention_norm[:] = rms_norm_backward(
            d_normed, there.x, block.attention_norm, self._eps, d_skip=d_x
        )
        return d_x

    def _mlp(self, block: Block, x: Hidden, dropout: Dropout | None) -> tuple[Hidden, MlpPass]:
        F = self.config.F
        normed = rms_norm(x, block.mlp_norm, self._eps)
        gate_up = project_plain(normed, block.w_gate_up)  # B T 2F
        gated = gate(gate_up[..., :F], gate_up[..., F:])
        branch, keep = dropped(project_plain(gated, block.w_down), dropout)
        return np.add(x, branch, out=branch), MlpPass(x, normed, gate_up, gated, keep)

    def _mlp_backward(self, block: Block, d_x: Hidden, there: MlpPass, to: Block) -> Hidden:
        d_branch = kept(d_x, there.keep)
        d_gated, to.w_down[:] = project_backward(d_branch, there.gated, block.w_down)
        d_gate_up = gate_backward(d_gated, there.gate_up)
        d_normed, to.w_gate_up[:] = project_backward(d_gate_up, there.normed, block.w_gate_up)
        d_x, to.mlp_norm[:] = rms_norm_backward(d_normed, there.x, block.mlp_norm, self._eps, d_skip=d_x)
        return d_x

    def _logits(self, x: Hidden) -> tuple[Hidden, Weight]:
        normed = rms_norm(x, self.parameters[FINAL_NORM], self._eps)
        return normed, project_plain(normed, self.parameters[EMBEDDING])

    def _logits_backward(self, d_logits: Weight, x: Hidden, normed: Hidden, to: Parameters) -> Hidden:
        d_normed, to[EMBEDDING][:] = project_backward(d_logits, normed, self.parameters[EMBEDDING])
        d_x, to[FINAL_NORM][:] = rms_norm_backward(d_normed, x, self.parameters[FINAL_NORM], self._eps)
        return d_x

    @property
    def _eps(self) -> float:
        return self.config.norm_eps


def shapes_of(config: LlamaConfig) -> Mapping[str, tuple[int, ...]]:
    """Return each parameter's name and shape, those of one matrix product one after the other.

    Examples
    --------
    >>> sizes = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=1)
    >>> config = LlamaConfig.from_dict(sizes | dict(num_attention_heads=2, tie_word_embeddings=True))
    >>> sum(np.prod(shape) for shape in shapes_of(config).values()).item()
    656
    """
    E, F, query_width, key_width = config.E, config.F, config.H * config.D, config.G * config.D
    block = {
        "input_layernorm": (E,),
        "self_attn.q_proj": (query_width, E),
        "self_attn.k_proj": (key_width, E),
        "self_attn.v_proj": (key_width, E),
        "self_attn.o_proj": (E, query_width),
        "post_attention_layernorm": (E,),
        "mlp.gate_proj": (F, E),
        "mlp.up_proj": (F, E),
        "mlp.down_proj": (E, F),
    }
    layers = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(config.L)
        for name, shape in block.items()
    }
    return {EMBEDDING: (config.V, E), **layers, FINAL_NORM: (E,)}


def dropped(branch: Hidden, dropout: Dropout | None) -> tuple[Hidden, Keep]:
    """Return a branch with some of its numbers dropped, and what it was multiplied by."""
    if dropout is None:
        return branch, None
    keep = dropout.draw(branch.shape)
    return branch * keep, keep


def kept(d_branch: Hidden, keep: Keep) -> Hidden:
    """Return the gradient of a branch before its dropout from the one behind it."""
    return d_branch if keep is None else d_branch * keep


def check_learnable(config: LlamaConfig) -> None:
    """Refuse a config with parts that have no backward pass here."""
    if not config.tied or config.activation is not silu or len(set(config.windows)) > 1:
        raise OptionError("expected a tied head, SiLU and one window for all layers in the config")
    if config.qkv_bias or config.out_bias or config.mlp_bias or config.head_norms:
        raise OptionError("expected a config without biases and per-head norms; they are not learned")
    if config.rotary.rope_type == "dynamic":
        raise OptionError("expected rotary positions that do not depend on the length of the text")
