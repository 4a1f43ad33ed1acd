"""The short way through a Llama for one token of each of a few texts: the same bits, in one call.

What `qkv.models.llama` says stays what is computed. Where a cache can tell beforehand where a step's keys
and values go in every layer, the calls of all layers are written down once, and run by
`qkv.kernels.decode_step`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from qkv.cache.at_once import may_step_at_once
from qkv.models.step import Step
from qkv.ops.backend import is_compiled
from qkv.ops.mlp import COMPILED
from qkv.ops.projection import is_packed
from qkv.shapes import Array

if TYPE_CHECKING:
    from qkv.kernels.decode_step import DecodeStep
    from qkv.models.llama import LlamaConfig, LlamaLayer

MOST_TEXTS = 32
"""With more, each layer takes so long that the way between them no longer counts."""


class Decoding:
    """The decode steps of one model, by the number of texts; each is written down when it is first needed.

    Parameters
    ----------
    config : LlamaConfig
    embedding : (V, E)
    layers : sequence of LlamaLayer
    final_norm : (E,)
    head : (V, E)
    """

    def __init__(
        self,
        config: "LlamaConfig",
        embedding: Any,
        layers: "Sequence[LlamaLayer]",
        final_norm: Array,
        head: Any,
    ) -> None:
        self._config, self._weights = config, (embedding, layers, final_norm, head)
        matrices = embedding, head, *_matrices(layers)
        self._is_known = config.activation in COMPILED and all(map(is_packed, matrices))
        self._idle: dict[int, list[DecodeStep]] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """Leave out what points to memory of this process."""
        return type(self), (self._config, *self._weights)

    def run(self, step: Step, turns: tuple[Array, Array], *, unembeds: bool) -> Array | None:
        """Run a step's tokens through all layers and the last norm, or return ``None`` where that cannot be.

        Parameters
        ----------
        step : Step
        turns : (B, 1, T, pairs), (B, 1, T, pairs)
            Cosines and sines of the positions.
        unembeds : bool
            Whether logits are wanted, rather than what the output head reads.

        Returns
        -------
        (B, T, E), or (B, T, V) if it unembeds
        """
        count = step.ids.size
        if not self._is_known or count > MOST_TEXTS or step.lengths is not None or not is_compiled():
            return None
        if not 0 <= step.ids.min() <= step.ids.max() < self._config.V or not may_step_at_once(step.cache):
            return None
        tokens = step.cache.at_once(step.ids.shape[1], self._config.windows)
        if tokens is None:
            return None
        cosines, sines = (table.reshape(count, -1) for table in turns)
        program = self._take(count, cosines.shape[1])
        with tokens as known:
            y = program.run(step.ids.ravel(), (cosines, sines), known, unembeds=unembeds)
        # One that was interrupted is not used again.
        self._idle[count].append(program)
        return y.reshape(*step.ids.shape, -1)

    def _take(self, count: int, pairs: int) -> "DecodeStep":
        """Return a program that no other thread uses."""
        idle = self._idle.setdefault(count, [])
        try:
            return idle.pop()
        except IndexError:
            return self._written(count, pairs)

    def _written(self, count: int, pairs: int) -> "DecodeStep":
        # The compiler is loaded when it is first needed.
        from qkv.kernels.decode_step import DecodeStep, StepSizes, StepWeights

        of = self._config
        activation: Any = COMPILED[of.activation]
        sizes = StepSizes(count, of.E, of.H, of.G, of.D, of.F, pairs, of.norm_eps, activation)
        return DecodeStep(sizes, StepWeights(*self._weights))


def _matrices(layers: "Sequence[LlamaLayer]") -> list[Any]:
    return [one for layer in layers for one in (layer.w_qkv, layer.w_o, layer.w_gate_up, layer.w_down)]
