"""What a user of `qkv generate --prompts` is promised: every prompt answered once, as if it were alone."""

import json
import re
import sys

import pytest

import tiny_models
from qkv import load
from qkv.app.cli.main import main
from qkv.engine import Engine, Generation
from qkv.models import new_cache
from qkv.ops.sampling import Sampling

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


class Batch:
    """Runs lines of prompts."""

    def __init__(self, qkv, folder, tmp_path):
        self.qkv, self.folder = qkv, folder
        self.prompts, self.out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"

    def __call__(self, lines, *options, max_tokens=7):
        """Return exit status, what was shown, and the records of the output by their ids."""
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.prompts.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        files = "--prompts", self.prompts, "--out", self.out
        arguments = "--model", self.folder, *files, "--max-tokens", max_tokens
        status, shown, err = self.qkv("generate", *arguments, *options)
        return status, shown + err, records(self.out)


@pytest.fixture
def batch(qkv, folder, tmp_path):
    return Batch(qkv, folder, tmp_path)


def records(path):
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    assert content == "" or content.endswith("\n")
    read = [json.loads(line) for line in content.splitlines()]
    assert len({json.dumps(record["id"]) for record in read}) == len(read), "a line was written twice"
    return {record["id"]: record for record in read}


def alone(folder, prompt, max_tokens=7, policy="", **sampling):
    model = load(folder)
    cache = new_cache(model, policy)
    return "".join(Generation(model, prompt, Sampling(**sampling), max_tokens=max_tokens, cache=cache))


def test_every_prompt_gets_the_text_it_gets_alone(batch, folder):
    texts = ["ab", "Grüße, 世界", "c" * 40, ""]
    status, err, found = batch([{"prompt": text} for text in texts])
    assert status == 0, err
    assert sorted(found) == [1, 2, 3, 4]
    for number, text in enumerate(texts, 1):
        assert found[number]["text"] == alone(folder, text)
        assert found[number]["prompt"] == text
    assert found[1] == {
        **found[1],
        "prompt_tokens": 3,
        "new_tokens": 7,
        "finish_reason": "length",
    }


def test_a_line_may_have_a_name_and_options_of_its_own(batch, folder):
    lines = [
        {"id": "hot", "prompt": "ab", "temperature": 0.9, "seed": 3},
        {"id": "short", "prompt": "ab", "max_tokens": 2},
        {"id": "small", "prompt": "ab" * 9, "cache": "int8"},
        {"id": 17, "prompt": [5, 7, 11]},
        {"prompt": "ab", "stop": [alone(folder, "ab")[2]]},
    ]
    _, _, found = batch(lines)
    assert found["hot"]["text"] == alone(folder, "ab", temperature=0.9, seed=3)
    assert found["short"]["text"] == alone(folder, "ab", max_tokens=2)
    assert found["small"]["text"] == alone(folder, "ab" * 9, policy="int8")
    assert found[17]["text"] == alone(folder, [5, 7, 11])
    assert (found[5]["text"], found[5]["finish_reason"]) == (alone(folder, "ab")[:2], "stop")


def test_a_line_says_how_its_tokens_are_chosen(batch, folder):
    bias = {"100": 4.0, "7": -2.5}
    lines = [
        {"prompt": "ab", "logit_bias": bias, "logprobs": 1},
        {"prompt": "ab", "bad_words": [alone(folder, "ab")[0], [5, 7]]},
        {"prompt": "ab", "stop_ids": [_ids(folder, "ab")[2]], "ignore_eos": True},
    ]
    _, _, found = batch(lines)
    biased = alone(folder, "ab", logit_bias={100: 4.0, 7: -2.5})
    assert found[1]["text"] == biased != alone(folder, "ab")
    assert [len(one["top"]) for one in found[1]["logprobs"]] == [1] * 7
    assert alone(folder, "ab")[0] not in found[2]["text"]
    assert found[3]["finish_reason"] == "stop" and found[3]["new_tokens"] <= 2
    assert "logprobs" not in found[2]


def _ids(folder, prompt):
    text = Generation(load(folder), prompt, Sampling(), max_tokens=7)
    list(text)
    return text.new_ids


