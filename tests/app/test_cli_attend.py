"""What a user of `qkv attend` is promised: maps in the terminal, a file, one clear line for a mistake."""

import sys

import pytest

from qkv.app.cli.main import main
from tiny_models import VOCAB_SIZE_WITH_TOKENIZER, write_model, write_tokenizer

HAMLET = "To be, or not to be, that is the question"


@pytest.fixture
def qkv(monkeypatch, capsys):
    """Run the command line in 80 columns; return exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", "attend", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return write_tokenizer(write_model(folder, "llama", vocab_size=VOCAB_SIZE_WITH_TOKENIZER))


def test_the_model_that_comes_with_qkv_shows_what_its_heads_do(qkv):
    status, out, _ = qkv(HAMLET)
    assert status == 0 and max(map(len, out.splitlines())) <= 80
    assert "verse · 14 tokens · 6 layers of 6 heads, 3 to each of 2 key/value heads" in out
    for word in ("k/v 1", "layer 5", "previous", "the token before", "first", "diffuse", "estion"):
        assert word in out


def test_one_head_is_shown_alone(qkv):
    status, out, _ = qkv(HAMLET, "--layer", 5, "--head", 5)
    assert status == 0 and "layer 5, head 5: previous" in out
    assert "even attention" in out and "layer 0" not in out


def test_a_model_of_ones_own_is_called_by_its_folder(qkv, folder):
    status, out, _ = qkv("to be or not", "--model", folder)
    assert status == 0 and out.startswith(f"{folder.name} · 13 tokens")


def test_a_page_is_written_and_named(qkv, folder, tmp_path):
    file = tmp_path / "heads.html"
    status, out, err = qkv("to be </script>", "--model", folder, "--out", file, "--layer", 1, "--head", 2)
    assert (status, out) == (0, "") and str(file) in err
    assert '"chosen": [1, 2]' in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "begins"), [("heads.png", b"\x89PNG"), ("heads.svg", b"<?xml")])
def test_a_picture_is_written(qkv, folder, tmp_path, name, begins):
    pytest.importorskip("matplotlib", reason="needs the extra: pip install 'qkv[viz]'")
    assert qkv("to be", "--model", folder, "--out", tmp_path / name)[0] == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("",), "expected a text to look at, got an empty one"),
        (("x" * 600,), "tokens, the model's context holds 97; shorten it"),
        (("x", "--layer", "1"), "--layer and --head name one head together"),
        (("x", "--layer", "3", "--head", "0"), "layer must be from 0 to 2 for this model, not 3"),
        (("x", "--layer", "0", "--head", "-1"), "head must be from 0 to 5 for this model, not -1"),
        (
            ("x", "--out", "heads.pdf"),
            "cannot write heads.pdf: expected a file that ends in .html, .png, .svg",
        ),
        (("x", "--out", "no/such/heads.png"), "it must be a file in a folder that exists"),
        (("x", "--layer", "9", "--head", "0", "--out", "heads.html"), "layer must be from 0 to 2"),
    ],
)
def test_a_mistake_is_told_in_one_line(qkv, folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = qkv(*arguments, "--model", folder)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("error: ") and message in err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_is_refused_before_the_model_is_loaded(qkv):
    status, _, err = qkv("x", "--model", "no/such/model", "--out", "heads.pdf")
    assert status == 2 and "heads.pdf" in err
