"""A decode step: one token of each of a few texts through a Llama, from ids to logits, as one program.

Each call here is one of `qkv.models.llama`, in its order, with its bits. What is gained is the way between
them: Python, arrays made anew, and threads that go to sleep and are woken again hundreds of times a token.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import attention_words as words
from qkv.kernels import few_rows, next_tokens
from qkv.kernels.attention import tile_for, workers_of
from qkv.kernels.few_rows import MOST_ROWS, product_call
from qkv.kernels.host import num_threads
from qkv.kernels.launch import address, addresses
from qkv.kernels.next_tokens import Heads, NextTokens, placing_worker, point_to_pages, write_placing
from qkv.kernels.paged_attention import Pages, Reach, prepare_pages
from qkv.kernels.panels import PackedWeight
from qkv.kernels.program import Call, Program
from qkv.kernels.row_calls import row_words
from qkv.kernels.steps import Activation, gate_worker, number_bits, rms_norm_worker
from qkv.kernels.table_rows import rows_call

__all__ = ["MOST_ROWS", "DecodeStep", "LayerWeights", "NextTokens", "StepSizes", "StepWeights"]

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


class StepWeights(NamedTuple):
    """All that a step reads.

    Attributes
    ----------
    embedding : (V, E)
    layers : sequence of LayerWeights
    final_norm : (E,)
    head : (V, E)
    """

    embedding: PackedWeight
    layers: Sequence[LayerWeights]
    final_norm: Floats
    head: PackedWeight


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


class _Form(NamedTuple):
    """What most words of placing and attention depend on: as long as it stays, so do they.

    Attributes
    ----------
    num_pages : int
        N of the widest table.
    num_stretches : int
        Of keys, in the longest text.
    threads, page_size, k_bytes, v_bytes : int
    """

    num_pages: int
    num_stretches: int
    threads: int
    page_size: int
    k_bytes: int
    v_bytes: int

    @classmethod
    def of(cls, tokens: NextTokens, num_keys: int) -> "_Form":
        """Return the form of a step, whose longest text is to have so many keys."""
        num_pages = max(table.shape[2] for table in tokens.tables)
        sizes = tokens.page_size, tokens.k_bytes, tokens.v_bytes
        return cls(num_pages, -(-num_keys // words.STRETCH_KEYS), num_threads(), *sizes)


class DecodeStep:
    """The program for a number of texts. It has a workspace of its own: one run at a time.

    Parameters
    ----------
    sizes : StepSizes
    weights : StepWeights
    """

    def __init__(self, sizes: StepSizes, weights: StepWeights) -> None:
        rows, E, H, G, D, F, pairs, *_ = sizes
        embedding, layers, final_norm, head = weights
        self._sizes, self._weights, self._layers = sizes, weights, layers
        self._ids = np.zeros(rows, np.int64)
        self._x, self._normed, self._qkv = (_rows(rows, width) for width in (E, E, (H + 2 * G) * D))
        self._gate_up, self._gated = _rows(rows, 2 * F), _rows(rows, F)
        self._heads, self._turned = np.zeros((rows, H + G, D), np.float32), np.zeros((rows, H, D), np.float32)
        self._mixed, self._lse = np.zeros((rows, H * D), np.float32), np.zeros((rows, H), np.float32)
        self._cosines, self._sines = np.zeros((2, rows, pairs), np.float32)
        self._placing = np.zeros((len(layers), next_tokens.NUM_WORDS), np.int64)
        self._attention = np.zeros((len(layers), words.NUM_WORDS), np.int64)
        self._slots = np.zeros((rows, G), np.int64)
        self._seen = np.zeros((len(layers), rows, G, words.ROW_WORDS), np.int64)
        self._form: _Form | None = None
        # Each run has logits of its own, and says where they are.
        self._unembed = product_call(self._normed, head, np.empty((rows, head.shape[0]), np.float32))
        calls = [
            rows_call(self._ids, embedding, self._x),
            *(call for index in range(len(layers)) for call in self._layer(index)),
            self._norm(self._x, final_norm, self._normed),
            self._unembed,
        ]
        self._program = Program(calls)
        self._attends, self._joins = (
            [number for number, call in enumerate(calls) if call.worker is worker]
            for worker in self._attention_workers
        )

    def run(self, ids: Words, turns: tuple[Floats, Floats], tokens: NextTokens, *, unembeds: bool) -> Floats:
        """Run tokens through all layers; return what is behind the last norm, or the logits.

        Parameters
        ----------
        ids : (rows,)
            Each of the table.
        turns : (rows, pairs), (rows, pairs)
            Cosines and sines of the tokens' positions.
        tokens : NextTokens
            Their pages hold the tokens' keys and values afterwards.
        unembeds : bool

        Returns
        -------
        (rows, E), or (rows, V) if it unembeds
        """
        self._ids[:] = ids
        self._cosines[:], self._sines[:] = turns
        self._point(tokens)
        if not unembeds:
            self._program.shares[-1] = 0
            self._program.run()
            return self._normed.copy()
        logits = np.empty((len(ids), self._weights.head.shape[0]), np.float32)
        self._unembed.words[few_rows.Y] = address(logits)
        self._program.shares[-1] = self._unembed.shares
        self._program.run()
        return logits

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
        heads = Heads(q, k, v, self._turned)
        write_placing(self._placing[index], heads, self._slots, self._cosines, self._sines)
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

    def _point(self, tokens: NextTokens) -> None:
        """Say where each layer's keys and values go, and what its queries see."""
        slots, seen = self._slots, self._seen
        slots[:] = tokens.slots
        form = _Form.of(tokens, int(slots.max()) + 1)
        if form != self._form:
            self._write_form(tokens, form)
        for row, table in enumerate(tokens.tables):
            self._table[:, row, :, : table.shape[2]] = table
        seen[..., words.OFFSET], seen[..., words.KV_LENGTH] = slots, slots + 1
        seen[..., words.LEFT] = words.NO_LIMIT if tokens.left is None else tokens.left
        seen[..., words.FIRST_KEYS] = tokens.first_keys

    def _write_form(self, tokens: NextTokens, form: _Form) -> None:
        """Write down all that depends on the form alone."""
        rows, _, H, G, D, *_ = self._sizes
        call, threads = self._attention, form.threads
        table = np.zeros((len(self._layers), rows, G, form.num_pages), np.int64)
        pages = Pages(table[0], form.page_size, "float32", D, k=form.k_bytes, v=form.v_bytes)
        reach = Reach(self._slots, self._slots + 1, q_lengths=[1] * rows)
        prepared = prepare_pages((rows, H, 1, D), pages, reach, scale=D**-0.5, num_workers=threads)
        scratch = np.empty(prepared.scratch_numbers, np.float32)
        call[:] = prepared.call
        call[:, words.Q : words.Q + 4] = address(self._turned), H * D, D, D
        call[:, words.OUT], call[:, words.LSE] = address(self._mixed), address(self._lse)
        call[:, words.SPANS] = address(scratch)
        call[:, words.WORKSPACE] += address(scratch)
        call[:, words.PARTS] += address(scratch)
        call[:, words.ROWS], call[:, words.TABLE] = addresses(self._seen), addresses(table)
        self._seen[..., words.Q_LENGTH] = 1
        self._program.shares[self._attends] = threads
        self._program.shares[self._joins] = threads if len(prepared.workers) > 1 else 0
        point_to_pages(self._placing, table, tokens)
        self._form, self._table, self._pointed_to = form, table, (prepared, scratch)


def _rows(rows: int, width: int) -> Floats:
    return np.zeros((rows, width + APART), np.float32)[:, :width]
