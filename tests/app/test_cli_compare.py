"""What a user of `qkv compare` is promised: a row per policy, in 80 columns, and one line for a mistake."""

import io
import json
import re
import sys

import numpy as np
import pytest
from rich.console import Console

import tiny_deepseek
import tiny_models
from qkv import load
from qkv.app.cli.compare_report import comparison_table, format_kl
from qkv.app.cli.main import main
from qkv.cache import Policy
from qkv.engine import compare
from qkv.engine.compared import Compared, Comparison, Divergence
from qkv.models import Model
from qkv.models.weights import weight_nbytes
from qkv.ops.backend import is_compiled

COMPILING = "qkv: compiling kernels, once\n"


@pytest.fixture
def folder(tmp_path):
    model = tiny_models.write_model(tmp_path / "model", "llama", vocab_size=263)
    return tiny_models.write_tokenizer(model)


@pytest.fixture
def qkv(monkeypatch, capsys):
    """Run the command line in 80 columns; return exit status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err.removeprefix(COMPILING)

    return run


def rows_of(out: str) -> dict[str, str]:
    """The rows of the table by the policy they begin with."""
    lines = out[out.index("policy ") :].splitlines()
    table = lines[1 : next(number for number, line in enumerate(lines) if line.startswith("KL("))]
    return {line.split()[0]: line for line in table}


# The table


def test_each_policy_has_a_row_behind_the_full_cache(qkv, folder):
    policies = "fp16", "int8,window=7", "h2o=11"
    options = [part for policy in policies for part in ("--cache", policy)]
    status, out, err = qkv("compare", "abcdefg", "--model", folder, "--max-tokens", 23, *options)
    assert (status, err) == (0, "")
    assert list(rows_of(out)) == ["full,", *policies]


def test_a_row_holds_the_figures_in_the_units_of_their_columns(qkv, folder):
    """8 + 40 tokens, the last not run, in 3 pages of 16: 3 layers, 2 key heads of 14 numbers, k and v."""
    arguments = ("--cache", "fp8-e5m2", "--max-tokens", 40)
    _, out, _ = qkv("compare", "abcdefg", "--model", folder, *arguments)
    (row,) = compare(load(folder), "abcdefg", ["fp8-e5m2"], max_tokens=40).compared
    full, fp8 = rows_of(out)["full,"].split(), rows_of(out)["fp8-e5m2"].split()
    numbers = 3 * 16 * 3 * 2 * 28
    assert full[2:7] == ["-", "-", "-", f"{4 * numbers / 1024:.1f}", "31.5"]
    assert fp8[1:3] == [f"{row.mean_kl:.4f}", f"{100 * row.agreement:.1f}"]
    assert fp8[4:6] == [f"{numbers / 1024:.1f}", "7.9"]
    assert re.fullmatch(r"[\d,]+", fp8[6]) and re.fullmatch(r"[\d,]+", full[7])
    assert row.divergence is not None
    assert fp8[7] == str(row.divergence.position)


def test_without_a_policy_there_are_ten_or_more_within_80_columns(qkv, folder):
    status, out, _ = qkv("compare", "abcdefghijklmnopqrstuvw", "--model", folder, "--max-tokens", 41)
    table = rows_of(out)
    assert status == 0
    assert len(table) - 1 >= 10 and {"int8", "int4", "fp8-e4m3", "window=16"} <= set(table)
    assert max(len(line) for line in table.values()) <= 80


def test_the_text_that_the_full_cache_chooses_is_shown(qkv, folder):
    _, generated, _ = qkv("generate", "ab", "--model", folder, "--max-tokens", 5)
    _, out, _ = qkv("compare", "ab", "--model", folder, "--max-tokens", 5, "--cache", "int8")
    assert out.startswith("prompt of 3 tokens, then 5 that the full cache makes most likely\n")
    shown = [letter for letter in generated if letter.isascii() and letter.isprintable()]
    assert [letter for letter in out.splitlines()[2] if letter.isascii()] == shown


def test_tokens_are_shown_as_they_are_spelled_brackets_and_line_ends_too(folder):
    tokenizer = load(folder).tokenizer
    assert tokenizer is not None
    begin, opening, closing, newline = tokenizer.encode("[]\n")
    _, half, other_half = tokenizer.encode("é")
    tokenizer.core.add_tokens(["[bold]"])
    (markup,) = tokenizer.encode("[bold]", add_special_tokens=False)
    assert table_of(tokenizer, begin, Divergence(3, opening, closing)).endswith("3 ']' not '['")
    assert table_of(tokenizer, begin, Divergence(3, newline, opening)).endswith(r"3 '[' not '\n'")
    assert table_of(tokenizer, begin, Divergence(3, opening, markup)).endswith("3 '[bold]' not '['")
    # One byte of a character, and a token without a text: as the vocabulary has them.
    assert table_of(tokenizer, begin, Divergence(3, begin, half)).endswith("3 'Ã' not '<s>'")
    assert table_of(tokenizer, begin, Divergence(3, begin, other_half)).endswith("3 '©' not '<s>'")
    assert table_of(tokenizer, begin, Divergence(3, begin, 262)).endswith("3 '#262' not '<s>'")


def table_of(tokenizer, begin: int, divergence: Divergence) -> str:
    """The last row of a table of made-up figures."""
    figures = {
        "kl": (0.5,) * 5,
        "agrees": (True,) * 5,
        "log_probs": (-1.0,) * 5,
        "nbytes": 7,
        "peak_nbytes": 11,
    }
    figures |= {"dropped_tokens": 0, "prefill_seconds": 1.0, "decode_seconds": 1.0}
    figures |= {"held": np.ones((1, 1, 5), bool)}
    full = Compared(Policy(), divergence=None, **figures)
    row = Compared(Policy("int8"), divergence=divergence, **figures)
    console = Console(file=io.StringIO(), width=100)
    console.print(comparison_table(Comparison((begin,), (40,) * 5, full, (row,)), tokenizer))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()[-1].rstrip()


def test_what_may_surprise_in_the_figures_is_said(qkv, folder):
    options = ("--cache", "snapkv=64", "--cache", "int4", "--cache", "h2o=8,page=3")
    _, out, _ = qkv("compare", "ab", "--model", folder, "--max-tokens", 29, *options)
    assert "never over budget, so nothing was dropped: snapkv=64\n" in out
    assert "newest tokens in float32 until their page is full: int4\n" in out
    _, out, _ = qkv("compare", "ab", "--model", folder, "--max-tokens", 29, "--cache", "int8")
    assert "never over budget" not in out and "float32 until" not in out and "not run" not in out


def test_a_policy_that_does_not_fit_the_model_has_a_row_and_a_line_and_the_others_run(qkv, folder):
    options = ("--cache", "int8", "--cache", "latent", "--cache", "fp16")
    status, out, err = qkv("compare", "ab", "--model", folder, "--max-tokens", 5, *options)
    assert (status, err) == (0, "")
    assert list(rows_of(out)) == ["full,", "int8", "latent", "fp16"]
    assert rows_of(out)["latent"].rstrip().endswith("not run, see below")
    (why,) = [line for line in out.splitlines() if line.startswith("not run: ")]
    assert why.startswith("not run: latent: latent is for models with latent attention")


def test_a_model_with_latent_attention_runs_what_fits_it(qkv, tmp_path):
    folder = tiny_models.write_tokenizer(tiny_deepseek.write_model(tmp_path, vocab_size=263))
    status, out, _ = qkv("compare", "abcdef", "--model", folder, "--max-tokens", 19)
    not_run = [name for name, row in rows_of(out).items() if "not run" in row]
    # An odd number of latent and rotary numbers, of which only the latter are turned.
    assert (status, not_run) == (0, ["int4", "expected=8", "int4,snapkv=8"])
    assert len(rows_of(out)) - len(not_run) > 10


def test_progress_is_shown_on_stderr_of_a_terminal_only(qkv, folder, monkeypatch):
    arguments = ("compare", "ab", "--model", folder, "--max-tokens", 5, "--cache", "int8")
    assert qkv(*arguments)[2] == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, err = qkv(*arguments)
    assert "5/5" in err and "5/5" not in out


# A text of one's own


def test_a_text_is_scored_behind_a_prompt(qkv, folder, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("cdefg", encoding="utf-8")
    _, out, _ = qkv("compare", "ab", "--model", folder, "--text", file, "--cache", "int8", "--json")
    record = json.loads(out)
    assert (record["prompt"], record["text"]) == ("ab", "cdefg")
    assert (record["prompt_tokens"], record["text_tokens"]) == (3, 5)
    (expected,) = compare(load(folder), "ab", ["int8"], text="cdefg").compared
    assert record["policies"][0]["perplexity"] == expected.perplexity


def test_a_text_without_a_prompt_is_its_own_up_to_half(qkv, folder, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("abcdefghi", encoding="utf-8")
    arguments = ("compare", "--model", folder, "--text", file, "--cache", "int8")
    record = json.loads(qkv(*arguments, "--json")[1])
    assert (record["prompt"], record["text"]) == ("abcd", "efghi")
    assert qkv(*arguments)[1].startswith("prompt of 5 tokens, then 5 of the text\n")


def test_a_text_longer_than_the_context_is_cut_and_it_is_said(qkv, folder, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("a" * 200, encoding="utf-8")
    arguments = ("--model", folder, "--text", file, "--cache", "int8")
    # The context is 97.
    assert qkv("compare", *arguments)[1].startswith("prompt of 48 tokens, then 49 of the 153 of the text\n")
    behind = qkv("compare", "ab", *arguments)[1]
    assert behind.startswith("prompt of 3 tokens, then 94 of the 200 of the text\n")
    fewer = qkv("compare", "ab", *arguments, "--max-tokens", 7)[1]
    assert fewer.startswith("prompt of 3 tokens, then 7 of the 200 of the text\n")


# JSON


def test_json_is_one_object_with_every_figure(qkv, folder):
    options = ("--cache", "int8,window=7", "--cache", "latent", "--max-tokens", 23, "--json")
    status, out, err = qkv("compare", "ab", "--model", folder, *options)
    record = json.loads(out)
    (expected,) = compare(load(folder), "ab", ["int8,window=7"], max_tokens=23).compared
    figures, unfit = record["policies"]
    assert (status, err) == (0, "")
    assert (record["prompt"], record["prompt_tokens"], record["text_tokens"]) == ("ab", 3, 23)
    assert record["full"]["policy"] == "float32" and record["full"]["mean_kl"] == 0
    assert figures["policy"] == "int8,window=7"
    assert figures["kl"] == list(expected.kl) and figures["agrees"] == list(expected.agrees)
    assert figures["mean_kl"] == expected.mean_kl and figures["max_kl"] == expected.max_kl
    assert figures["top_1_agreement"] == expected.agreement < 1
    assert figures["perplexity"] == expected.perplexity
    assert figures["perplexity_difference"] == expected.perplexity - record["full"]["perplexity"]
    assert (figures["peak_bytes"], figures["final_bytes"]) == (expected.peak_nbytes, expected.nbytes)
    assert figures["decode_tokens_per_second"] > 0
    assert expected.divergence is not None
    first = figures["first_divergence"]
    assert first["position"] == expected.divergence.position
    ids = expected.divergence.expected_id, expected.divergence.chosen_id
    assert (first["expected_id"], first["chosen_id"]) == ids
    assert first["expected"] != first["chosen"]
    assert unfit["policy"] == "latent" and "latent attention" in unfit["error"]
    assert record["full"]["first_divergence"] is None


# A picture


def test_a_picture_is_drawn_beside_the_table_where_one_is_asked_for(qkv, folder, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra: pip install 'qkv[viz]'")
    options = ("compare", "abcdefg", "--model", folder, "--max-tokens", 23, "--cache", "h2o=11")
    status, out, err = qkv(*options, "--plot", tmp_path / "policies.png")
    assert (status, err, list(rows_of(out))) == (0, "", ["full,", "h2o=11"])
    assert (tmp_path / "policies.png").read_bytes().startswith(b"\x89PNG")
    status, out, err = qkv(*options, "--plot", tmp_path / "policies.svg", "--json")
    assert (status, err, json.loads(out)["text_tokens"]) == (0, "", 23)
    assert "<svg" in (tmp_path / "policies.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "named"),
    [("policies.odd", ".png, .svg or .pdf"), ("missing/policies.png", "folder that exists"), ("", "--plot")],
)
def test_a_picture_that_cannot_be_drawn_is_one_line_before_anything_runs(qkv, tmp_path, file, named):
    pytest.importorskip("matplotlib", reason="needs the extra: pip install 'qkv[viz]'")
    status, out, err = qkv("compare", "ab", "--model", "no-such-model", "--plot", tmp_path / file)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


# Weights


def test_other_weights_have_a_row_with_what_they_cost_and_their_bytes(qkv, folder):
    options = ("--weights", "int8", "--weights", "bf16", "--max-tokens", 23)
    status, out, err = qkv("compare", "abcdefg", "--model", folder, *options)
    model = load(folder)
    others: dict[str, Model] = {form: load(folder, form) for form in ("int8", "bf16")}
    expected = compare(model, "abcdefg", [], others=others, max_tokens=23)
    assert (status, err) == (0, "")
    assert list(rows_of(out)) == ["full,", "int8", "bf16"]
    for row in expected.compared:
        name, what, kl, top = rows_of(out)[row.weights].split()[:4]
        assert (name, what, kl, top) == (
            row.weights, "weights", format_kl(row.mean_kl), f"{100 * row.agreement:.1f}",
        )  # fmt: skip
        assert row.mean_kl > 0
    nbytes, own = weight_nbytes(others["int8"]), weight_nbytes(model)
    assert f"int8 weights: {nbytes:,} bytes, {nbytes / own:.2f} times the {own:,} of those as stored\n" in out
    assert (nbytes < own) == is_compiled()  # NumPy computes on float32 alone


def test_policies_and_weights_are_compared_together_where_both_are_asked_for(qkv, folder):
    options = ("--weights", "float32", "--cache", "int8", "--max-tokens", 7, "--json")
    _, out, _ = qkv("compare", "abcdefg", "--model", folder, *options)
    record = json.loads(out)
    (policy,), (weights,) = record["policies"], record["weights"]
    assert policy["policy"] == "int8" and "weights" not in policy
    assert (weights["weights"], weights["policy"]) == ("float32", "float32")
    assert weights["mean_kl"] == weights["perplexity_difference"] == 0
    assert weights["weight_bytes"] == record["weight_bytes"] == weight_nbytes(load(folder))


# Mistakes

BAD = {
    "unknown policy": (["ab", "--cache", "int8", "--cache", "windw=7"], "--cache windw=7: "),
    "two element types": (["ab", "--cache", "int8,int4"], "2 element types"),
    "no token": (["ab", "--max-tokens", 0], "max_tokens"),
    "nothing to compare on": ([], "--text"),
    "no file": (["--text", "nowhere.txt"], "--text: nowhere.txt cannot be read: No such file or directory\n"),
    "unknown weights": (["ab", "--weights", "int3"], "int3"),
    "unknown option": (["ab", "--speed", 9], "--speed"),
    "too long": (["a" * 97], "context is 97"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_one_line_and_status_2(qkv, folder, arguments, named):
    status, out, err = qkv("compare", "--model", folder, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


@pytest.mark.parametrize(("content", "named"), [(b"\xff\xfe", "UTF-8"), (b"", "no token")])
def test_a_file_without_text_is_one_line(qkv, folder, tmp_path, content, named):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    status, out, err = qkv("compare", "ab", "--model", folder, "--text", file)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


# A real model


def test_the_table_of_a_real_story_has_ten_policies_and_each_its_bytes(qkv, stories260k):
    status, out, _ = qkv("compare", "Once upon a time", "--model", stories260k, "--max-tokens", 60)
    table = rows_of(out)
    assert status == 0 and len(table) - 1 >= 10
    assert "Once upon a time, there was a little girl named Lily." in out.replace("\n", " ")
    # 64 tokens in 4 pages of 16: 5 layers, 4 key heads of 8 numbers, k and v.
    assert f"{4 * 16 * 5 * 4 * 16 * 4 / 1024:.1f}" == "80.0" == table["full,"].split()[6]
    assert table["fp16"].split()[5] == "40.0" and table["fp16"].rstrip().endswith("never")
    assert max(len(line) for line in table.values()) <= 80
