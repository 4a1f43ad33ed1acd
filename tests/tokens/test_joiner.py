import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from qkv.tokens.joiner import BYTE_OF_LETTER, level_bytes, mended
from small_tokenizers import BUILDERS, letters

SPELLINGS = {"byte_level": "byte-level", "llama": "byte-fallback", "gemma": "byte-fallback"}


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_spelling_is_found_from_the_decoder(kind: str):
    assert BUILDERS[kind]().joiner.spelling == SPELLINGS.get(kind, "text")


def test_the_byte_alphabet_is_the_one_of_byte_level_tokenizers():
    assert set(BYTE_OF_LETTER) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF_LETTER.values()) == list(range(256))


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_byte_level_letters_read_as_the_bytes_they_spell(text: str):
    assert level_bytes(letters(text)) == text.encode()


def test_an_added_token_outside_the_alphabet_is_its_own_text():
    assert level_bytes("你好") == "你好".encode()


@pytest.mark.parametrize(
    ("tokens", "after"),
    [
        (["<0xE4>", "<0xB8>"], ["\ufffd"]),
        (["<0x80>", "<0x80>"], ["\ufffd", "\ufffd"]),
        (["<0xE4>", "a", "<0xB8>"], ["\ufffd", "a", "\ufffd"]),
        (["<0x41>", "<0xc4>", "<0x8f>"], ["<0x41>", "<0xC4>", "<0x8F>"]),
        (["<0xEF>", "<0xBF>", "<0xBD>"], ["\ufffd"]),
    ],
)
def test_only_bytes_that_are_no_character_are_mended(tokens: list[str], after: list[str]):
    assert list(mended(tokens)) == after
