"""What a user of `qkv tokens` is promised: where the tokens go, and what is said twice."""

import json
import sys

import pytest

import tiny_models
from qkv.app.cli.main import main
from qkv.models.shipped import folder_of


@pytest.fixture
def qkv(monkeypatch, capsys):
    """Run the command line; return exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def folder(tmp_path):
    """A model folder whose tokenizer takes each byte for a token."""
    model = tiny_models.write_model(tmp_path / "model", "llama", vocab_size=263)
    return tiny_models.write_tokenizer(model)


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    system = {"role": "system", "content": "Answer in one word, whatever is asked."}
    asked = [[system, {"role": "user", "content": ask}] for ask in ("1+1", "Why?")]
    path.write_text("".join(json.dumps(messages) + "\n" for messages in asked))
    return path


def test_parts_and_shared_prefixes_are_counted(qkv, folder, chats):
    status, out, err = qkv("tokens", chats, "--model", folder, "--json")
    record = json.loads(out)
    assert (status, err) == (0, "")
    # 38 bytes of system and 3 or 4 of user, joined by a line end each where there is no template.
    assert record["by_part"] == {"system": 76, "user": 7, "template": 2}
    assert record["tokens"] == 85
    assert record["shared_tokens"] == 32  # two pages of 16
    assert record["cache_bytes_per_token"] == 2 * 3 * 2 * 14 * 2
    assert record["cache_bytes_saved"] == 32 * 2 * 3 * 2 * 14 * 2


def test_the_models_that_come_with_qkv_are_known_by_name(qkv, chats):
    verse = folder_of("verse")
    assert qkv("tokens", chats, "--model", "verse") == qkv("tokens", chats, "--model", verse)
    _, by_name, _ = qkv("tokens", chats, "--model", verse, "--cache-of", "siblings/gqa")
    _, by_path, _ = qkv("tokens", chats, "--model", verse, "--cache-of", folder_of("siblings/gqa"))
    assert by_name == by_path and "counted with" not in by_name


def test_without_a_model_it_says_whose_tokenizer_counts(qkv, chats):
    status, out, _ = qkv("tokens", chats)
    assert status == 0 and out.endswith("\ncounted with verse's tokenizer; give --model for another\n")
    record = json.loads(qkv("tokens", chats, "--json")[1])
    assert (record["tokenizer"], record["cache_bytes_per_token"]) == ("verse", None)
    named = json.loads(qkv("tokens", chats, "--model", "verse", "--json")[1])
    assert named["tokens"] == record["tokens"] and named["cache_bytes_per_token"] > 0


def test_the_table_fits_in_80_columns(qkv, folder, chats):
    _, out, _ = qkv("tokens", chats, "--model", folder, "--cache-of", "llama-3-8b", "--page-size", 8)
    assert out.splitlines()[0] == "2 requests, 85 tokens"
    assert "4.00 MiB (4.19 MB) saved" in out  # 32 tokens of 131,072 bytes
    assert max(map(len, out.splitlines())) <= 80


def test_a_repeat_inside_a_prompt_is_counted(qkv, folder, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("the same forty letters in the same order" * 2)
    _, out, _ = qkv("tokens", path, "--model", folder)
    line = next(line for line in out.splitlines() if "repeated" in line)
    assert line.split()[4:7] == ["40", "50.0", "%"]


def test_a_mistake_is_one_clear_line(qkv, folder, tmp_path, chats):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for arguments, said in [
        (("tokens", tmp_path / "missing.txt", "--model", folder), "cannot be read"),
        (("tokens", empty, "--model", folder), "no prompt"),
        (("tokens", chats, "--model", tmp_path), "tokenizer"),
        (("tokens", chats, "--model", folder, "--cache-of", "nothing"), "no model known"),
    ]:
        status, out, err = qkv(*arguments)
        assert (status, out) == (2, "") and said in err and err.count("\n") == 1
