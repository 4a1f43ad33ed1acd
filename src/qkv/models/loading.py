"""Load a model folder: read its config, pick the family, take the weights, add the tokenizer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError
from qkv.models.checkpoint import Checkpoint
from qkv.models.config import ConfigFields
from qkv.models.deepseek import DeepSeek
from qkv.models.gpt2 import GPT2
from qkv.models.llama import Llama
from qkv.models.shipped import folder_of
from qkv.models.weights import Weights, form_of
from qkv.tokens import Tokenizer

FAMILIES: Mapping[str, type[Llama] | type[GPT2] | type[DeepSeek]] = {
    "llama": Llama,
    "mistral": Llama,
    "qwen2": Llama,
    "qwen3": Llama,
    "gpt2": GPT2,
    "deepseek_v2": DeepSeek,
    "deepseek_v3": DeepSeek,
}
"""Which class reads which ``model_type``."""

SCALE_ENDINGS = ("_scale_inv", ".weight_scale")
"""Of the names of scales beside weights that are stored as codes: DeepSeek's, and those of other tools."""


def load(folder: str | Path = "verse", weights: Weights = "as stored") -> Llama | GPT2 | DeepSeek:
    """Load a model in the Hugging Face layout.

    Parameters
    ----------
    folder : str or Path
        ``"verse"`` and ``"recall"`` are the models that come with qkv; a folder of one's own that has
        such a name is given as ``./verse``. It holds config.json, safetensors (one file or shards with
        an index), and for text a tokenizer.json. float32, float16 and bfloat16 weights are read;
        quantised ones are refused.
    weights : "as stored", "float32", "bf16" or "int8"
        How matrices are kept in memory: `qkv.models.weights` has the table. Results are float32 always.

    Returns
    -------
    Llama, GPT2 or DeepSeek
        With ``logits(ids, cache)``, ``tokenizer``, ``context_length`` and ``end_ids``.

    Raises
    ------
    CheckpointError
        If the folder is missing, damaged, or of an unknown kind; the message names the file.
    OptionError
        If there is no such form of weights, or weights that are not finite are to be int8.

    Warns
    -----
    CheckpointWarning
        If a tensor in the folder has no place in the model.

    Examples
    --------
    ::

        model = qkv.load("SmolLM2-135M")
        model.logits([1, 2, 3]).shape
    """
    checkpoint = Checkpoint.open(folder_of(folder), form_of(weights))
    family = family_of(checkpoint.config)
    check_unscaled(checkpoint)
    model = family.from_checkpoint(checkpoint)
    checkpoint.finish()
    has_tokenizer = (checkpoint.folder / "tokenizer.json").exists()
    tokenizer = Tokenizer.from_folder(checkpoint.folder) if has_tokenizer else None
    return replace(model, tokenizer=tokenizer, end_ids=end_ids_of(checkpoint, tokenizer))


def family_of(config: Mapping[str, Any]) -> type[Llama] | type[GPT2] | type[DeepSeek]:
    """Return the class that reads a config's ``model_type``.

    Examples
    --------
    >>> family_of({"model_type": "qwen2"}).__name__
    'Llama'
    """
    kind = ConfigFields(config).text("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"config.json: model_type {kind!r} is not one qkv runs: {known}")
    return FAMILIES[kind]


def check_unscaled(checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` if weights are codes that are nothing without their scales.

    FP8 codes are floats too: taken for the weights themselves, they would make another model.
    """
    quantization = ConfigFields(checkpoint.config).section("quantization_config")
    scales = sorted(name for name in checkpoint.names if name.endswith(SCALE_ENDINGS))
    found = []
    if quantization:
        found.append(f"a quantization_config in config.json ({quantization.get('quant_method', 'unnamed')})")
    if scales:
        found.append(f"{len(scales)} tensors of scales, such as {scales[0]}")
    if found:
        raise CheckpointError(
            f"{checkpoint.folder}: expected weights stored as they are, got {' and '.join(found)}; "
            "get the model in float32, float16 or bfloat16"
        )


def end_ids_of(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Return every id that ends a text: those of both configs, and the tokenizer's own."""
    named = [
        checkpoint.config.get("eos_token_id"),
        checkpoint.generation_config.get("eos_token_id"),
        None if tokenizer is None else tokenizer.eos_id,
    ]
    ids = [one for entry in named for one in (entry if isinstance(entry, list) else [entry])]
    wrong = [one for one in ids if one is not None and type(one) is not int]
    if wrong:
        raise CheckpointError(
            f"{checkpoint.folder}: eos_token_id must be an integer or a list of them, not {wrong[0]!r}"
        )
    return frozenset(one for one in ids if one is not None)
