"""What a user of `qkv generate` is promised: text, one line about it, and one clear line for a mistake."""

import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny_deepseek
import tiny_models
from qkv import load
from qkv.app.cli.main import main
from qkv.engine import Generation, generate
from qkv.engine.generation import require_tokenizer
from qkv.models import new_cache

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


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_weights_are_kept_as_asked_for(qkv, folder, weights):
    _, out, _ = qkv("generate", "ab", "--model", folder, "--max-tokens", 23, "--weights", weights)
    assert out == f"ab{''.join(generate(load(folder, weights), 'ab', max_tokens=23))}\n"
    full = "".join(generate(load(folder), "ab", max_tokens=23))
    assert (out == f"ab{full}\n") == (weights == "float32")


def test_weights_of_another_form_are_refused(qkv, folder):
    status, out, err = qkv("generate", "ab", "--model", folder, "--weights", "int3")
    assert (status, out) == (2, "")
    assert "'--weights': 'int3' is not one of" in err
    assert "int8" in err


@pytest.mark.parametrize(("max_tokens", "is_full"), [(10_000, True), (93, False)])
def test_a_full_context_is_said_to_be(qkv, folder, max_tokens, is_full):
    """97 tokens are the context, 3 of them the prompt."""
    status, _, err = qkv("generate", "ab", "--model", folder, "--max-tokens", max_tokens)
    assert status == 0 and f"3 + {94 if is_full else 93} tokens (length" in err
    assert ("(length: the model's context of 97 tokens is full) ·" in err) == is_full


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


# Sampling


def test_every_sampling_option_reaches_the_text(qkv, folder):
    given = {
        "temperature": 1.5, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "min_tokens": 2,
    }  # fmt: skip
    numbers = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    more = ("--logit-bias", "100=4", "--logit-bias", "7=-2.5", "--bad-word", "e", "--logprobs", 2, "--json")
    arguments = ("generate", "ab", "--model", folder, "--max-tokens", 17, *numbers, *more)
    record = json.loads(qkv(*arguments)[1])
    options = {"logit_bias": {100: 4.0, 7: -2.5}, "bad_words": ["e"], "logprobs": 2}
    expected = generate(load(folder), "ab", max_tokens=17, **given, **options)
    assert record["text"] == "".join(expected)
    assert [one["id"] for one in record["logprobs"]] == expected.new_ids
    first, its = record["logprobs"][0], expected.logprobs[0]
    assert first["logprob"] == its.logprob
    assert [(one["id"], one["logprob"]) for one in first["top"]] == list(its.top)
    tokenizer = require_tokenizer(load(folder))
    assert first["token"] == tokenizer.token_of(its.token_id, skip_special_tokens=False)


def test_an_end_may_be_added_and_the_models_own_ignored(qkv, folder):
    new_ids = generate(load(folder), "ab", max_tokens=9)
    whole = "".join(new_ids)
    fourth = new_ids.new_ids[3]
    count = new_ids.new_ids.index(fourth)
    arguments = ("generate", "ab", "--model", folder, "--max-tokens", 9)
    _, _, err = qkv(*arguments, "--stop-id", fourth)
    assert f"3 + {count} tokens (stop)" in err
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [fourth]}))
    assert f"3 + {count} tokens (stop)" in qkv(*arguments)[2]
    _, out, err = qkv(*arguments, "--ignore-eos")
    assert out == f"ab{whole}\n" and "3 + 9 tokens (length)" in err


# The cache that was asked for


def test_a_cache_policy_is_used_and_its_bytes_are_those_predicted(qkv, folder):
    """20 + 31 tokens, the last not run, in int8: 16 of them seen, in pages 2 and 3 of 16 slots."""
    arguments = ("--max-tokens", 31, "--cache", "window=16, int8")
    _, out, err = qkv("generate", "a" * 19, "--model", folder, *arguments)
    model = load(folder)
    expected = "".join(generate(model, "a" * 19, max_tokens=31, cache=new_cache(model, "int8,window=16")))
    assert out == "a" * 19 + expected + "\n"
    bytes_of_a_page = 3 * 2 * 16 * 2 * (14 + 4)
    assert err.count("\n") == 1 and err.strip().endswith(
        f"KV int8,window=16: {2 * bytes_of_a_page:,} bytes predicted = {2 * bytes_of_a_page:,} "
        "allocated for 50 tokens"
    )


