"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from qkv.errors import CheckpointError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its place once it is written and safe on the disk.

    Until then an older file of that name stays as it was. What a killed process left unfinished is
    written over by the next: a folder has one writer.

    Raises
    ------
    CheckpointError
        If it cannot be written; the older file is still there.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "losses")
    ...     with whole_file(path) as file:
    ...         _ = file.write(b"2.3")
    ...     path.read_bytes()
    b'2.3'
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            _keep_name(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(_reason(path, error)) from error


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


def make_folder(path: Path) -> Path:
    """Make a folder and those above it, if they are not there.

    Raises
    ------
    CheckpointError
        If it cannot be made, as where a file of that name is.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be a folder: {error.strerror or error}; try another") from error
    return path


def check_folder(path: Path) -> None:
    """Raise `CheckpointError` unless a folder is there that can be written to, or can be made."""
    try:
        there = next(one for one in (path, *path.parents) if one.exists())
        reason = "" if there.is_dir() else f"{there} is a file"
        if not reason and not os.access(there, os.W_OK):
            reason = f"{there} cannot be written to"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise CheckpointError(f"{path} cannot be a folder: {reason}; try another")


def _keep_name(folder: Path) -> None:
    """Have the folder's own entry on the disk too, where the system can say so."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(path: Path, error: OSError) -> str:
    what = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        older = f"; the {path.name} that was there before is unharmed" if path.exists() else ""
        return f"{what}{older}; make room, then run the same command again"
    return f"{what}; try another folder"
