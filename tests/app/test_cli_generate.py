"""What a user of `qkv generate` is promised: text, one line about it, and one clear line for a mistake."""

import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny_models
from qkv import load
from qkv.app.cli.main import main
from qkv.engine import Generation, generate

COMPILING = "qkv: compiling kernels, once\n"
"""What the very first run on a machine says besides."""


@pytest.fixture
def folder(tmp_path):
    model = tiny_models.write_model(tmp_path / "model", "llama", vocab_size=263)
    return tiny_models.write_tokenizer(model)


@pytest.fixture
def qkv(monkeypatch, capsys):
    """Run the command line; return exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err.removeprefix(COMPILING)

    return run


def test_the_text_goes_to_stdout_and_one_line_about_it_to_stderr(qkv, folder):
    status, out, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 7)
    expected = "".join(generate(load(folder), "ab", max_tokens=7))
    assert (status, out) == (0, f"ab{expected}\n")
    assert err.count("\n") == 1
    assert re.match(r"3 \+ 7 tokens \(length\) · prefill [\d,]+ tokens/s, decode [\d,]+ tokens/s · KV ", err)


def test_the_kv_bytes_shown_are_those_of_the_formula(qkv, folder):
    # Of 3 + 7 tokens the last is never run: 9 of 16 slots. 3 layers, 2 key heads of 14, k and v, 4 bytes.
    _, _, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 7)
    bytes_of_16_slots = 2 * 3 * 2 * 14 * 4 * 16
    assert err.strip().endswith(
        f"KV {bytes_of_16_slots:,} bytes predicted = {bytes_of_16_slots:,} allocated for 9 tokens"
    )


def test_without_a_cache_the_text_is_the_same_and_no_bytes_are_named(qkv, folder):
    _, cached, _ = qkv("generate", "ab", "--model", folder, "--max-tokens", 9)
    status, uncached, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 9, "--no-cache")
    assert (status, uncached) == (0, cached)
    assert err.strip().endswith("no KV cache")


def test_compare_names_the_speed_up_and_that_the_text_is_the_same(qkv, folder):
    status, _, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 9, "--compare")
    lines = err.splitlines()
    assert status == 0
    assert lines[0].startswith("with cache")
    assert lines[1].startswith("without cache")
    assert re.fullmatch(r"the cache made it [\d.]+x as fast at 12 tokens, with the same text", lines[2])


def test_json_is_one_object_with_every_figure(qkv, folder):
    _, out, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 5, "--json")
    record = json.loads(out)
    assert err == ""
    assert record["prompt"] == "ab"
    assert (record["prompt_tokens"], record["new_tokens"], record["finish_reason"]) == (3, 5, "length")
    assert record["kv_bytes_predicted"] == record["kv_bytes_allocated"] > 0
    assert record["text"] == "".join(generate(load(folder), "ab", max_tokens=5))


def test_json_of_a_comparison_holds_both_runs(qkv, folder):
    _, out, _ = qkv("generate", "ab", "--model", folder, "--max-tokens", 5, "--json", "--compare")
    record = json.loads(out)
    assert record["same_text"] is True
    assert record["cached"]["text"] == record["uncached"]["text"]
    assert record["uncached"]["kv_bytes_allocated"] == 0


def test_a_seed_makes_random_text_reproducible(qkv, folder):
    arguments = ("generate", "ab", "--model", folder, "--max-tokens", 9, "--temperature", 1.5)
    first, again, other = (qkv(*arguments, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other


def test_a_stop_text_ends_the_generation_and_is_not_shown(qkv, folder):
    whole = "".join(generate(load(folder), "ab", max_tokens=9))
    stop = whole[3:5]
    _, out, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 9, "--stop", stop)
    assert out == "ab" + whole[: whole.index(stop)] + "\n"
    assert "(stop)" in err


def test_ctrl_c_keeps_what_was_generated(qkv, folder, monkeypatch):
    pieces = Generation.__iter__

    def interrupted(self):
        for count, piece in enumerate(pieces(self)):
            if count == 2:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(Generation, "__iter__", interrupted)
    status, out, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 9)
    assert status == 130
    assert out.startswith("ab") and out.endswith("\n") and len(out) > 3
    assert "(interrupted)" in err and "Traceback" not in err


def test_a_leftover_tensor_is_one_warning_line_and_the_text_still_comes(qkv, folder):
    tensors = tiny_models.random_tensors(tiny_models.config_of("llama", vocab_size=263))
    save_file(tensors | {"stray": np.zeros(3, np.float32)}, folder / "model.safetensors")
    status, out, err = qkv("generate", "ab", "--model", folder, "--max-tokens", 2)
    assert status == 0 and out.startswith("ab")
    assert err.splitlines()[0].startswith("warning: ") and "stray" in err.splitlines()[0]


BAD_OPTIONS = {
    "negative temperature": (["--temperature", -1], "temperature"),
    "no number": (["--temperature", "warm"], "--temperature"),
    "top_p above one": (["--top-p", 1.5], "top_p"),
    "no new token": (["--max-tokens", 0], "max_tokens"),
    "empty stop": (["--stop", ""], "stop"),
    "cache and no cache": (["--compare", "--no-cache"], "--no-cache"),
    "unknown option": (["--speed", 9], "--speed"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_a_bad_option_is_one_line_and_status_2(qkv, folder, arguments, named):
    status, out, err = qkv("generate", "ab", "--model", folder, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


def test_a_prompt_longer_than_the_context_is_one_line_with_both_numbers(qkv, folder):
    status, _, err = qkv("generate", "a" * 200, "--model", folder)
    assert status == 2 and err.count("\n") == 1
    assert "201 tokens" in err and "context is 97" in err


def test_an_empty_prompt_is_fine_only_where_the_tokenizer_begins_the_text(qkv, folder):
    assert qkv("generate", "", "--model", folder, "--max-tokens", 2)[0] == 0
    tiny_models.write_tokenizer(folder, begins_text=False)
    status, _, err = qkv("generate", "", "--model", folder)
    assert status == 2 and err.count("\n") == 1 and "no token" in err


def _remove_config(folder):
    (folder / "config.json").unlink()


def _cut_tensors(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _change_config(**changes):
    def change(folder):
        config = tiny_models.config_of("llama", vocab_size=263, **changes)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def _remove_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


DAMAGE = {
    "no config": (_remove_config, "config.json"),
    "truncated tensors": (_cut_tensors, "model.safetensors"),
    "unknown kind": (_change_config(model_type="mamba"), "mamba"),
    "wrong shape": (_change_config(intermediate_size=41), "mlp.gate_proj.weight"),
    "unknown rotary scaling": (_change_config(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "spiral"),
    "no tokenizer": (_remove_tokenizer, "tokenizer.json"),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_folder_is_one_line_that_names_what_is_wrong(qkv, folder, damage, named):
    damage(folder)
    status, out, err = qkv("generate", "ab", "--model", folder)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


def test_a_missing_folder_is_one_line(qkv, tmp_path):
    status, _, err = qkv("generate", "ab", "--model", tmp_path / "nowhere")
    assert status == 2 and err.count("\n") == 1 and "nowhere" in err


def test_without_a_command_the_help_is_shown(qkv):
    status, out, _ = qkv()
    assert status == 0 and "generate" in out


def test_the_version_is_shown(qkv):
    status, out, _ = qkv("--version")
    assert status == 0 and re.fullmatch(r"qkv \d+\.\d+\.\d+\n", out)