@pytest.mark.parametrize(
    "policy", ["", "int4,page=5", "streaming=7,page=3", "snapkv=7,page=3", "h2o=11", "window=3,page=2"]
)
def test_bytes_predicted_are_those_allocated_whatever_is_evicted(qkv, folder, policy):
    arguments = ("--max-tokens", 41, "--cache", policy, "--json")
    record = json.loads(qkv("generate", "a" * 22, "--model", folder, *arguments)[1])
    assert record["policy"] == (policy or "float32")
    assert record["kv_bytes_predicted"] == record["kv_bytes_allocated"] > 0
    assert record["kv_bytes_peak"] >= record["kv_bytes_allocated"]
    assert (record["kv_bytes_budget"], record["error"]) == (None, None)


def test_a_model_with_latent_attention_takes_a_policy_too(qkv, tmp_path):
    folder = tiny_models.write_tokenizer(tiny_deepseek.write_model(tmp_path, vocab_size=263))
    arguments = ("--max-tokens", 9, "--cache", "latent,int8", "--json")
    record = json.loads(qkv("generate", "ab", "--model", folder, *arguments)[1])
    # A page of 16 tokens in each of 3 layers: 11 + 4 codes and a scale.
    assert record["kv_bytes_predicted"] == record["kv_bytes_allocated"] == 3 * 16 * (15 + 4)


@pytest.mark.parametrize("budget", ["21504 bytes", "21KiB", "21504", "21.504 kB"])
def test_a_budget_that_holds_the_text_changes_nothing(qkv, folder, budget):
    """16 tokens take 2 x 3 x 2 x 14 x 4 x 16 = 10,752 bytes, so 32 fit to the byte."""
    arguments = ("generate", "a" * 9, "--model", folder, "--max-tokens", 23)
    _, free, _ = qkv(*arguments)
    status, out, err = qkv(*arguments, "--cache-budget", budget)
    assert (status, out) == (0, free)
    assert err.strip().endswith("21,504 allocated for 32 tokens, of 21,504 allowed")


@pytest.mark.parametrize("more", [(), ("--json",), ("--compare",)])
def test_a_text_that_would_outgrow_the_budget_is_refused_before_any_of_it_is_made(qkv, folder, more):
    """10 tokens of prompt and 23 new ones, of which the last is not stored: a byte less than they take."""
    budget = ("--cache-budget", "21503B", "--max-tokens", 23)
    status, out, err = qkv("generate", "a" * 9, "--model", folder, *budget, *more)
    assert (status, out) == (2, "")
    assert err == (
        "error: --cache-budget of 21,503 bytes is too small for the 10 tokens of the prompt and 23 new ones: "
        "the longest text that fits has 17 tokens, new ones included; raise it, take fewer --max-tokens, "
        "or let --cache keep less, as int8 and streaming=256 do\n"
    )


def test_the_longest_text_that_fits_does_and_one_token_more_does_not(qkv, folder):
    arguments = ("generate", "a" * 9, "--model", folder, "--cache-budget", "21503B", "--max-tokens")
    assert [qkv(*arguments, number)[0] for number in (7, 8)] == [0, 2]


def test_tokens_beyond_the_context_are_not_asked_for(qkv, folder):
    """97 tokens are the context, of which the last is not stored: 6 pages of 16."""
    budget = f"{6 * 10_752}B"
    assert qkv("generate", "ab", "--model", folder, "--cache-budget", budget, "--max-tokens", 10_000)[0] == 0


def test_what_falls_behind_the_models_own_window_is_not_counted(qkv, tmp_path):
    """A window of 8 is two pages of 4 tokens, and a third while the next one fills."""
    folder = tiny_models.write_model(tmp_path, "mistral", vocab_size=263, sliding_window=8)
    tiny_models.write_tokenizer(folder)
    arguments = ("generate", "ab", "--model", folder, "--max-tokens", 40, "--cache", "page=4")
    pages = 3 * 10_752 // 4
    assert [qkv(*arguments, "--cache-budget", f"{pages - less}B")[0] for less in (0, 1)] == [0, 2]


FULL_AT_31 = ("generate", "a" * 9, "--cache", "int4", "--cache-budget", "21504 bytes", "--max-tokens", 23)
"""31 tokens on the way to a page of 32 take 21,504 bytes in float32; to encode them takes some more."""


@pytest.fixture
def unreckoned(monkeypatch):
    """Without the room being reckoned before anything is run: what gets full does so on the way."""
    monkeypatch.setattr("qkv.app.cli.generate.longest_text", lambda cache, prompt_tokens, most: most)


