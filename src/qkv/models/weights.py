"""In which form a model's matrices are kept: as the checkpoint stores them, or smaller, or larger.

=============  ==============  ========================================================================
form           bytes a number  what of it is lost
=============  ==============  ========================================================================
``as stored``  2 or 4          nothing: bfloat16 stays so; float32 and float16 are kept in float32
``float32``    4               nothing
``bf16``       2               all but 8 significant bits; of bfloat16 checkpoints nothing
``int8``       1.125           half a step, of which there are 127 to the largest of 32 neighbours
=============  ==============  ========================================================================

float16 has no form of its own: its 11 significant bits do not fit into bfloat16's 8. Biases, norms and
learned positions are few and stay float32, and so do all results: a weight is widened as it is read, so
float32 and bfloat16 weights of the same values give the same bits.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from qkv.errors import OptionError

if TYPE_CHECKING:
    from qkv.kernels.panels import Form

Weights = Literal["as stored", "float32", "bf16", "int8"]

FORMS: "Mapping[str, Form | None]" = {
    "as stored": None,
    "float32": "float32",
    "bf16": "bfloat16",
    "int8": "int8",
}
"""What the kernels call them; ``None`` = each matrix by itself."""

NO_WEIGHTS = {"config", "tokenizer", "end_ids"}
"""Fields of a model that are none."""


def form_of(weights: Weights) -> "Form | None":
    """Return the form that ``weights`` names.

    Raises
    ------
    OptionError
        If it names none.

    Examples
    --------
    >>> form_of("bf16")
    'bfloat16'
    """
    if weights not in FORMS:
        raise OptionError(f"weights must be one of {', '.join(get_args(Weights))}, not {weights!r}")
    return FORMS[weights]


def weight_nbytes(model: object) -> int:
    """Return the bytes that a model's weights take in memory, scales and padding included.

    Parameters
    ----------
    model : Model

    Returns
    -------
    int
        A table that is also the output head counts once.
    """
    return sum({id(weight): weight.nbytes for weight in weights_of(model)}.values())


def weights_of(part: Any, leaving_out: Collection[str] = ()) -> Iterator[Any]:
    """Yield every array and packed weight in a model, a layer, or a tuple of them.

    Parameters
    ----------
    part : Model, layer or tuple
    leaving_out : names of fields
        Not looked into.
    """
    if hasattr(part, "nbytes"):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from weights_of(one, leaving_out)
    elif is_dataclass(part):
        for field in fields(part):
            if field.name not in NO_WEIGHTS and field.name not in leaving_out:
                yield from weights_of(getattr(part, field.name), leaving_out)
