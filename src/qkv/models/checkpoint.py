"""A model folder: config.json, and safetensors from which each tensor is taken exactly once.

The folder has the Hugging Face layout: ``config.json``, perhaps ``generation_config.json``, and the
tensors in ``model.safetensors`` or in shards that ``model.safetensors.index.json`` maps by name.
Opening reads headers only. A folder that is incomplete or damaged is refused before any tensor is read,
and a tensor that nobody asked for is listed, so a model never runs with weights it silently lacks.
"""

import difflib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from qkv.errors import CheckpointError, CheckpointWarning

if TYPE_CHECKING:
    from qkv.kernels.panels import Form

FLOAT_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
"""The element types that parameters may have, by their names in a safetensors header."""

EXACT_IN_BFLOAT16 = {"BF16", "F8_E4M3", "F8_E5M2"}
"""The types that bfloat16 holds every number of. Not float16: it has 11 significant bits, bfloat16 has 8."""

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
OTHER_FORMATS = {".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack"}
SAME_MODEL = "check that config.json and the tensors are of the same model"


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies on disk, and as what."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int

    def read(self, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Return the values as an array that is the caller's own."""
        # The library hands NumPy no float8, and a copy of its own of what is then widened into another.
        # From a map of the file the array is the only copy, and the map is let go at once.
        stored = np.memmap(self.file, FLOAT_DTYPES[self.dtype], "r", self.offset_bytes, self.shape)
        return stored.astype(dtype, subok=False)


@dataclass(eq=False)
class Checkpoint:
    """The contents of a model folder, and a record of which tensors have found a use.

    A model family calls `take` or `take_matrix` for each parameter and `skip` for each known non-parameter,
    then `finish`.

    Attributes
    ----------
    folder : Path
        The model folder.
    config : dict
        ``config.json`` as it stands.
    generation_config : dict
        ``generation_config.json`` as it stands; empty if there is none.
    tensors : dict
        Where each tensor lies, by name.
    form : "float32", "bfloat16", "int8" or None
        How the model is to keep its matrices; ``None`` = as `take_matrix` gives them.

    Examples
    --------
    >>> import tempfile
    >>> from safetensors.numpy import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text('{"model_type": "llama"}')
    ...     save_file({"norm.weight": np.ones(3, np.float16)}, Path(folder, "model.safetensors"))
    ...     checkpoint = Checkpoint.open(folder)
    ...     checkpoint.take("norm.weight", (3,))
    ...     checkpoint.finish()
    array([1., 1., 1.], dtype=float32)
    """

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: dict[str, StoredTensor] = field(repr=False)
    form: "Form | None" = None
    _settled: set[str] = field(default_factory=set, init=False, repr=False)  # taken or skipped

    @classmethod
    def open(cls, folder: str | Path, form: "Form | None" = None) -> Self:
        """Read the configs and the headers of a model folder, but no tensor yet.

        Raises
        ------
        CheckpointError
            If the folder or a file in it is missing, damaged, or contradicts another.
        """
        folder = Path(folder)
        if not folder.is_dir():
            got = "a file" if folder.exists() else "nothing at that path"
            raise _fault(folder, "a model folder", got, "pass the folder that holds config.json")
        tensors = _locate_tensors(folder)
        config = _read_object(folder / "config.json")
        generation = folder / "generation_config.json"
        generation_config = _read_object(generation) if generation.exists() else {}
        return cls(folder, config, generation_config, tensors, form)

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors in the checkpoint."""
        return frozenset(self.tensors)

    @property
    def unused(self) -> tuple[str, ...]:
        """The names, sorted, of the tensors that were neither taken nor skipped."""
        return tuple(sorted(self.names - self._settled))

    def holds(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of this name."""
        return name in self.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read one parameter as float32: exactly the stored values, except that float64 is rounded.

        Parameters
        ----------
        name : str
            The tensor's name in the checkpoint; each can be taken once.
        shape : tuple of int
            The shape that the config asks for; the stored shape must be the same.

        Raises
        ------
        CheckpointError
            If there is no such tensor, or its shape or element type is another.
        """
        return self._settle(name, shape).read()

    def take_matrix(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read one matrix as bfloat16 where that holds every number of the stored type, else as float32.

        Most of a model is matrices, and reading them is most of what a token takes: so they stay as small
        as they are stored. What is left to do with them is `qkv.ops.projection.prepare`, in `form`.

        Parameters, Raises
        ------------------
        As for `take`.
        """
        stored = self._settle(name, shape)
        return stored.read(ml_dtypes.bfloat16 if stored.dtype in EXACT_IN_BFLOAT16 else np.float32)

    def _settle(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Find a tensor that is taken now."""
        assert name not in self._settled, f"{name} was taken or skipped before"
        if name not in self.tensors:
            nearest = difflib.get_close_matches(name, self.tensors, n=1) or ["none alike"]
            got = f"none of that name (nearest: {nearest[0]})"
            raise _fault(self.folder, f"a tensor {name} of shape {shape}", got, SAME_MODEL)
        stored = self.tensors[name]
        if stored.shape != shape:
            raise _fault(stored.file, f"{name} of shape {shape}", stored.shape, SAME_MODEL)
        if stored.dtype not in FLOAT_DTYPES:
            expected = f"{name} in one of {', '.join(FLOAT_DTYPES)}"
            raise _fault(stored.file, expected, stored.dtype, "get the model in one of those")
        self._settled.add(name)
        return stored

    def skip(self, *which: str | Callable[[str], bool]) -> None:
        """Leave out tensors that are no parameters, such as mask buffers.

        Names need not be there; a predicate is asked about every name that is still unused.
        """
        for one in which:
            self._settled.update(filter(one, self.unused) if callable(one) else [one])

    def finish(self) -> None:
        """Say that the model has all it needs; one `CheckpointWarning` lists what then has no use."""
        if self.unused:
            got = f"{len(self.unused)} without: {', '.join(self.unused)}"
            fault = _fault(self.folder, "a place in the model for every tensor", got, SAME_MODEL)
            warnings.warn(str(fault), CheckpointWarning, stacklevel=2)


def _fault(where: Path, expected: str, got: object, advice: str) -> CheckpointError:
    """Word an error the one way all of them are worded."""
    return CheckpointError(f"{where}: expected {expected}, got {got}; {advice}")


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON file whose top level is an object."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        absent = isinstance(error, FileNotFoundError)
        got = "no such file" if absent else f"one that fails with {str(error)!r}"
        raise _fault(file, "a JSON object", got, "download it again") from error
    if not isinstance(content, dict):
        raise _fault(file, "a JSON object", f"a {type(content).__name__}", "download it again")
    return content


def _locate_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Find each tensor, by the index if there is one: then stray files beside it are never read."""
    index = folder / INDEX_NAME
    return _locate_in_shards(index) if index.exists() else _read_header(_single_file(folder))


def _single_file(folder: Path) -> Path:
    """Return ``model.safetensors``, or else the only safetensors file there is."""
    if (folder / SINGLE_NAME).exists():
        return folder / SINGLE_NAME
    candidates = sorted(folder.glob("*.safetensors"))
    if len(candidates) == 1:
        return candidates[0]
    found = candidates or sorted(file for file in folder.iterdir() if file.suffix in OTHER_FORMATS)
    got = ", ".join(file.name for file in found) or "no tensors at all"
    advice = (
        "add the index of these files" if candidates else "pass a folder of safetensors, the one format read"
    )
    raise _fault(folder, f"config.json with {SINGLE_NAME} or {INDEX_NAME}", got, advice)


def _locate_in_shards(index: Path) -> dict[str, StoredTensor]:
    """Find each tensor in the shard that the index names."""
    shard_of = _read_index(index)
    headers = {shard: _read_header(index.parent / shard) for shard in sorted(set(shard_of.values()))}
    for name, shard in shard_of.items():
        if name not in headers[shard]:
            expected = f"the tensor {name}, which {index.name} places there"
            advice = "download the index and its shards again, from one place"
            raise _fault(index.parent / shard, expected, "a file without it", advice)
    # Tensors that the index forgot are kept, so that they are listed as unused and not lost.
    found = {name: stored for header in headers.values() for name, stored in header.items()}
    return found | {name: headers[shard][name] for name, shard in shard_of.items()}


def _read_index(index: Path) -> dict[str, str]:
    """Read the map from tensor to shard; every shard must be a file beside the index."""
    shard_of = _read_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise _fault(index, "a weight_map from tensor to file name", "none", "download it again")
    for name, shard in shard_of.items():
        # Windows splits a path at both slashes and after a drive: the strictest rule, so it holds everywhere.
        if PureWindowsPath(shard).name != shard:
            advice = "put all shards into that folder and name them without a path"
            raise _fault(index, f"a file in the same folder for {name}", repr(shard), advice)
        if not (index.parent / shard).is_file():
            expected = f"the shard {shard!r}, which holds {name}"
            raise _fault(index, expected, "no such file", "download the rest of the model")
    return shard_of


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """Read what a safetensors file holds, once the library has found it whole."""
    try:
        safe_open(file, framework="numpy")  # raises unless the header accounts for every byte of data
    except (OSError, SafetensorError) as error:
        got = f"one that fails with {str(error)!r}"
        advice = "download it again (a Git LFS pointer is not the file itself)"
        raise _fault(file, "a whole safetensors file", got, advice) from error
    # The file is an 8-byte little-endian length, a JSON header of that length, then the data. The library
    # does not tell where a tensor's bytes lie, so the header it has just approved is read once more.
    with file.open("rb") as opened:
        header_bytes = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(header_bytes))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        offset_bytes = 8 + header_bytes + entry["data_offsets"][0]
        tensors[name] = StoredTensor(file, entry["dtype"], tuple(entry["shape"]), offset_bytes)
    return tensors