@pytest.mark.usefixtures("unreckoned")
def test_a_cache_that_becomes_full_keeps_the_text_so_far_and_ends_with_one_clear_line(qkv, folder):
    text = "".join(generate(load(folder), "a" * 9, max_tokens=22))
    status, out, err = qkv(*FULL_AT_31, "--model", folder)
    assert (status, out) == (2, "a" * 9 + text + "\n")
    about, error = err.splitlines()
    assert about.startswith("10 + 22 tokens (cache full)")
    assert about.endswith(
        "KV int4: 21,504 bytes predicted = 21,504 allocated for 31 tokens, of 21,504 allowed"
    )
    assert error.startswith("error: --cache-budget of 21,504 bytes is too small for new token 22: ")
    assert "0 were free" in error


@pytest.mark.usefixtures("unreckoned")
def test_a_cache_that_becomes_full_gives_out_what_waited_for_a_stop_text(qkv, folder):
    text = "".join(generate(load(folder), "a" * 9, max_tokens=22))
    _, out, _ = qkv(*FULL_AT_31, "--model", folder, "--stop", text[-2:] + "never comes")
    assert out == "a" * 9 + text + "\n"


@pytest.mark.usefixtures("unreckoned")
def test_json_of_a_cache_that_became_full_has_text_and_reason(qkv, folder):
    status, out, err = qkv(*FULL_AT_31, "--model", folder, "--json")
    record = json.loads(out)
    assert (status, record["finish_reason"], record["new_tokens"]) == (2, "cache full", 22)
    assert record["text"] == "".join(generate(load(folder), "a" * 9, max_tokens=22))
    assert record["kv_bytes_budget"] == 21504
    assert err == f"error: {record['error']}\n"


@pytest.mark.usefixtures("unreckoned")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_comparing_with_a_cache_that_becomes_full_keeps_the_text_so_far_too(qkv, folder, as_json):
    status, out, err = qkv(*FULL_AT_31, "--model", folder, "--compare", *as_json)
    text = "".join(generate(load(folder), "a" * 9, max_tokens=22))
    assert status == 2 and "too small for new token 22" in err.splitlines()[-1]
    assert (json.loads(out)["cached"]["text"] if as_json else out) == (
        text if as_json else f"{'a' * 9}{text}\n"
    )


def test_a_budget_that_cannot_hold_the_prompt_is_one_line(qkv, folder):
    for as_json in ([], ["--json"]):
        status, out, err = qkv("generate", "ab", "--model", folder, "--cache-budget", "9KiB", *as_json)
        assert (status, out) == (2, "")
        assert err.startswith(
            "error: --cache-budget of 9,216 bytes is too small for the 3 tokens of the prompt and 94 new "
            "ones: the longest text that fits has 0 tokens"
        )
        assert err.count("\n") == 1


def test_a_prompt_that_only_fits_once_it_has_been_read_is_refused_before_it_is_run(qkv, folder):
    """Four tokens are left of 40, one page of 16, but they are three pages before any is evicted."""
    arguments = ("generate", "a" * 39, "--model", folder, "--cache", "streaming=8", "--max-tokens", 2)
    status, out, err = qkv(*arguments, "--cache-budget", "15KiB")
    assert (status, out) == (2, "")
    assert err.startswith(
        "error: --cache-budget of 15,360 bytes is too small for the 40 tokens of the prompt and 2 new ones: "
    )
    assert err.count("\n") == 1


def test_a_policy_that_does_not_fit_the_model_is_one_line(qkv, folder):
    status, out, err = qkv("generate", "ab", "--model", folder, "--cache", "latent")
    assert (status, out) == (2, "")
    assert err.startswith("error: latent is for models with latent attention") and err.count("\n") == 1


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
    "unknown policy": (["--cache", "windw=7"], "--cache: a policy has no part named 'windw'"),
    "policy with two element types": (["--cache", "int8,int4"], "2 element types"),
    "policy with a page of nothing": (["--cache", "page=0"], "page must be at least 1"),
    "budget of no size": (["--cache-budget", "much"], "--cache-budget: expected memory such as 80GiB"),
    "budget of nothing": (["--cache-budget", "0MiB"], "--cache-budget: "),
    "budget in two senses": (["--cache-budget", "24G"], "'24G'"),
    "bias of no number": (["--logit-bias", "5:3"], "--logit-bias: expected a token id and a number"),
    "bias of no token": (["--logit-bias", "263=1"], "logit_bias"),
    "bad word of nothing": (["--bad-word", ""], "bad word"),
    "end that is no token": (["--stop-id", 263], "stop_ids"),
    "batch of one": (["--max-batch", 8], "--max-batch is about the prompts of a file"),
    "logprobs to nowhere": (["--logprobs", 2], "--json"),
    "policy of no cache": (["--cache", "int8", "--no-cache"], "--no-cache"),
    "budget of no cache": (["--cache-budget", "1MiB", "--no-cache"], "--no-cache"),
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
