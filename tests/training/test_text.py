import os
from pathlib import Path

import pytest

from qkv.errors import OptionError
from qkv.training.text import Document, hold_out, read_documents

PLAYS = (
    Document("hamlet.txt", "To be,\nor not to be\n"),
    Document("more/tempest.txt", "Good, speak\nto the mariners\n"),
    Document("sonnets.txt", "From fairest\ncreatures we desire\n"),
)


def texts(documents: tuple[Document, ...]) -> list[str]:
    return [document.text for document in documents]


def test_a_folder_is_read_in_the_order_of_names_with_all_that_is_in_it(tmp_path: Path):
    (tmp_path / "more").mkdir()
    for document in reversed(PLAYS):
        (tmp_path / document.name).write_text(document.text)
    (tmp_path / "notes.md").write_text("not a text")
    (tmp_path / "empty.txt").write_text(" \n")
    assert read_documents(tmp_path) == PLAYS


def test_a_file_is_one_document_whatever_its_ending(tmp_path: Path):
    (tmp_path / "log").write_bytes("\ufeffé one\r\ntwo\rthree\n".encode())
    [document] = read_documents(tmp_path / "log")
    assert document == Document("log", "é one\ntwo\nthree\n")
    assert document.nbytes == 17


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing", None, "nothing at"),
        ("empty.txt", b"", "an empty file"),
        ("blank.txt", b"\n \n", "an empty file"),
        ("latin.txt", b"caf\xe9\n", r"latin.txt is not UTF-8 \(byte 3 is 0xe9\)"),
    ],
)
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None, said: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=said):
        read_documents(tmp_path / name)


def test_a_folder_without_text_is_refused(tmp_path: Path):
    with pytest.raises(OptionError, match=r"no \.txt file with text in it"):
        read_documents(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"ok \xff")
    with pytest.raises(OptionError, match=r"bad\.txt is not UTF-8"):
        read_documents(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path):
    (tmp_path / "locked.txt").write_text("x")
    (tmp_path / "locked.txt").chmod(0)
    with pytest.raises(OptionError, match=r"locked\.txt cannot be read"):
        read_documents(tmp_path)


def test_documents_are_held_out_whole_by_name():
    split = hold_out(PLAYS, ["sonnets", "more/tempest.txt"])
    assert split.train == PLAYS[:1] and split.held_out == PLAYS[1:]


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.7, 0.9])
def test_a_share_is_the_end_of_it_all_from_the_beginning_of_a_line(share: float):
    split = hold_out(PLAYS, share)
    assert "".join(texts(split.train) + texts(split.held_out)) == "".join(texts(PLAYS))
    assert all(text.endswith("\n") for text in texts(split.train))
    held_out, everything = (sum(map(len, texts(part))) for part in (split.held_out, PLAYS))
    longest_line = 20
    assert share * everything <= held_out + 1 <= share * everything + 1 + longest_line


def test_nothing_held_out_is_trained_on():
    again = Document("copy.txt", PLAYS[0].text)
    with pytest.raises(OptionError, match=r"hamlet.txt is held out but is trained on too, as copy.txt"):
        hold_out([*PLAYS, again], ["hamlet"])


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match=r"no document 'hamlt' to hold out; did you mean 'hamlet'"):
        hold_out(PLAYS, ["hamlt"])


@pytest.mark.parametrize("which", [0.0, 1.0, 1.5, float("nan"), 1])
def test_a_share_that_is_none_is_refused(which: float):
    with pytest.raises(OptionError, match="between 0 and 1"):
        hold_out(PLAYS, which)


def test_something_must_remain_on_both_sides():
    with pytest.raises(OptionError, match="got 0 and 3 documents"):
        hold_out(PLAYS, ["hamlet", "more/tempest", "sonnets"])
    with pytest.raises(OptionError, match="got 3 and 0 documents"):
        hold_out(PLAYS, [])
    with pytest.raises(OptionError, match=r"got too little: 22 bytes in 1 line, .* line by line; give more"):
        hold_out([Document("line.txt", "one líne and no more\n")], 0.1)
