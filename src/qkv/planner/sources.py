"""Where a model's config comes from: the catalogue, a folder, a file, GGUF metadata, or the hub."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.errors import PlanError
from qkv.planner.catalogue import catalogue, catalogue_name, unknown_name
from qkv.planner.config import read_model
from qkv.planner.layers import ModelMemory

Source = str | Path | Mapping[str, Any] | ModelMemory

LARGEST_CONFIG = 16 * 2**20
"""Bytes: no config.json comes near it."""


def find_model(source: Source) -> ModelMemory:
    """Return what a model keeps, wherever its config is.

    Parameters
    ----------
    source : str, Path or mapping
        A name of the catalogue, a model folder, a config.json, a .gguf file, what a config.json holds,
        or a hub id such as ``Qwen/Qwen3-8B``, which is asked of the hub only when nothing else fits.

    Raises
    ------
    PlanError
        If there is no such model, or its config cannot be used.

    Examples
    --------
    >>> find_model("llama-3-8b").numbers(1) * 2
    131072
    """
    if isinstance(source, ModelMemory):
        return source
    if isinstance(source, Mapping):
        return read_model(source)
    if not isinstance(source, str | Path):
        raise PlanError(f"a model is a name, a path or what a config.json holds, not {type(source).__name__}")
    name = str(source)
    known = catalogue_name(name)
    if known is not None:
        return read_model(catalogue()[known]["config"], known)
    path = Path(source)
    if _exists(path):
        return _from_path(path)
    if isinstance(source, str) and name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    raise unknown_name(name)


def read_config(path: Path) -> Any:
    """Read a config.json.

    Raises
    ------
    PlanError
        If it is missing, too large for a config, or no JSON.
    """
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise PlanError(f"{path} has {path.stat().st_size:,} bytes: that is no config.json")
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PlanError(f"expected a config.json in {path.parent}, found none") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(
            f"{path} cannot be read as JSON ({type(error).__name__}: {str(error)[:120]})"
        ) from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL, is no file
        return False


def _from_path(path: Path) -> ModelMemory:
    if path.suffix == ".gguf":
        from qkv.planner.gguf_metadata import read_gguf

        return read_gguf(path)
    if path.is_file():
        return read_model(read_config(path), path.parent.name or path.name)
    memory = read_model(read_config(path / "config.json"), path.resolve().name)
    stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return replace(memory, weight_bytes=stored, folder=path) if stored else memory


def _from_hub(name: str) -> ModelMemory:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise unknown_name(name) from None
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it says at each of several tries what the error below says once
    try:
        return read_model(read_config(Path(hf_hub_download(name, "config.json"))), name)
    except PlanError:
        raise
    except Exception as error:  # the network can fail in any way
        raise PlanError(
            f"{name} could not be fetched from the hub ({type(error).__name__}); "
            "download its config.json and give the path"
        ) from error
    finally:
        log.setLevel(level)
