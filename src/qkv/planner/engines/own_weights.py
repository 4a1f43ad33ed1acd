"""What a model's weights take once qkv has loaded them, to the byte.

Matrices lie in panels (`qkv.kernels.panels`), padded to whole ones, in one of the forms that
`qkv.models.weights` lists; norms, biases and learned positions are float32. Where the kernels are not in
use, matrices are plain float32 arrays too.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from qkv.errors import CheckpointError
from qkv.models.checkpoint import EXACT_IN_BFLOAT16, Checkpoint
from qkv.models.deepseek import DeepSeekConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.loading import family_of
from qkv.models.weights import FORMS
from qkv.ops.backend import is_compiled
from qkv.planner.layers import ModelMemory
from qkv.planner.parameters import BIASES_AND_NORMS

if TYPE_CHECKING:
    from qkv.kernels.panels import Form

Shape = tuple[int, int]
"""(E_out, E_in) of a matrix."""

BYTES_PER_NUMBER: "Mapping[Form, float]" = {"float32": 4, "bfloat16": 2, "int8": 1 + 4 / 32}
"""Without padding, but with the scale that 32 numbers of int8 share."""

STORED_BYTES_PER_NUMBER = 2
"""Assumed of a folder of an unknown kind."""

LONGEST_ERROR = 300
"""Characters; a field may hold a text of any length."""

EXACT_IN_BFLOAT16_BY_CONFIG = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Types that stay in 16 bits, as config.json spells them; others are kept in float32."""


@dataclass(frozen=True)
class HeldWeights:
    """What a loaded model holds.

    Parameters
    ----------
    matrices : tuple of (int, int)
        Each as it is laid out: those that read the same vector lie one below the other.
    numbers : int
        Of everything else, in float32.
    """

    matrices: tuple[Shape, ...]
    numbers: int

    def nbytes(self, form: "Form") -> int:
        """Return the bytes of all of them, matrices in one form.

        Examples
        --------
        >>> from qkv.ops.backend import use_backend
        >>> with use_backend("numpy"):
        ...     HeldWeights(((7, 5), (3, 5)), numbers=11).nbytes("bfloat16")
        244
        """
        alike = Counter(self.matrices).items()
        return sum(count * matrix_nbytes(shape, form) for shape, count in alike) + 4 * self.numbers


def with_loaded_weights(model: ModelMemory, form: str | None) -> ModelMemory:
    """Return a model with the bytes of its weights in memory, and a note where they are not exact.

    Parameters
    ----------
    model : ModelMemory
    form : str, optional
        A key of `qkv.models.weights.FORMS`; as stored when left out.
    """
    notes: tuple[str, ...] = ()
    kept = FORMS[form] if form is not None else None
    try:
        if kept is None:
            kept, notes = stored_form(model)
        nbytes = held_weights(model.config).nbytes(kept)
    except CheckpointError as error:
        why = str(error)[:LONGEST_ERROR]
        notes = (f"qkv does not run this model, of which the weights are an estimate: {why}",)
        nbytes = estimated_nbytes(model, kept or "float32")
    return replace(model, weight_bytes=nbytes, notes=(*model.notes, *notes))


def stored_form(model: ModelMemory) -> "tuple[Form, tuple[str, ...]]":
    """Return in which form matrices are kept as they are stored, and what must be said of that.

    The folder's own word counts; where there is none, that of the config.

    Raises
    ------
    CheckpointError
        If the folder is damaged.
    """
    if model.folder is not None:
        tensors = Checkpoint.open(model.folder).tensors.values()
        halves = {stored.dtype in EXACT_IN_BFLOAT16 for stored in tensors if len(stored.shape) == 2}
        mixed = "matrices are stored in several types: all are counted in float32, an upper bound"
        return ("bfloat16", ()) if halves == {True} else ("float32", (mixed,) if len(halves) > 1 else ())
    stated = model.config.get("torch_dtype") or model.config.get("dtype")
    if isinstance(stated, str):
        return "bfloat16" if stated in EXACT_IN_BFLOAT16_BY_CONFIG else "float32", ()
    return "float32", ("the config does not say in which type weights are stored: counted in float32",)


