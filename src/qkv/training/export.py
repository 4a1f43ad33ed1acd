"""A trained model as a folder that qkv and transformers load.

=======================  =================================================================
file                     what it holds
=======================  =================================================================
config.json              the sizes, as of a `LlamaForCausalLM`
model.safetensors        the parameters, under the names Hugging Face's Llama has
generation_config.json   which token begins a text, and which ends it
tokenizer.json           the vocabulary and how text is cut up
tokenizer_config.json    which tokens are special
README.md                the model card
=======================  =================================================================
"""

import json
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from qkv.errors import NumericError, OptionError
from qkv.tokens import Tokenizer
from qkv.tokens.bpe import tokenizer_files
from qkv.training.parameters import Parameters
from qkv.training.presets import Settings
from qkv.training.whole_file import make_folder, whole_file, write_text

Stored = Literal["bfloat16", "float16", "float32"]
STORED = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def export(
    folder: Path,
    parameters: Parameters,
    settings: Settings,
    tokenizer: Tokenizer | None,
    card: str,
    stored: Stored = "bfloat16",
) -> None:
    """Write a model folder; each file is whole or not there, and the tensors come last.

    Parameters
    ----------
    folder : Path
        Made if it is not there; files of these names are replaced.
    parameters : Parameters
    settings : Settings
        Those that the model was trained with.
    tokenizer : Tokenizer or None
        ``None`` for a model of ids that are no text.
    card : str
        From `qkv.training.card`.
    stored : "bfloat16", "float16" or "float32"
        What parameters are rounded to.

    Raises
    ------
    NumericError
        If a parameter is not finite, or float16 does not reach that far.
    CheckpointError
        If a file cannot be written.
    """
    values = stored_values(parameters, stored)
    tensors = Parameters(parameters.shapes, values)
    make_folder(folder)
    for name, text in _texts(settings, tokenizer, stored).items():
        write_text(folder / name, text)
    write_text(folder / "README.md", card)
    with whole_file(folder / "model.safetensors") as file:
        # The library tells transformers by this where the file is from: any framework reads it.
        file.write(save({name: np.ascontiguousarray(tensors[name]) for name in tensors}, {"format": "pt"}))


def stored_values(parameters: Parameters, stored: Stored) -> NDArray[np.floating]:
    """Return all parameters as they are stored, one behind the other.

    Raises
    ------
    OptionError
        If there is no such form.
    NumericError
        If one is not finite in that form.
    """
    if stored not in STORED:
        raise OptionError(f"expected parameters stored as one of {', '.join(STORED)}, got {stored!r}")
    with np.errstate(over="ignore"):  # which is said below
        values = parameters.vector.astype(STORED[stored])
    if not np.isfinite(values).all():
        raise NumericError(f"a parameter is not finite as {stored}; go back to an earlier checkpoint")
    return values


def rounded(parameters: Parameters, stored: Stored) -> Parameters:
    """Return parameters as who loads them will have them: as stored, widened to float32 again."""
    return Parameters(parameters.shapes, stored_values(parameters, stored).astype(np.float32))


def _texts(settings: Settings, tokenizer: Tokenizer | None, stored: Stored) -> dict[str, str]:
    config = settings.config() | {"dtype": stored, "bos_token_id": None, "eos_token_id": None}
    files = {}
    if tokenizer is not None:
        ends = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
        config |= ends
        files = tokenizer_files(tokenizer, settings.T)
        files["generation_config.json"] = _as_json(ends)
    return {"config.json": _as_json(config), **files}


def _as_json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"
