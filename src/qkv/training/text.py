"""What is learned from: text files, of which some are held out to be examined on."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qkv.errors import OptionError


@dataclass(frozen=True)
class Document:
    """One text, with the name of its file."""

    name: str
    text: str

    @property
    def nbytes(self) -> int:
        """Of the text in UTF-8."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Split:
    """What is trained on, and what never is."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]


def read_documents(path: Path) -> tuple[Document, ...]:
    r"""Read a text file, or every .txt file of a folder and the folders in it, in the order of their names.

    Parameters
    ----------
    path : Path
        UTF-8; a byte order mark is left out, and line ends are read as ``\n`` however they are written.

    Raises
    ------
    OptionError
        If there is no text at that path, or it is not UTF-8; the message names the file.
    """
    if not path.exists():
        raise OptionError(f"expected a text file or a folder of .txt files, got nothing at {path}")
    if path.is_file():
        documents = (_read(path, path.name),)
    else:
        files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        documents = tuple(_read(file, file.relative_to(path).as_posix()) for file in files)
    documents = tuple(document for document in documents if document.text.strip())
    if not documents:
        what = "an empty file" if path.is_file() else "no .txt file with text in it"
        raise OptionError(f"expected text to learn from in {path}, got {what}")
    return documents


def hold_out(documents: Sequence[Document], which: float | Sequence[str]) -> Split:
    r"""Set some text apart, whole documents or the end of it all, but never pieces out of the middle.

    Parameters
    ----------
    documents : sequence of Document
    which : float or sequence of str
        A share of the text, taken from its end and cut at the beginning of a line; or names of
        documents, with or without ``.txt``.

    Raises
    ------
    OptionError
        If a name is unknown, nothing remains to train on, or what is held out is trained on by another name.

    Examples
    --------
    >>> documents = [Document("a.txt", "one\ntwo\n"), Document("b.txt", "three\nfour\n")]
    >>> split = hold_out(documents, 0.2)
    >>> [document.text for document in split.train], [document.text for document in split.held_out]
    (['one\ntwo\n', 'three\n'], ['four\n'])
    >>> [document.name for document in hold_out(documents, ["a"]).held_out]
    ['a.txt']
    """
    split = _at_end(documents, which) if isinstance(which, float | int) else _by_name(documents, which)
    if not split.train or not split.held_out:
        lack = _lack(documents, split, which)
        raise OptionError(f"expected text to train on and text to hold out, got {lack}")
    seen = {document.text: document.name for document in split.train}
    for document in split.held_out:
        if document.text in seen:
            raise OptionError(f"{document.name} is held out but is trained on too, as {seen[document.text]}")
    return split


def _read(file: Path, name: str) -> Document:
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{file} is not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}); convert it first"
        ) from error
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from error
    return Document(name, text)


def _by_name(documents: Sequence[Document], names: Sequence[str]) -> Split:
    known = {name: document for document in documents for name in (document.name, _stem(document))}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1) or [documents[0].name]
            raise OptionError(f"no document {name!r} to hold out; did you mean {near[0]!r}?")
    held_out = [known[name] for name in dict.fromkeys(names)]
    return Split(
        tuple(document for document in documents if document not in held_out),
        tuple(document for document in documents if document in held_out),
    )


def _lack(documents: Sequence[Document], split: Split, which: float | Sequence[str]) -> str:
    """Say why one side has nothing, and what to try."""
    if not isinstance(which, float | int):
        sides = f"{len(split.train)} and {len(split.held_out)} documents"
        return f"{sides}; hold out something else, or give more text"
    nbytes = sum(document.nbytes for document in documents)
    lines = sum(len(document.text.splitlines()) for document in documents)
    return (
        f"too little: {nbytes:,} bytes in {lines:,} line{'s' if lines > 1 else ''}, and a share is held out "
        "line by line; give more text, or hold out another share or a file"
    )


def _stem(document: Document) -> str:
    return document.name.removesuffix(".txt")


def _at_end(documents: Sequence[Document], share: float) -> Split:
    if not 0 < share < 1:
        raise OptionError(f"expected a share of the text to hold out between 0 and 1, got {share}")
    kept = (1 - share) * sum(len(document.text) for document in documents)  # characters
    train, held_out = [], []
    for document in documents:
        cut = min(len(document.text), max(0, round(kept)))
        if cut < len(document.text):  # back to where the line begins
            cut = document.text.rfind("\n", 0, cut) + 1
        train.append(replace(document, text=document.text[:cut]))
        held_out.append(replace(document, text=document.text[cut:]))
        kept -= len(document.text)
    return Split(_with_text(train), _with_text(held_out))


def _with_text(documents: Sequence[Document]) -> tuple[Document, ...]:
    return tuple(document for document in documents if document.text.strip())
