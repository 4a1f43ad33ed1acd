from pathlib import Path

import numpy as np
import pytest

from qkv.errors import CheckpointError, OptionError
from qkv.tokens.bpe import train_bpe
from qkv.training.text import Document
from qkv.training.token_file import open_tokens, tokens_of, write_tokens


def test_tokens_come_back_from_a_map_of_the_file(tmp_path: Path):
    path = tmp_path / "tokens"
    write_tokens(path, [[1, 65535], [], [258]])
    assert path.read_bytes() == b"\x01\x00\xff\xff\x02\x01"
    tokens = open_tokens(path)
    assert isinstance(tokens, np.memmap) and tokens.tolist() == [1, 65535, 258]
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 3


def test_no_tokens_are_an_empty_array(tmp_path: Path):
    write_tokens(tmp_path / "tokens", [])
    assert open_tokens(tmp_path / "tokens").shape == (0,)


@pytest.mark.parametrize("wrong", [65536, -1])
def test_an_id_that_does_not_fit_leaves_the_older_file(tmp_path: Path, wrong: int):
    path = tmp_path / "tokens"
    write_tokens(path, [[7]])
    with pytest.raises(OptionError, match="fit into two bytes"):
        write_tokens(path, [[1], [wrong]])
    assert open_tokens(path).tolist() == [7]
    assert [file.name for file in tmp_path.iterdir()] == ["tokens"]


def test_a_file_that_is_missing_or_cut_short_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="tokens cannot be read: No such file"):
        open_tokens(tmp_path / "tokens")
    (tmp_path / "tokens").write_bytes(b"\x01\x00\x02")
    with pytest.raises(CheckpointError, match="3 bytes are no whole tokens"):
        open_tokens(tmp_path / "tokens")


def test_each_document_is_followed_by_the_token_that_ends_it():
    tokenizer = train_bpe(["ab ab"], 258)
    documents = [Document("one", "ab\n" * 3), Document("two", "é")]
    ids = [token_id for part in tokens_of(documents, tokenizer) for token_id in part]
    assert [n for n, token_id in enumerate(ids) if token_id == 0] == [6, 9]
    assert tokenizer.decode(ids) == "ab\nab\nab\né"
