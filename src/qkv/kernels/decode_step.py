"""A decode step: one token of each of a few texts through all layers of a Llama, as one program.

Each call here is one of `qkv.models.llama`, in its order, with its bits. What is gained is the way between
them: Python, arrays made anew, and threads that go to sleep and are woken again hundreds of times a token.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels import next_tokens
from qkv.kernels.attention import tile_for, workers_of
from qkv.kernels.few_rows import MOST_ROWS, product_call
from qkv.kernels.host import num_threads
from qkv.kernels.launch import address
from qkv.kernels.next_tokens import Heads, NextTokens, placing_worker, point_to_pages, write_placing
from qkv.kernels.paged_attention import Pages, Reach, prepare_pages
from qkv.kernels.panels import PackedWeight
from qkv.kernels.program import Call, Program
from qkv.kernels.row_calls import row_words
from qkv.kernels.steps import Activation, gate_worker, number_bits, rms_norm_worker

__all__ = ["MOST_ROWS", "DecodeStep", "LayerWeights", "NextTokens", "StepSizes"]

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

APART = 16
"""Numbers between rows of a workspace: no power of 2 from row to row, which would crowd the cache."""


class LayerWeights(Protocol):
    """What a layer of `qkv.models.llama` holds, with packed matrices."""

    @property
    def attention_norm(self) -> Floats: ...  # noqa: D102
    @property
    def w_qkv(self) -> PackedWeight: ...  # noqa: D102
    @property
    def b_qkv(self) -> Floats | None: ...  # noqa: D102
    @property
    def q_norm(self) -> Floats | None: ...  # noqa: D102
    @property
    def k_norm(self) -> Floats | None: ...  # noqa: D102
    @property
    def w_o(self) -> PackedWeight: ...  # noqa: D102
    @property
    def b_o(self) -> Floats | None: ...  # noqa: D102
    @property
    def mlp_norm(self) -> Floats: ...  # noqa: D102
    @property
    def w_gate_up(self) -> PackedWeight: ...  # noqa: D102
    @property
    def b_gate_up(self) -> Floats | None: ...  # noqa: D102
    @property
    def w_down(self) -> PackedWeight: ...  # noqa: D102
    @property
    def b_down(self) -> Floats | None: ...  # noqa: D102


class StepSizes(NamedTuple):
    """What the layers of a model have in common.

    Attributes
    ----------
    rows : int
        Texts, of which each has one token.
    E, H, G, D, F : int
    pairs : int
        That rotary positions turn.
    eps : float
        Of the norms.
    activation : "silu" or "gelu_tanh"
    """

    rows: int
    E: int
    H: int
    G: int
    D: int
    F: int
    pairs: int
    eps: float
    activation: Activation


class DecodeStep:
    """The program for a number of texts. It has a workspace of its own: one run at a time.

    Parameters
    ----------
    sizes : StepSizes
    layers : sequence of LayerWeights
    final_norm : (E,)
    """

    def __init__(self, sizes: StepSizes, layers: Sequence[LayerWeights], final_norm: Floats) -> None:
        rows, E, H, G, D, F, pairs, *_ = sizes
        self._sizes, self._layers = sizes, tuple(layers)
        self._x, self._normed, self._qkv = (_rows(rows, width) for width in (E, E, (H + 2 * G) * D))
        self._gate_up, self._gated = _rows(rows, 2 * F), _rows(rows, F)
        self._heads, self._turned = np.zeros((rows, H + G, D), np.float32), np.zeros((rows, H, D), np.float32)
        self._mixed, self._lse = np.zeros((rows, H * D), np.float32), np.zeros((rows, H), np.float32)
        self._cosines, self._sines = np.zeros((2, rows, pairs), np.float32)
        self._placing = np.zeros((len(layers), next_tokens.NUM_WORDS), np.int64)
        self._attention = np.zeros((len(layers), words.NUM_WORDS), np.int64)
        calls = [call for index in range(len(layers)) for call in self._layer(index)]
        self._program = Program([*calls, self._norm(self._x, final_norm, self._normed)])
        self._attends, self._joins = (
            [number for number, call in enumerate(calls) if call.worker is worker]
            for worker in self._attention_workers
        )

    def run(self, x: Floats, turns: tuple[Floats, Floats], tokens: NextTokens) -> Floats:
        """Run embedded tokens through all layers, and return them behind the last norm.

        Parameters
        ----------
        x : (rows, E)
        turns : (rows, pairs), (rows, pairs)
            Cosines and sines of the tokens' positions.
        tokens : NextTokens
            Their pages hold the tokens' keys and values afterwards.

        Returns
        -------
        (rows, E)
        """
        self._x[:] = x
        self._cosines[:], self._sines[:] = turns
        point_to_pages(self._placing, tokens)
        kept = self._point_attention(tokens)
        self._program.run()
        del kept  # the calls point to it
        return self._normed.copy()

    def _layer(self, index: int) -> list[Call]:
        """Write down a layer as `qkv.models.llama` has it."""
        layer, x, normed = self._layers[index], self._x, self._normed
        attend, join = self._attention_workers
        return [
            self._norm(x, layer.attention_norm, normed),
            product_call(normed, layer.w_qkv, self._qkv, layer.b_qkv),
            *self._head_norms(layer),
            Call(placing_worker(), self._placed(index), self._sizes.rows),
            Call(attend, self._attention[index], 0),
            Call(join, self._attention[index], 0),
            product_call(self._mixed, layer.w_o, x, layer.b_o, residual=x),
            self._norm(x, layer.mlp_norm, normed),
            product_call(normed, layer.w_gate_up, self._gate_up, layer.b_gate_up),
            self._gate(),
            product_call(self._gated, layer.w_down, x, layer.b_down, residual=x),
        ]

    @property
    def _attention_workers(self) -> tuple[Any, Any]:
        _, (_, attend, join) = workers_of(tile_for(self._sizes.H // self._sizes.G))
        return attend, join

    def _norm(self, x: Floats, weight: Floats, y: Floats) -> Call:
        shares = math.prod(x.shape[:-1])
        return Call(
            rms_norm_worker, row_words(y, x, weight, weight, shares, number_bits(self._sizes.eps)), shares
        )

    @property
    def _projected(self) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values, ``(rows, heads, D)``, as the product leaves them."""
        rows, _, H, G, D, *_ = self._sizes
        heads = self._qkv.reshape(rows, H + 2 * G, D)
        return heads[:, :H], heads[:, H:-G], heads[:, -G:]

    def _head_norms(self, layer: LayerWeights) -> list[Call]:
        if layer.q_norm is None or layer.k_norm is None:
            return []
        (q, k, _), H = self._projected, self._sizes.H
        return [
            self._norm(q, layer.q_norm, self._heads[:, :H]),
            self._norm(k, layer.k_norm, self._heads[:, H:]),
        ]

    def _placed(self, index: int) -> Words:
        (q, k, v), layer, H = self._projected, self._layers[index], self._sizes.H
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._heads[:, :H], self._heads[:, H:]
        write_placing(self._placing[index], Heads(q, k, v, self._turned), self._cosines, self._sines)
        return self._placing[index]

    def _gate(self) -> Call:
        """Write down the gate, each row in as many parts as there are threads, if it has so many vectors."""
        rows, F, threads = self._sizes.rows, self._sizes.F, num_threads()
        parts = threads if F % (threads * APART) == 0 else 1
        gate, up, y = (
            array.reshape(rows, parts, F // parts)
            for array in (self._gate_up[:, :F], self._gate_up[:, F:], self._gated)
        )
        shares = rows * parts
        return Call(gate_worker(self._sizes.activation), row_words(y, gate, up, up, shares), shares)

    def _point_attention(self, tokens: NextTokens) -> tuple[Any, ...]:
        """Write down what each layer's queries see; return what that points to."""
        rows, _, H, _, D, *_ = self._sizes
        L, held, call, threads = len(self._layers), tokens.slots + 1, self._attention, num_threads()
        pages = Pages(tokens.table[0], tokens.page_size, "float32", D, k=tokens.k_bytes, v=tokens.v_bytes)
        reach = Reach(tokens.slots, held, q_lengths=[1] * rows)
        prepared = prepare_pages((rows, H, 1, D), pages, reach, scale=D**-0.5, num_workers=threads)
        seen = np.repeat(prepared.kept[-1][None], L, axis=0)
        seen[..., words.FIRST_KEYS] = tokens.first_keys
        if tokens.left is not None:
            seen[..., words.LEFT] = tokens.left
        scratch = np.empty(prepared.scratch_numbers, np.float32)
        call[:] = prepared.call
        call[:, words.Q : words.Q + 4] = address(self._turned), H * D, D, D
        call[:, words.OUT], call[:, words.LSE] = address(self._mixed), address(self._lse)
        call[:, words.SPANS] = address(scratch)
        call[:, words.WORKSPACE] += address(scratch)
        call[:, words.PARTS] += address(scratch)
        call[:, words.ROWS] = address(seen) + np.arange(L) * seen.strides[0]
        call[:, words.TABLE] = address(tokens.table) + np.arange(L) * tokens.table.strides[0]
        self._program.shares[self._attends] = threads
        self._program.shares[self._joins] = threads if len(prepared.workers) > 1 else 0
        return prepared, seen, scratch, tokens


def _rows(rows: int, width: int) -> Floats:
    return np.zeros((rows, width + APART), np.float32)[:, :width]