def test_what_is_there_is_not_done_again(batch, monkeypatch):
    lines = [{"prompt": text} for text in ("ab", "cd", "ef")]
    batch(lines[:2])
    before = batch.out.read_bytes()
    submitted = []
    submit = Engine.submit
    monkeypatch.setattr(
        Engine, "submit", lambda engine, prompt, **o: submitted.append(prompt) or submit(engine, prompt, **o)
    )
    status, err, found = batch(lines)
    assert (status, submitted) == (0, ["ef"])
    assert sorted(found) == [1, 2, 3]
    assert batch.out.read_bytes().startswith(before)
    assert "3 of 3 lines ·" in err and err.endswith("2 lines were answered before and are kept\n")


def test_answers_of_before_are_kept_and_errors_among_them_are_not_forgotten(batch):
    lines = [{"prompt": "ab"}, {"prompt": "cd", "temperature": -1}]
    assert batch(lines)[0] == 1
    before = batch.out.read_bytes()
    status, err, _ = batch(lines)
    assert (status, batch.out.read_bytes()) == (1, before)
    assert "2 lines were answered before and are kept, 1 of them with an error; to have" in err
    status, err, _ = batch([lines[0], {**lines[1], "max_tokens": 3}], "--json")
    assert status == 1 and '"failed_before": 1' in err and '"others_before": 1' in err


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (("--cache", "int8"), 2),
        (("--weights", "int8"), 2),
        (("--seed", 3), 2),
        (("--stop-id", 5), 2),
        (("--max-batch", 1), 0),
        ((), 0),
    ],
)
def test_answers_of_other_options_are_said_to_be(batch, options, number):
    lines = [{"prompt": "ab"}, {"prompt": "cd"}]
    batch(lines)
    before = batch.out.read_bytes()
    status, err, _ = batch(lines, *options)
    assert (status, batch.out.read_bytes()) == (0, before)
    assert (f", {number} with other options than now" in err) == (number > 0) == ("options" in err)


def test_an_output_without_fingerprints_is_gone_on_with_in_silence(batch):
    batch([{"prompt": "ab"}])
    (record,) = records(batch.out).values()
    del record["options"]
    batch.out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    status, err, _ = batch([{"prompt": "ab"}], "--seed", 3)
    assert status == 0 and err.endswith("1 line was answered before and is kept\n")


@pytest.mark.parametrize("num_steps", [1, 4, 9, 12])
def test_after_an_interruption_the_rest_is_done_and_nothing_twice(batch, monkeypatch, num_steps):
    lines = [{"prompt": "ab" * number, "max_tokens": 2 + number} for number in range(1, 8)]
    batch(lines)
    expected = records(batch.out)
    batch.out.unlink()
    steps_left = [num_steps]
    step = Engine.step

    def interrupted_step(engine):
        steps_left[0] -= 1
        if steps_left[0] == 0:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted_step)
    status, err, found = batch(lines, "--max-batch", 3)
    assert status == 130
    assert len(found) < 7
    assert "begin again" in err
    assert found.items() <= expected.items()
    status, _, found = batch(lines, "--max-batch", 2)
    assert (status, found) == (0, expected)


def test_a_line_that_was_cut_short_is_done_anew(batch):
    lines = [{"prompt": "ab"}, {"prompt": "cd"}]
    _, _, expected = batch(lines)
    whole = batch.out.read_bytes()
    batch.out.write_bytes(whole[:-9])
    status, _, found = batch(lines)
    assert (status, found) == (0, expected)


def test_a_line_that_cannot_be_run_has_an_error_and_the_others_have_texts(batch, folder):
    lines = [
        {"prompt": "ab"},
        "no json",
        {"text": "ab"},
        {"prompt": "ab", "sed": 3},
        {"prompt": "ab", "temperature": -1},
        {"prompt": "ab", "max_tokens": "7"},
        {"prompt": "ab", "stop": "a"},
        {"prompt": "ab", "stop": [""]},
        {"prompt": [999]},
        {"prompt": 7},
        {"prompt": "x" * 500},
        {"prompt": "ab", "cache": "windw=3"},
        {"prompt": "ab", "id": 1.5},
        {"prompt": "ab", "stop_ids": ["a"]},
        {"prompt": "ab", "ignore_eos": 1},
        {"prompt": "ab", "bad_words": "a"},
        {"prompt": "ab", "bad_words": [5]},
        {"prompt": "ab", "logit_bias": {"a": 1}},
        {"prompt": "ab", "logit_bias": 3},
        "",
        {"prompt": "cd"},
    ]
    status, err, found = batch(lines)
    assert status == 1
    assert sorted(found) == [*range(1, 20), 21]
    errors = {number: record["error"] for number, record in found.items() if "error" in record}
    assert sorted(errors) == list(range(2, 20))
    for number, words in {2: "JSON", 3: '"prompt"', 4: "'sed'", 5: "temperature", 6: "whole number"}.items():
        assert words in errors[number]
    for number, words in {9: "999", 10: "token ids", 11: "context", 12: "window", 13: "id"}.items():
        assert words in errors[number]
    for number, words in {14: "stop_ids", 15: "true nor false", 16: "list of words", 17: "not 5"}.items():
        assert words in errors[number]
    assert "logit_bias" in errors[18] and "logit_bias" in errors[19]
    assert found[21]["text"] == alone(folder, "cd")
    assert "20 of 20 lines, 18 with an error" in err


