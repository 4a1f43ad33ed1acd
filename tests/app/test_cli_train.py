"""What a user of `qkv train` is promised: a model that generates, a run that goes on, mistakes in a line."""

import json
import sys

import numpy as np
import pytest

from qkv.app.cli.main import main

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "she", "had", "her", "hat")
SIZES = ("--vocab", 271, "--context", 16, "--batch", 2, "--steps", 6)


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
def text(tmp_path):
    generator = np.random.default_rng(1)
    path = tmp_path / "cats.txt"
    path.write_text("".join(" ".join(generator.choice(WORDS, 5)) + "\n" for _ in range(300)))
    return path


def test_the_model_generates(qkv, text, tmp_path):
    folder = tmp_path / "a model"
    status, out, err = qkv("train", text, "--out", folder, *SIZES, "--sample-every", 4, "--prompt", "the cat")
    assert status == 0 and out.startswith("the cat")
    assert "step 4 ·" in err and "step 6 ·" in err and "step 5 ·" not in err
    assert "bits per byte" in err and f"--model '{folder}'" in err
    status, out, _ = qkv("generate", "the", "--model", folder, "--max-tokens", 5)
    assert status == 0 and out.startswith("the")
    card = (folder / "README.md").read_text()
    assert f"qkv train {text} --out '{folder}' --vocab 271" in card
    assert "6 steps of 2 windows of 16 tokens" in card


def test_the_figures_are_one_json_object(qkv, text, tmp_path):
    status, out, _ = qkv(
        "train", text, "--out", tmp_path / "m", *SIZES, "--json", "--plot", tmp_path / "l.svg"
    )
    record = json.loads(out)
    assert status == 0 and record["steps"] == 6 and record["folder"] == str(tmp_path / "m")
    assert 0 < record["bits_per_byte"] < record["nats_per_token"] < 6
    assert (tmp_path / "l.svg").read_text().startswith("<?xml")


def test_the_same_command_again_goes_on_and_gives_the_same(qkv, text, tmp_path, monkeypatch):
    from qkv.app.cli.train_display import Display

    arguments = ("train", text, "--out", tmp_path / "m", *SIZES, "--checkpoint-every", 2, "--json")
    seen, real = [], Display.step

    def interrupted(self, step):
        seen.append(step.step)
        if len(seen) == 5:
            raise KeyboardInterrupt
        real(self, step)

    monkeypatch.setattr(Display, "step", interrupted)
    status, out, err = qkv(*arguments)
    assert (status, out) == (130, "") and "run the same command to go on" in err
    status, resumed, _ = qkv(*arguments)
    assert status == 0 and seen == [1, 2, 3, 4, 5, 5, 6]
    _, straight, _ = qkv(*arguments[:3], tmp_path / "other", *arguments[4:])
    one, other = json.loads(resumed), json.loads(straight)
    assert [one[name] for name in ("last_loss", "bits_per_byte", "sample")] == [
        other[name] for name in ("last_loss", "bits_per_byte", "sample")
    ]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("m", "other")]
    assert weights[0] == weights[1]


def test_more_steps_are_taken_only_when_changes_are_accepted(qkv, text, tmp_path):
    first = ("train", text, "--out", tmp_path / "m", *SIZES, "--json")
    assert qkv(*first)[0] == 0
    status, _, err = qkv(*first, "--steps", 8)
    assert status == 2 and "steps 6, not 8" in err.splitlines()[-1]
    status, out, _ = qkv(*first, "--steps", 8, "--accept-changes")
    assert status == 0 and json.loads(out)["steps"] == 8


def test_files_are_held_out_by_name(qkv, text, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("one", "two"):
        (tmp_path / "texts" / f"{name}.txt").write_text(name + text.read_text())
    status, _, _ = qkv("train", tmp_path / "texts", "--out", tmp_path / "m", *SIZES, "--hold-out", "two")
    assert status == 0
    assert "tokens (two)" in (tmp_path / "m" / "README.md").read_text()


def test_a_mistake_is_one_clear_line(qkv, text, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("a b\n" * 9)
    (tmp_path / "file").write_text("")
    (tmp_path / "line.txt").write_text("one line and no more")
    out = ("--out", tmp_path / "m")
    for arguments, said in [
        ((tmp_path / "missing.txt", *out), "nothing at"),
        ((tmp_path / "empty.txt", *out), "an empty file"),
        ((tmp_path / "short.txt", *out), "vocabulary of 512 tokens"),
        ((text, *out, "--vocab", 271, "--context", 9999), "more than 9999 tokens, a window"),
        ((text, *out, "--preset", "huge"), "a preset of tiny, small"),
        ((text, *out, "--stored", "int4"), "--stored must be bfloat16"),
        ((text, *out, "--hold-out", "7"), "between 0 and 1"),
        ((text, *out, "--hold-out", "0.1", "--hold-out", "cats"), "--hold-out takes one share"),
        ((text, *out, "--hold-out", "dogs"), "no document 'dogs'"),
        ((text, *out, "--plot", tmp_path / "no" / "loss.png"), "--plot cannot write"),
        ((text, *out, "--plot", tmp_path / "loss.xyz"), "--plot must be a file ending in"),
        ((text, *out, "--learning-rate", "-1"), "a learning rate above 0"),
        ((tmp_path / "line.txt", *out), "got too little: 20 bytes in 1 line"),
        ((tmp_path / "missing.txt", "--out", tmp_path / "file"), "file cannot be a folder"),
        ((tmp_path / "missing.txt", "--out", tmp_path / "file" / "m"), "file is a file; try another"),
        ((tmp_path / "missing.txt", *out, "--vocab", 256), "a vocabulary of 257 to 65536 tokens, got 256"),
        ((tmp_path / "missing.txt", *out, "--vocab", 65537), "257 to 65536 tokens, got 65537"),
    ]:
        status, printed, err = qkv("train", *arguments)
        last = err.splitlines()[-1]
        assert (status, printed) == (2, "") and last.startswith("error: ") and said in last
        assert len(err.splitlines()) <= 2  # at most what it was about to do, and the error
    assert not (tmp_path / "m" / "model.safetensors").exists()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # NumPy says so; the kernels do not
def test_a_loss_that_is_no_number_says_what_to_lower(qkv, text, tmp_path):
    status, out, err = qkv("train", text, "--out", tmp_path / "m", *SIZES, "--learning-rate", 1e30)
    last = err.splitlines()[-1]
    assert (status, out) == (2, "")
    assert last.startswith("error: the l") and "nan at step 2" in last and "lower the learning rate" in last
