"""A view of attention: its tokens can be read, it goes into files, and it shows itself in a notebook."""

import html
from io import StringIO

import pytest
from rich.console import Console
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models

import small_tokenizers
from attention_views import view_of
from qkv.errors import OptionError, PromptError
from qkv.lab.random_models import random_llama
from qkv.models import load
from qkv.tokens import Tokenizer
from qkv.viz.attention import show_attention, token_labels, visible
from tiny_models import VOCAB_SIZE_WITH_TOKENIZER, write_model, write_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(write_model(folder, "llama", vocab_size=VOCAB_SIZE_WITH_TOKENIZER))
    return load(folder)


def test_a_text_is_looked_at_with_its_own_tokens(model):
    view = show_attention(model, "to be or", "tiny")
    assert view.tokens == ("<s>", "t", "o", "·", "b", "e", "·", "o", "r")
    assert view.title == "tiny · 9 tokens · 3 layers of 6 heads, 3 to each of 2 key/value heads"
    assert view.maps.weights.shape == (3, 6, 9, 9)
    assert view.head(2, 5).q.shape == (9, 14)


def test_every_character_of_a_token_can_be_seen():
    assert visible(" a\tb\r\n") == "·a⇥b␍↵"
    assert visible("\x1b[31m\x00") == "\\x1b[31m\\x00"
    assert visible("世 é") == "世·é"
    assert visible("\u202e") == "\\u202e"  # would turn the line around


def test_a_token_that_does_not_end_a_character_is_shown_as_bytes():
    assert labels_of(small_tokenizers.byte_level(), "ð", "Ł", "Ļ", "Ĥ", "a") == (
        *("<F0>", "<9F>", "<99>", "🙂", "a"),
    )
    assert labels_of(small_tokenizers.llama(), "<0xC3>", "<0xA9>") == ("<C3>", "é")


def test_a_token_that_ends_one_character_and_begins_another_shows_both():
    core = Core(models.WordLevel({"Ã": 0, "©xä¸": 1, "ĸ": 2, "?": 3}, unk_token="?"))
    core.decoder = decoders.ByteLevel()
    assert token_labels(Tokenizer(core), [0, 1, 2]) == ("<C3>", "éx<E4><B8>", "世")


def test_a_character_that_is_never_ended_is_bytes_and_what_follows_shows_that():
    assert labels_of(small_tokenizers.byte_level(), "ð", "a", "Ł") == ("<F0>", "\ufffda", "\ufffd")


def labels_of(tokenizer, *tokens):
    return token_labels(tokenizer, [tokenizer.id_of(token) for token in tokens])


def test_special_tokens_have_their_names():
    tokenizer = small_tokenizers.llama()
    assert token_labels(tokenizer, tokenizer.encode("the the")) == ("<s>", "·the", "·the")


@pytest.mark.parametrize(
    ("text", "message"), [("", "an empty one"), ("x" * 97, "98 tokens, the model's context holds 97")]
)
def test_texts_that_cannot_be_looked_at_are_refused(model, text, message):
    with pytest.raises(PromptError, match=message):
        show_attention(model, text)


def test_a_model_without_a_tokenizer_is_refused():
    import numpy as np

    mute = random_llama(np.random.default_rng(0), E=12, L=1, H=2, G=1, context_length=17, V=7)
    with pytest.raises(PromptError, match=r"no tokenizer\.json"):
        show_attention(mute, "text")


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    shown = view_of()._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"') and shown.count("<") == 2
    inside = html.unescape(shown.split('srcdoc="')[1].split('"')[0])
    assert inside.startswith("<!doctype html>") and inside.endswith("</html>")


def test_a_console_prints_all_of_it():
    written = StringIO()
    Console(file=written, width=80).print(view_of())
    assert "made-up · 23 tokens" in written.getvalue() and "layer 2" in written.getvalue()


def test_a_file_of_another_kind_or_in_no_folder_is_refused(tmp_path):
    for name, message in (
        ("heads.pdf", "expected a file that ends in .html, .png, .svg"),
        ("heads", "expected a file that ends in"),
        ("none/heads.svg", "a folder that exists"),
        ("dir.html", "it must be a file"),
    ):
        (tmp_path / "dir.html").mkdir(exist_ok=True)
        with pytest.raises(OptionError, match=message):
            view_of().save(tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def refuse(path, content):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    with pytest.raises(OptionError, match=r"cannot write .*heads\.html: Permission denied"):
        view_of().save(tmp_path / "heads.html")


def test_a_page_is_written_as_utf8(tmp_path):
    view_of().save(tmp_path / "heads.html", (2, 4))
    text = (tmp_path / "heads.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and '"chosen": [2, 4]' in text
