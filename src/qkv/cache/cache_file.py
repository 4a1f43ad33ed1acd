"""A safetensors file that is written whole or not at all, and read only as it was written.

=========  ==============================================================================
part       what it holds
=========  ==============================================================================
8 bytes    the length of the header, the lowest byte first
header     JSON: the element type, shape and place of each array; texts under
           ``__metadata__``, among them a SHA-256 of all the rest
data       the arrays, one behind the other
=========  ==============================================================================

Any reader of safetensors opens it (https://huggingface.co/docs/safetensors). Rows are written from where
they are and read to where they go, one by one, so that a large file takes no copy of itself in memory.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from qkv.errors import CacheFileError

KIND, VERSION = "qkv cache", "1"
"""Stand in every file; the version counts up when what is in a file changes its meaning."""

ELEMENT_TYPES = {"U8": np.dtype("u1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
"""By their names in a header."""

LONGEST_HEADER = 100_000_000
"""Bytes, as in the safetensors library."""


class Rows(Protocol):
    """An array, or what stands for one: its rows come one by one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every row."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the rows together."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Give the rows, the same each time."""
        ...


def write_file(path: Path, texts: Mapping[str, str], arrays: Mapping[str, Rows]) -> None:
    """Write arrays by name, and texts about them; an older file of that name is there until all is written.

    Parameters
    ----------
    path : Path
    texts : mapping of str to str
    arrays : mapping of str to arrays
        uint8, int32 or int64.

    Raises
    ------
    CacheFileError
        If the file cannot be written; then nothing is left of it.
    """
    header = _header({**texts, "kind": KIND, "version": VERSION}, arrays)
    header["__metadata__"]["sha256"] = _digest(header, _pieces(arrays))
    text = _as_json(header)
    text += b" " * (-len(text) % 8)  # so that numbers lie at multiples of their sizes
    try:
        with _replacing(path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for piece in _pieces(arrays):
                file.write(piece)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheFileError(f"{path} cannot be written: {reason}; try another path") from error


class CacheFile:
    """An open file whose every byte has been found to be as it was written.

    Attributes
    ----------
    texts : mapping of str to str
    """

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._file = file
        self._entries = _read_header(path, file)
        self.texts: Mapping[str, str] = self._entries.pop("__metadata__")
        self._data_start = file.tell()
        header = {**self._entries, "__metadata__": {**self.texts}}
        written = header["__metadata__"].pop("sha256", None)
        if _digest(header, iter(lambda: file.read(1 << 20), b"")) != written:
            raise CacheFileError(f"{path} is damaged or cut short: it is not what was written; save it again")

    def __contains__(self, name: str) -> bool:
        """Whether there is an array of that name."""
        return name in self._entries

    def array(self, name: str) -> NDArray[Any]:
        """Return a whole array."""
        entry = self._find(name)
        array = np.empty(entry["shape"], ELEMENT_TYPES[entry["dtype"]])
        self._file.readinto(array.reshape(-1).view(np.uint8).data)
        return array

    def num_rows(self, name: str) -> int:
        """Return how many rows an array has."""
        return self._entries[name]["shape"][0]

    def read_rows(self, name: str, rows: Iterable[NDArray[np.uint8]]) -> None:
        """Read the rows of an array, in turn, into arrays of bytes."""
        self._find(name)
        for row in rows:
            self._file.readinto(row.data)

    def _find(self, name: str) -> dict[str, Any]:
        entry = self._entries[name]
        self._file.seek(self._data_start + entry["data_offsets"][0])
        return entry


@contextmanager
def open_file(path: Path) -> Iterator[CacheFile]:
    """Open a file and check every byte of it; it is open until the block is left.

    Raises
    ------
    CacheFileError
        If it cannot be read, is no saved cache, is of another version, damaged or cut short.
    """
    try:
        with path.open("rb") as file:
            yield CacheFile(path, file)
    except OSError as error:
        raise CacheFileError(f"{path} cannot be read: {error.strerror or error}; check the path") from error


def _header(texts: dict[str, str], arrays: Mapping[str, Rows]) -> dict[str, Any]:
    names = {dtype: name for name, dtype in ELEMENT_TYPES.items()}
    header: dict[str, Any] = {"__metadata__": texts}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.dtype.itemsize * prod(array.shape)
        entry = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
        header[name] = entry
    return header


def _pieces(arrays: Mapping[str, Rows]) -> Iterator[Any]:
    """Give the bytes of all arrays, in order."""
    for array in arrays.values():
        if isinstance(array, np.ndarray):
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        else:
            yield from array


def _digest(header: Mapping[str, Any], pieces: Iterator[Any]) -> str:
    digest = hashlib.sha256(_as_json(header))
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _as_json(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True).encode()


def _read_header(path: Path, file: BufferedReader) -> dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(min(length, LONGEST_HEADER)))
        texts = header["__metadata__"]
        kind, version = texts["kind"], texts["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        kind = version = header = None
    if header is None or kind != KIND:
        raise CacheFileError(f"{path} is no saved cache, or its beginning is damaged; take another")
    if version != VERSION:
        raise CacheFileError(
            f"{path} is of version {version!r} of saved caches, and version {VERSION!r} is read; "
            f"compute its text again"
        )
    return header


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its place once it is written and safe on the disk."""
    unfinished = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
