"""All of a training on disk: it goes on from there as if it had never stopped.

A safetensors file of the parameters, both moments of AdamW, and the curve; its header says what the
training follows from. Batches and dropout come from the seed and the step alone, so nothing else is
needed for the next loss to be the same to the bit.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qkv.errors import CheckpointError
from qkv.training.adamw import AdamW
from qkv.training.curve import Curve
from qkv.training.presets import SIZES, Settings
from qkv.training.whole_file import whole_file

KIND = "qkv training 1"

ARRAYS = ("parameters", "first_moments", "second_moments", "losses", "norms", "evaluations")

FIXED = (*SIZES, "data")
"""What must be the same for parameters to have a meaning at all."""


def origin_of(settings: Settings, fingerprint: str) -> dict[str, Any]:
    """Return what the losses of a training follow from, as JSON has it."""
    return json.loads(json.dumps(asdict(settings) | {"data": fingerprint}))


def save_checkpoint(path: Path, optimiser: AdamW, curve: Curve, origin: Mapping[str, Any]) -> None:
    """Write a checkpoint; the one before stays until this one is whole and safe on the disk.

    Parameters
    ----------
    path : Path
    optimiser : AdamW
        With the parameters that it moves.
    curve : Curve
    origin : mapping
        From `origin_of`.

    Raises
    ------
    CheckpointError
        If it cannot be written, as on a full disk.
    """
    arrays = {
        "parameters": optimiser.parameters.vector,
        "first_moments": optimiser.first_moments,
        "second_moments": optimiser.second_moments,
        **curve.arrays(),
    }
    content = save(arrays, {"kind": KIND, "origin": json.dumps(origin)})
    with whole_file(path) as file:
        file.write(content)


def load_checkpoint(
    path: Path, optimiser: AdamW, origin: Mapping[str, Any], *, accept_changes: bool = False
) -> Curve:
    """Bring an optimiser and its parameters to where a checkpoint left them; return the curve so far.

    Parameters
    ----------
    path : Path
    optimiser : AdamW
    origin : mapping
        Of the training that is to go on.
    accept_changes : bool
        Go on although settings differ from those until now; sizes and data may not.

    Raises
    ------
    CheckpointError
        If the file is damaged, no checkpoint, or of another training; then nothing has changed.
    """
    found, arrays = _read(path)
    differing = [name for name in {**origin, **found} if found.get(name) != origin.get(name)]
    refused = [name for name in differing if name in FIXED or not accept_changes]
    if refused:
        raise CheckpointError(_other_training(path, refused, found, origin))
    optimiser.parameters.vector[:] = arrays.pop("parameters")
    optimiser.first_moments[:] = arrays.pop("first_moments")
    optimiser.second_moments[:] = arrays.pop("second_moments")
    curve = Curve.from_arrays(arrays)
    optimiser.num_steps = curve.num_steps
    return curve


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
            if texts.get("kind") != KIND:
                raise CheckpointError(f"{path} is no checkpoint of a training; take another folder")
            return json.loads(texts["origin"]), {name: file.get_tensor(name) for name in ARRAYS}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); remove it to begin anew") from error


def _other_training(path: Path, names: list[str], found: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    differences = ", ".join(
        "other text" if name == "data" else f"{name} {found.get(name)}, not {asked.get(name)}"
        for name in names
    )
    may_accept = not set(names) & set(FIXED)
    advice = "take another folder" + (", or accept the changes" if may_accept else "")
    return f"{path} is of another training, with {differences}; {advice}"
