import json
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.tokens import Tokenizer
from qkv.tokens.bpe import END_OF_TEXT, LEAST_V, portions, tokenizer_files, train_bpe

VERSE = "The cat sat on the mat,\nthe hat sat on the cat.\n\n  The end\n" * 3
ODD = ["", "\n\n\n", " \n  x\n", "naïve 世界 😀\r\n\t\x00", "x" * 999, "  two  spaces  "]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe([VERSE], 271)


def test_it_has_as_many_tokens_as_asked_for(tokenizer: Tokenizer):
    assert tokenizer.vocab_size == 271
    assert tokenizer.bos_id == tokenizer.eos_id == 0
    assert tokenizer.token_of(0, skip_special_tokens=False) == END_OF_TEXT


def test_every_text_comes_back(tokenizer: Tokenizer):
    for text in [VERSE, *ODD]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode(text)[0] == 0
        assert 0 not in tokenizer.encode(text, add_special_tokens=False)


def test_every_line_end_is_a_token_of_its_own():
    """However often line ends follow each other: what is merged first is another pair."""
    tokenizer = train_bpe(["a\n\n\n  b \n" * 30], 258)
    [line_end] = tokenizer.encode("\n", add_special_tokens=False)
    spelled = [tokenizer.decode([token_id]) for token_id in range(1, 258)]
    assert spelled[-1] == " b" and [text for text in spelled if "\n" in text] == ["\n"]
    assert tokenizer.encode("a\n\n\nb \n", add_special_tokens=False).count(line_end) == 4


def test_the_commonest_neighbours_become_one(tokenizer: Tokenizer):
    assert len(tokenizer.encode("the", add_special_tokens=False)) == 1
    assert len(tokenizer.encode("qzx", add_special_tokens=False)) == 3


def test_the_same_texts_give_the_same_tokenizer_in_any_portions():
    whole = train_bpe([VERSE], 269).core.to_str()
    assert train_bpe([VERSE], 269).core.to_str() == whole
    assert train_bpe(VERSE.splitlines(keepends=True), 269).core.to_str() == whole


def test_portions_have_the_tokens_of_the_whole(tokenizer: Tokenizer):
    text = VERSE + "and no end" + "\n \n"
    for size in (1, 7, 10_000):
        parts = list(portions(text, size))
        assert "".join(parts) == text and all(len(part) >= size for part in parts[:-1])
        ids = [one for part in parts for one in tokenizer.encode(part, add_special_tokens=False)]
        assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_a_vocabulary_that_the_text_does_not_support_is_refused():
    with pytest.raises(OptionError, match=r"vocabulary of 300 tokens, got one that has 261 at most"):
        train_bpe(["abcde abcde"], 300)  # ab, abc, abcd, abcde: the space comes once
    assert train_bpe(["abcde abcde"], 261).vocab_size == 261
    with pytest.raises(OptionError, match="has 257 at most"):
        train_bpe([], 258)
    with pytest.raises(OptionError, match=f"V of at least {LEAST_V}"):
        train_bpe([VERSE], LEAST_V - 1)
    assert train_bpe([VERSE], LEAST_V).decode(train_bpe([VERSE], LEAST_V).encode("é")) == "é"


def test_what_is_saved_is_loaded_again(tokenizer: Tokenizer, tmp_path: Path):
    for name, text in tokenizer_files(tokenizer, context_length=97).items():
        (tmp_path / name).write_text(text, "utf-8")
    loaded = Tokenizer.from_folder(tmp_path)
    for text in [VERSE, *ODD, f"one{END_OF_TEXT}two"]:
        assert loaded.encode(text) == tokenizer.encode(text)
    assert (loaded.bos_id, loaded.eos_id) == (0, 0)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 97


def test_a_spelled_out_end_ends_a_text(tokenizer: Tokenizer):
    ids = tokenizer.encode(f"a{END_OF_TEXT}b", add_special_tokens=False)
    assert np.flatnonzero(np.array(ids) == 0).tolist() == [1]
