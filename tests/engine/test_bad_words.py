"""Words to avoid: a text is spelled as the tokenizer spells it, and ids are ids."""

import pytest

import small_tokenizers
from qkv.engine import generate
from qkv.engine.bad_words import spell
from qkv.errors import OptionError
from qkv.models import load
from tiny_models import write_model, write_tokenizer

BYTE_LEVEL = small_tokenizers.byte_level()


def test_a_word_is_ruled_out_as_it_stands_and_behind_a_space():
    alone, behind = spell(["ab"], BYTE_LEVEL)
    assert (BYTE_LEVEL.decode(alone), BYTE_LEVEL.decode(behind)) == ("ab", " ab")


def test_words_that_are_spelled_alike_are_one():
    assert len(spell(["ab", "ab", list(BYTE_LEVEL.encode("ab", add_special_tokens=False))], BYTE_LEVEL)) == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [("ab", r"not one text"), ([""], "at least one token"), ([5], "not 5"), ([["ab"]], "bad_words")],
    ids=str,
)
def test_what_is_no_word_is_refused(words, named, tmp_path):
    model = load(write_tokenizer(write_model(tmp_path, "llama", vocab_size=263)))
    with pytest.raises(OptionError, match=named):
        generate(model, "a", bad_words=words)


def test_a_word_of_text_needs_a_tokenizer():
    with pytest.raises(OptionError, match=r"no tokenizer\.json"):
        spell(["ab"], None)


def test_a_text_does_not_contain_a_word_that_it_would_have(tmp_path):
    model = load(write_tokenizer(write_model(tmp_path, "llama", vocab_size=263)))
    whole = generate(model, "ab", max_tokens=9)
    text = "".join(whole)
    word = next(letter for letter in text if letter.isalnum() and letter.isascii())
    assert word not in "".join(generate(model, "ab", max_tokens=9, bad_words=[word]))
