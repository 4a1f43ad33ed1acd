"""Tokens on disk: two bytes each, nothing else, read through a map of the file.

Training looks at a few windows at a time, so that a text of any length takes no memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkv.errors import CheckpointError, OptionError
from qkv.tokens import Tokenizer
from qkv.tokens.bpe import portions
from qkv.training.text import Document
from qkv.training.whole_file import whole_file

TOKEN = np.dtype("<u2")
MOST_V = 1 << 16


def write_tokens(path: Path, parts: Iterable[Sequence[int]]) -> None:
    """Write token ids, part behind part, whole or not at all.

    Raises
    ------
    OptionError
        If an id does not fit into two bytes.
    CheckpointError
        If the file cannot be written.
    """
    with whole_file(path) as file:
        for part in parts:
            ids = np.asarray(part)
            if ids.size and not 0 <= ids.min() <= ids.max() < MOST_V:
                raise OptionError(f"expected ids below {MOST_V}, which fit into two bytes, got {ids.max()}")
            file.write(ids.astype(TOKEN).tobytes())


def open_tokens(path: Path) -> NDArray[np.uint16]:
    """Map a file of tokens, (tokens,), into memory.

    Raises
    ------
    CheckpointError
        If it is missing, or its size is not that of whole tokens.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}; write it again") from error
    if size % TOKEN.itemsize:
        raise CheckpointError(f"{path} is cut short: {size} bytes are no whole tokens; write it again")
    if size == 0:  # which cannot be mapped
        return np.empty(0, TOKEN)
    return np.memmap(path, TOKEN, "r")


def tokens_of(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[Sequence[int]]:
    """Give the tokens of documents one behind the other, each with the token that ends a text behind it."""
    assert tokenizer.eos_id is not None, "a trained tokenizer has a token that ends a text"
    for document in documents:
        for part in portions(document.text):
            yield tokenizer.encode(part, add_special_tokens=False)
        yield [tokenizer.eos_id]
