"""Hand-worked streams; what holds for every tokenizer is in contracts/test_stream_decoding.py."""

from pathlib import Path

import pytest
from tokenizers import decoders

from qkv.tokens import StreamDecoder, Tokenizer
from qkv.tokens.joiner import BYTE_OF_LETTER, TokenJoiner
from small_tokenizers import BUILDERS, byte_level, llama

REPLACEMENT = "\ufffd"


def byte_level_chunks(pieces: list[str]) -> list[str]:
    """Stream tokens given as hexadecimal bytes through a byte-level decoder; the last chunk is the end's."""
    letter_of = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}
    tokens = ["".join(letter_of[byte] for byte in bytes.fromhex(piece)) for piece in pieces]
    return chunks_of(tokens, TokenJoiner(decoders.ByteLevel()))


def byte_fallback_chunks(pieces: list[str]) -> list[str]:
    """Stream one token per hexadecimal byte, or one of text, through a Llama-style decoder."""
    tokens = [piece if piece.startswith("▁") else f"<0x{piece}>" for piece in pieces]
    return chunks_of(tokens, llama().joiner)


def chunks_of(tokens: list[str], joiner: TokenJoiner) -> list[str]:
    stream = StreamDecoder(dict(enumerate(tokens)).get, joiner)
    chunks = [*map(stream.push, range(len(tokens))), stream.finish()]
    assert "".join(chunks) == joiner.join(tokens)
    return chunks


@pytest.mark.parametrize(
    ("pieces", "chunks"),
    [
        (["F0 9F", "98 80"], ["", "😀", ""]),
        (["C4", "8F"], ["", "ď", ""]),
        (["EC 82", "BC"], ["", "삼", ""]),
        (["41", "20", "E4 B8 96", "61"], ["A", " ", "世", "a", ""]),
        (["41", "20", "E4", "B8", "96", "61"], ["A", " ", "", "", "世", "a", ""]),
        (["41 F0 9F", "98 80 42 E4", "B8 96"], ["A", "😀B", "世", ""]),
        (["41", "F0", "", "9F", "", "", "", "98", "80"], ["A", "", "", "", "", "", "", "", "😀", ""]),
    ],
)
def test_a_byte_level_character_comes_out_whole_and_once(pieces: list[str], chunks: list[str]):
    assert byte_level_chunks(pieces) == chunks


@pytest.mark.parametrize(
    ("pieces", "chunks"),
    [
        (["F0", "9F", "98", "80"], ["", "", "", "😀", ""]),
        (["▁A", "▁", "E4", "B8", "96", "61"], ["A", " ", "", "", "世", "a", ""]),
        (["E4", "B8", "96", "E4", "B8", "96"], ["", "", "世", "", "", "世", ""]),
    ],
)
def test_a_byte_fallback_character_comes_out_whole_and_once(pieces: list[str], chunks: list[str]):
    assert byte_fallback_chunks(pieces) == chunks


@pytest.mark.parametrize("half", [["C4"], ["F0", "9F"], ["F0", "9F", "98"], ["E4", "B8"]])
def test_half_a_character_at_the_end_is_one_replacement_character(half: list[str]):
    withheld = [""] * len(half)
    assert byte_level_chunks(["41", *half]) == ["A", *withheld, REPLACEMENT]
    assert byte_level_chunks(["41", "".join(half)]) == ["A", "", REPLACEMENT]
    assert byte_fallback_chunks(["▁A", *half]) == ["A", *withheld, REPLACEMENT]


def test_a_bad_byte_leaves_the_characters_around_it_whole():
    assert byte_fallback_chunks(["E4", "B8", "96", "80", "C4", "8F"]) == [
        "",
        "",
        "世",
        REPLACEMENT,
        "",
        "ď",
        "",
    ]
    assert byte_level_chunks(["E4 B8 96", "80", "C4", "8F"]) == ["世", REPLACEMENT, "", "ď", ""]


def test_half_a_character_comes_out_when_text_follows_it():
    assert byte_fallback_chunks(["▁A", "E4", "B8", "▁b"]) == ["A", "", "", f"{REPLACEMENT} b", ""]
    assert byte_fallback_chunks(["E4", "▁b", "B8"]) == ["", f"{REPLACEMENT} b", REPLACEMENT, ""]
    assert byte_level_chunks(["41", "E4 B8", "62"]) == ["A", "", f"{REPLACEMENT}b", ""]


def test_a_replacement_character_in_the_text_is_shown_at_once():
    assert byte_level_chunks(["EF BF BD", "EF BF", "BD"]) == [REPLACEMENT, "", REPLACEMENT, ""]
    assert byte_fallback_chunks(["EF", "BF", "BD"]) == ["", "", REPLACEMENT, ""]


def test_only_the_first_space_of_a_text_is_stripped():
    assert byte_fallback_chunks(["▁the", "▁the"]) == ["the", " the", ""]
    assert byte_fallback_chunks(["▁", "▁the"]) == ["", " the", ""]
    assert byte_fallback_chunks(["20", "20", "▁the"]) == ["", " ", " the", ""]


def test_a_token_without_text_leaves_the_space_after_it_alone():
    assert chunks_of(["▁the", "", "", "", "▁the"], llama().joiner) == ["the", "", "", "", " the", ""]
    assert chunks_of(["", "▁the", "▁the"], llama().joiner) == ["", "the", " the", ""]


def test_a_finished_stream_strips_the_first_space_of_the_next_text():
    stream = StreamDecoder(["▁the", ""].__getitem__, llama().joiner)
    assert [stream.push(0), stream.push(0), stream.finish()] == ["the", " the", ""]
    assert [stream.push(1), stream.push(0), stream.finish()] == ["", "the", ""]


def test_a_special_token_inside_a_character_does_not_break_it():
    tokenizer = llama()
    ids = [tokenizer.id_of(token) for token in ["<s>", "<0xC4>", "</s>", "<0x8F>", "<s>", "▁the"]]
    stream = tokenizer.stream()
    assert [stream.push(token_id) for token_id in ids if token_id is not None] == [
        "",
        "",
        "",
        "ď",
        "",
        " the",
    ]


def test_special_tokens_are_streamed_when_asked_for():
    tokenizer = byte_level()
    stream = tokenizer.stream(skip_special_tokens=False)
    assert [stream.push(token_id) for token_id in tokenizer.encode("the</s>")] == ["the", "</s>"]


def test_a_first_word_that_spells_like_the_anchor_is_a_word():
    assert chunks_of(["▁anchor", "▁the"], llama().joiner) == ["anchor", " the", ""]
    assert chunks_of(["anchor", "▁the"], llama().joiner) == ["anchor", " the", ""]


def test_the_end_of_word_mark_of_the_last_word_is_no_space():
    joiner = BUILDERS["end_of_word"]().joiner
    assert chunks_of(["a", "b</w>", "a</w>"], joiner) == ["a", "b", " a", ""]


def test_a_real_tokenizer_streams_what_it_decodes(stories260k: Path):
    tokenizer = Tokenizer.from_folder(stories260k)
    text = "Once upon a time, 世界 😀 \ufffd!"
    stream = tokenizer.stream()
    chunks = [stream.push(token_id) for token_id in tokenizer.encode(text)]
    assert "".join(chunks) == text
    assert [chunk for chunk in chunks if not chunk.isascii()] == ["世", "界", "😀", "\ufffd"]