def estimated_nbytes(model: ModelMemory, form: "Form") -> int | None:
    """Return about what the weights take, ``None`` where nothing is known of their number."""
    if model.num_parameters is not None:
        return ceil(model.num_parameters * BYTES_PER_NUMBER[form] * BIASES_AND_NORMS)
    if model.weight_bytes is None:
        return None
    return ceil(model.weight_bytes / STORED_BYTES_PER_NUMBER * BYTES_PER_NUMBER[form])


def matrix_nbytes(shape: Shape, form: "Form") -> int:
    """Return what one matrix takes on this machine."""
    E_out, E_in = shape
    if not is_compiled():
        return 4 * E_out * E_in
    from qkv.kernels.host import HOST_TILE
    from qkv.kernels.panels import GROUP  # the compiler is loaded when it is first needed

    padded = -(-E_out // HOST_TILE.columns) * HOST_TILE.columns
    scales = -(-E_in // GROUP) if form == "int8" else 0
    itemsize = {"float32": 4, "bfloat16": 2, "int8": 1}[form]
    return padded * (E_in * itemsize + 4 * scales)


def held_weights(config: Mapping[str, Any]) -> HeldWeights:
    """Return what a model of a config.json holds.

    Raises
    ------
    CheckpointError
        If qkv does not run such a model.

    Examples
    --------
    A GPT-2 of one layer: four matrices of it, and the table of 10 tokens that is also the head.

    >>> tiny = {"model_type": "gpt2", "n_embd": 6, "n_head": 2, "n_layer": 1, "vocab_size": 10}
    >>> held_weights(tiny).matrices
    ((18, 6), (6, 6), (24, 6), (6, 24), (10, 6))
    """
    family = family_of(config)
    if config.get("quantization_config"):
        raise CheckpointError("config.json: quantization_config says that the weights are codes")
    if family is Llama:
        return _of_llama(LlamaConfig.from_dict(config))
    if family is GPT2:
        return _of_gpt2(GPT2Config.from_dict(config))
    return _of_deepseek(DeepSeekConfig.from_dict(config))


def _of_llama(c: LlamaConfig) -> HeldWeights:
    mapped, mixed = (c.H + 2 * c.G) * c.D, c.H * c.D
    layer = ((mapped, c.E), (c.E, mixed), (2 * c.F, c.E), (c.E, c.F))
    norms = 2 * c.E + 2 * c.D * c.head_norms
    biases = mapped * c.qkv_bias + c.E * c.out_bias + (2 * c.F + c.E) * c.mlp_bias
    return HeldWeights(c.L * layer + _tables(c.V, c.E, c.tied), c.L * (norms + biases) + c.E)


def _of_gpt2(c: GPT2Config) -> HeldWeights:
    layer = ((3 * c.E, c.E), (c.E, c.E), (c.F, c.E), (c.E, c.F))
    norms, biases = 4 * c.E, 5 * c.E + c.F
    beside = 2 * c.E + c.context_length * c.E
    return HeldWeights(c.L * layer + _tables(c.V, c.E, c.tied), c.L * (norms + biases) + beside)


def _of_deepseek(c: DeepSeekConfig) -> HeldWeights:
    queries, key = c.H * (c.nope_size + c.rope_size), c.latent_size + c.rope_size
    first = queries if c.query_latent_size is None else c.query_latent_size
    heads = c.H * ((c.latent_size, c.nope_size), (c.value_size, c.latent_size))
    layer = ((first + key, c.E), *heads, (c.E, c.H * c.value_size), (2 * c.F, c.E), (c.E, c.F))
    norms = 2 * c.E + c.latent_size
    if c.query_latent_size is not None:
        layer += ((queries, c.query_latent_size),)
        norms += c.query_latent_size
    biases = (first + key + c.E) * c.attention_bias + (2 * c.F + c.E) * c.mlp_bias
    return HeldWeights(c.L * layer + _tables(c.V, c.E, c.tied), c.L * (norms + biases) + c.E)


def _tables(V: int, E: int, tied: bool) -> tuple[Shape, ...]:
    """Return the table of embeddings, and the output head unless it is the same."""
    return ((V, E),) if tied else ((V, E), (V, E))
