import json
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import CheckpointError, OptionError, PromptError
from qkv.tokens import Tokenizer
from small_tokenizers import byte_level, llama, word_list


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a tokenizer.json and nothing else."""
    llama().core.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), "utf-8")


def test_what_tokenizer_json_puts_around_a_text_is_the_truth(folder: Path):
    write_json(folder / "tokenizer_config.json", {"add_bos_token": False, "bos_token": "<s>"})
    tokenizer = Tokenizer.from_folder(folder)
    the = llama().core.get_vocab()["▁the"]
    assert tokenizer.id_of("▁the") == the
    assert tokenizer.encode("the") == [1, the]
    assert tokenizer.encode("the", add_special_tokens=False) == [the]
    assert tokenizer.decode([1, the]) == "the"
    assert tokenizer.decode([1, the], skip_special_tokens=False) == "<s> the"


def test_text_comes_back_from_its_ids():
    text = "the thé 世界 😀 \ufffd  </ x"
    for tokenizer in [byte_level(), llama()]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_may_be_text_or_objects(folder: Path):
    write_json(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_special_tokens_map_fills_in_what_the_config_does_not_name(folder: Path):
    write_json(folder / "tokenizer_config.json", {"bos_token": None})
    write_json(
        folder / "special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>", "x_token": ["y"]}
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 2)


def test_a_special_token_that_is_not_in_the_vocabulary_has_no_id(folder: Path):
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|gone|>"})
    assert Tokenizer.from_folder(folder).eos_id is None


def test_a_folder_with_tokenizer_json_alone_is_enough(folder: Path):
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.chat_templates) == (None, None, {})
    assert tokenizer.vocab_size == llama().vocab_size == 3 + 256 + 36 + 2


def test_truncation_and_padding_are_not_taken_over(tmp_path: Path):
    core = llama().core
    core.enable_truncation(5)
    core.enable_padding(length=31)
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert len(tokenizer.encode("the the the the the the the")) == 1 + 7


def test_the_chat_template_file_goes_before_the_config(folder: Path):
    write_json(folder / "tokenizer_config.json", {"chat_template": "config", "eos_token": "</s>"})
    assert Tokenizer.from_folder(folder).render_chat([]) == "config"
    (folder / "chat_template.jinja").write_text("{{ eos_token }} é", "utf-8")
    assert Tokenizer.from_folder(folder).render_chat([]) == "</s> é"


def test_chat_templates_may_be_a_list_of_names(folder: Path):
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": templates})
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.render_chat([]), tokenizer.render_chat([], tools=[1])) == ("plain", "tools")


def test_a_missing_tokenizer_is_named_with_what_to_try(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json, found no such file; copy it") as failure:
        Tokenizer.from_folder(tmp_path)
    assert str(tmp_path) in str(failure.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"version": "1.0", "model": '),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer.json", b""),
        ("tokenizer_config.json", b'{"bos_token": \n'),
        ("tokenizer_config.json", b""),
        ("tokenizer_config.json", b"[1, 2]"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b'{"chat_template": 3}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("special_tokens_map.json", b"<html>"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(folder: Path, name: str, content: bytes):
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} cannot be read .*; copy it again") as failure:
        Tokenizer.from_folder(folder)
    assert "\n" not in str(failure.value)


def test_an_id_beyond_the_vocabulary_has_no_text():
    tokenizer = word_list()
    assert tokenizer.decode([tokenizer.vocab_size, *tokenizer.encode("the cat"), 10**6]) == "the cat"


def test_a_negative_id_is_refused():
    with pytest.raises(OptionError, match="got -1"):
        llama().decode([5, -1])


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(PromptError, match="position 4"):
        llama().encode("the \ud83d")


def test_no_ids_are_no_text():
    assert (llama().decode([]), byte_level().decode([]), llama().stream().finish()) == ("", "", "")


def test_a_real_tokenizer_is_read_from_its_folder(stories260k: Path):
    tokenizer = Tokenizer.from_folder(stories260k)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (512, 1, 2)
    assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]
