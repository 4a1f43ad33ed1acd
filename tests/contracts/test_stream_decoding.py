"""What every tokenizer promises about text that arrives token by token."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.tokens import StreamDecoder, Tokenizer
from qkv.tokens.joiner import TokenJoiner
from small_tokenizers import BUILDERS

REPLACEMENT = "\ufffd"

Ids = st.SearchStrategy[list[int]]
texts = st.text(st.characters(codec="utf-8")) | st.text("the \ufffd▁世😀a.", max_size=40)


@pytest.fixture(scope="module", params=[*BUILDERS, "stories260k"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param in BUILDERS:
        return BUILDERS[request.param]()
    folder: Path = request.getfixturevalue("stories260k")
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def any_ids(tokenizer: Tokenizer) -> Ids:
    """Ids of any token, some of them beyond the vocabulary, often bytes next to each other."""
    tokens = {tokenizer.core.id_to_token(n) or "": n for n in range(tokenizer.vocab_size)}
    bytelike = [n for token, n in tokens.items() if tokenizer.joiner.bytes_of(token)]
    anywhere = st.integers(0, tokenizer.vocab_size + 2)
    return st.lists(anywhere | st.sampled_from(bytelike) if bytelike else anywhere, max_size=40)


def chunks_of(stream: StreamDecoder, ids: Iterable[int]) -> list[str]:
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


@given(data=st.data(), skip=st.booleans())
def test_streamed_ids_are_the_decoded_ids(
    tokenizer: Tokenizer, any_ids: Ids, data: st.DataObject, skip: bool
):
    ids = data.draw(any_ids)
    chunks = chunks_of(tokenizer.stream(skip_special_tokens=skip), ids)
    assert "".join(chunks) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=texts)
def test_streamed_text_is_the_decoded_text(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text)
    assert "".join(chunks_of(tokenizer.stream(), ids)) == tokenizer.decode(ids)


@given(data=st.data())
def test_only_an_unfinished_character_is_withheld(tokenizer: Tokenizer, any_ids: Ids, data: st.DataObject):
    ids = data.draw(any_ids)
    stream, shown = tokenizer.stream(), ""
    for count, token_id in enumerate(ids, 1):
        shown += stream.push(token_id)
        whole = tokenizer.decode(ids[:count])
        assert whole in (shown, shown + REPLACEMENT)
    assert stream.finish() in ("", REPLACEMENT)


@given(data=st.data())
def test_what_was_shown_never_changes(tokenizer: Tokenizer, any_ids: Ids, data: st.DataObject):
    first, later = data.draw(any_ids), data.draw(any_ids)
    stream = tokenizer.stream()
    shown = "".join(stream.push(token_id) for token_id in first)
    assert tokenizer.decode(first + later).startswith(shown)


@given(text=texts)
def test_text_decodes_as_the_tokenizers_library_decodes_it(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.core.decode(ids)


@given(data=st.data(), skip=st.booleans())
def test_ids_without_broken_characters_decode_as_the_library_decodes_them(
    tokenizer: Tokenizer, any_ids: Ids, data: st.DataObject, skip: bool
):
    ids = data.draw(any_ids)
    by_library = tokenizer.core.decode(ids, skip_special_tokens=skip)
    if REPLACEMENT not in by_library or tokenizer.joiner.spelling != "byte-fallback":
        assert tokenizer.decode(ids, skip_special_tokens=skip) == by_library


@given(data=st.data())
def test_a_finished_stream_begins_anew(tokenizer: Tokenizer, any_ids: Ids, data: st.DataObject):
    first, second = data.draw(any_ids), data.draw(any_ids)
    stream = tokenizer.stream()
    chunks_of(stream, first)
    assert chunks_of(stream, second) == chunks_of(tokenizer.stream(), second)


@dataclasses.dataclass(frozen=True)
class MeasuredJoiner(TokenJoiner):
    """A joiner that notes how many tokens it is given to join."""

    num_tokens: list[int] = dataclasses.field(default_factory=list)

    def join(self, tokens: Sequence[str]) -> str:
        self.num_tokens.append(len(tokens))
        return super().join(tokens)


def test_the_cost_of_a_token_does_not_grow_with_the_text(tokenizer: Tokenizer):
    joiner = MeasuredJoiner(tokenizer.core.decoder)
    stream = StreamDecoder(tokenizer.token_of, joiner)
    ids = [token_id for token_id in range(tokenizer.vocab_size) for _ in range(7)]
    joins_per_token = []
    for token_id in ids:
        before = len(joiner.num_tokens)
        stream.push(token_id)
        joins_per_token.append(len(joiner.num_tokens) - before)
    assert max(joins_per_token) == 2
    assert max(joiner.num_tokens) <= 5
