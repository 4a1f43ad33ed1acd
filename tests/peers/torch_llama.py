"""A small Llama in PyTorch on the checkpoint's own names: the twin that our training is compared with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear, scaled_dot_product_attention, silu

IGNORED = -1
"""A target that is not counted."""


def keep_all(x: Tensor) -> Tensor:
    """Drop nothing."""
    return x


def llama_shapes(V: int, E: int, F: int, L: int, H: int, G: int, D: int) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape by its name, in the order in which the model reads them; tied head."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, E)}
    for layer in range(L):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (E,),
            f"{prefix}.self_attn.q_proj.weight": (H * D, E),
            f"{prefix}.self_attn.k_proj.weight": (G * D, E),
            f"{prefix}.self_attn.v_proj.weight": (G * D, E),
            f"{prefix}.self_attn.o_proj.weight": (E, H * D),
            f"{prefix}.post_attention_layernorm.weight": (E,),
            f"{prefix}.mlp.gate_proj.weight": (F, E),
            f"{prefix}.mlp.up_proj.weight": (F, E),
            f"{prefix}.mlp.down_proj.weight": (E, F),
        }
    return shapes | {"model.norm.weight": (E,)}


def normal_parameters(
    shapes: Mapping[str, tuple[int, ...]], std: float = 0.02, seed: int = 0
) -> dict[str, Tensor]:
    """Norm weights of 1; all else normal, and smaller by sqrt(2 L) where it ends a residual branch."""
    generator = torch.Generator().manual_seed(seed)
    branches = sum(name.endswith(("o_proj.weight", "down_proj.weight")) for name in shapes)
    parameters = {}
    for name, shape in shapes.items():
        ends_branch = name.endswith(("o_proj.weight", "down_proj.weight"))
        scale = std / branches**0.5 if ends_branch else std
        drawn = torch.randn(shape, generator=generator) * scale
        parameters[name] = (torch.ones(shape) if "norm" in name else drawn).requires_grad_()
    return parameters


@dataclass(frozen=True)
class TorchLlama:
    """Logits and loss from parameters by name; autograd gives their gradients.

    Layers, widths and D are read from the parameters. ``lm_head.weight``, where it is there,
    is the output head; else the embedding table is.
    """

    parameters: Mapping[str, Tensor]
    H: int
    G: int
    theta: float = 10000.0
    eps: float = 1e-5

    def loss(self, ids: Tensor, targets: Tensor, drop: Callable[[Tensor], Tensor] = keep_all) -> Tensor:
        """Mean nats per counted target; ``drop`` gets embedded ids, then what each branch adds."""
        logits = self.logits(ids, drop)
        return cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)

    def logits(self, ids: Tensor, drop: Callable[[Tensor], Tensor] = keep_all) -> Tensor:
        table = self.parameters["model.embed_tokens.weight"]
        x = drop(embedding(ids, table))  # B T E
        cos, sin = self._turns(ids.shape[-1])
        for layer in range(sum(name.endswith("q_proj.weight") for name in self.parameters)):
            prefix = f"model.layers.{layer}."
            x = x + drop(self._attention(prefix, self._norm(x, prefix + "input_layernorm"), cos, sin))
            x = x + drop(self._mlp(prefix, self._norm(x, prefix + "post_attention_layernorm")))
        return linear(self._norm(x, "model.norm"), self.parameters.get("lm_head.weight", table))  # B T V

    def _attention(self, prefix: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            self._project(x, f"{prefix}self_attn.{name}_proj").unflatten(-1, (heads, -1)).transpose(-3, -2)
            for name, heads in (("q", self.H), ("k", self.G), ("v", self.G))
        )  # B H T D
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k, v = (part.repeat_interleave(self.H // self.G, -3) for part in (k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._project(mixed.transpose(-3, -2).flatten(-2), f"{prefix}self_attn.o_proj")  # B T E

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        gate, up = (self._project(x, f"{prefix}mlp.{name}_proj") for name in ("gate", "up"))
        return self._project(silu(gate) * up, f"{prefix}mlp.down_proj")

    def _project(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.parameters[f"{name}.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        root_mean_square = x.square().mean(-1, keepdim=True).add(self.eps).sqrt()
        return x / root_mean_square * self.parameters[f"{name}.weight"]

    def _turns(self, T: int) -> tuple[Tensor, Tensor]:
        weight = self.parameters["model.layers.0.self_attn.q_proj.weight"]
        D = weight.shape[0] // self.H
        rates = self.theta ** (-torch.arange(0, D, 2, dtype=torch.float64, device=weight.device) / D)
        angles = torch.arange(T, dtype=torch.float64, device=weight.device)[:, None] * rates
        return angles.cos().to(weight.dtype), angles.sin().to(weight.dtype)  # T D/2


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