def test_a_text_that_can_never_fit_fails_and_the_others_go_on(batch, folder):
    page = 3 * 2 * 2 * 14 * 4 * 16
    status, _, found = batch([{"prompt": "a" * 30}, {"prompt": "ab"}], "--cache-budget", f"{2 * page}B")
    assert status == 1
    assert "do not fit" in found[1]["error"]
    assert found[2]["text"] == alone(folder, "ab")


def test_the_figures_name_speed_shared_tokens_and_bytes(batch):
    """Prompts of 41 tokens, alike but for the last, one at a time: each later one finds two full pages."""
    lines = [{"prompt": "a" * 39 + letter} for letter in "xyz"]
    _, err, _ = batch(lines, "--max-batch", 1)
    first, second = err.strip().splitlines()
    assert re.match(r"3 of 3 lines · 21 new tokens, [\d,]+ a second, reading [\d.e-]+ GB/s$", first)
    page = 3 * 2 * 2 * 14 * 4 * 16  # layers, key heads, k and v, numbers, bytes, tokens
    assert second.startswith("123 prompt tokens, 64 found in shared pages · ")
    assert f"KV {3 * page:,} bytes predicted = {3 * page:,} held at most, " in second
    assert second.endswith("0 preemptions")


def test_the_figures_are_there_as_json(batch):
    status, shown, _ = batch([{"prompt": "ab"}], "--json")
    figures = json.loads(shown)
    assert (status, figures["lines"], figures["new_tokens"], figures["interrupted"]) == (0, 1, 7, False)
    assert figures["kv_bytes_predicted"] == figures["kv_bytes_peak"] == 3 * 2 * 2 * 14 * 4 * 16


def test_an_output_of_other_prompts_is_refused_and_left_as_it_is(batch):
    batch([{"prompt": "ab"}])
    before = batch.out.read_bytes()
    for lines in ([{"prompt": "cd"}], [{"prompt": "ab", "id": "x"}]):
        status, err, _ = batch(lines)
        assert status == 2 and "other prompts" in err
        assert batch.out.read_bytes() == before


def test_an_output_that_is_no_batch_is_refused_and_left_as_it_is(qkv, folder, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "story.txt"
    prompts.write_text('{"prompt": "ab"}\n', encoding="utf-8")
    out.write_text("Once upon a time\nthere was", encoding="utf-8")
    status, _, err = qkv("generate", "--model", folder, "--prompts", prompts, "--out", out)
    assert status == 2 and "none of a batch" in err
    assert out.read_text(encoding="utf-8") == "Once upon a time\nthere was"


def test_an_id_that_comes_twice_is_refused(batch):
    status, err, found = batch([{"prompt": "ab", "id": 7}, {"prompt": "cd", "id": 7}])
    assert (status, found) == (2, {})
    assert "id 7 comes twice" in err
    status, _, found = batch([{"prompt": "ab", "id": 7}, {"prompt": "cd", "id": "7"}])
    assert (status, len(found)) == (0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["ab", "--prompts", "p", "--out", "o"], "either a PROMPT"),
        (["--prompts", "p"], "either a PROMPT"),
        (["--out", "o"], "either a PROMPT"),
        ([], "either a PROMPT"),
        (["--prompts", "p", "--out", "o", "--no-cache"], "one PROMPT"),
        (["--prompts", "p", "--out", "o", "--compare"], "one PROMPT"),
        (["--prompts", "p", "--out", "o"], "--prompts: p cannot be read: No such file or directory\n"),
        (["--prompts", "p", "--out", "o", "--max-batch", 0], "max_batch must be at least 1"),
    ],
    ids=str,
)
def test_options_that_make_no_batch_are_refused(qkv, folder, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = qkv("generate", "--model", folder, *options)
    assert (status, out) == (2, "")
    assert message in err
