"""What a user of `qkv plan` is promised: a table that reads well, and one clear line for a mistake."""

import json
import sys

import pytest

from qkv import plan
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


ARTICLE = ("plan", "llama-3-8b", "--users", 100, "--context", 4096)


def row(out, title):
    line = next(line for line in out.splitlines() if title in line)
    return line[line.index(title) + len(title) :].split()


def test_the_articles_claim_is_a_row_in_both_units(qkv):
    status, out, err = qkv(*ARTICLE)
    assert (status, err) == (0, "")
    assert row(out, "16 bit, pages of 16 tokens") == ["50.00", "53.69", "100.0", "100", "4,096"]
    assert row(out, "INT8, float32 scale per token, head") == ["25.78", "27.68", "51.6", "193", "7,936"]
    assert "= 131,072 bytes per token" in " ".join(out.split())
    assert "take: 16 bit, pages of 16 tokens (--cache bf16)" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ARTICLE,
        (*ARTICLE, "--memory", "80GiB", "--bandwidth", "3.35TB/s", "--compute", "990TFLOP/s"),
        (*ARTICLE, "--engine", "qkv", "--cache", "int8,window=1024,sinks=4", "--kv-memory", "9GiB"),
        ("plan", "gemma-3-27b", "--users", 50, "--engine", "vllm", "--cache", "int8", "--tensor-parallel", 4),
        ("plan", "deepseek-v3", "--context", 200_000, "--shared-prefix", 4096),
        ("plan", "qwen3.5-27b", "--users", 3, "--context", 4096),
        ("plan", "opt-13b", "--kv-memory", "12GiB", "--lengths", "sharegpt"),
        ("plan", "llama-3-70b", "--memory", "80GiB"),
    ],
)
def test_everything_fits_in_80_columns(qkv, arguments):
    status, out, _ = qkv(*arguments)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80


def test_a_small_model_is_shown_in_smaller_units(qkv):
    _, out, _ = qkv("plan", "smollm2-135m", "--users", 3, "--context", 128, "--memory", "1GiB")
    # 30 layers of 3 key heads of 64 numbers in 2 bytes: 46,080 bytes a token in K and V together
    assert row(out, "16 bit, pages of 16 tokens")[:2] == ["8.44", "8.85"] and " MiB        MB " in out
    assert "1 user " not in out and " 1 users" not in qkv("plan", "smollm2-135m", "--context", 128)[1]


def test_users_that_fit_stand_beside_each_strategy(qkv):
    _, out, _ = qkv(*ARTICLE, "--kv-memory", "40GiB")
    assert [
        row(out, title)[3] for title in ("pages of 16 tokens", "token, head", "per tensor", "per 64")
    ] == [*("80", "155", "160", "284")]
    assert "that fit in 40.00 GiB (42.95 GB)" in " ".join(out.split())


def test_a_card_is_divided_before_the_cache_is_counted(qkv):
    _, out, _ = qkv(*ARTICLE, "--memory", "80GiB", "--bandwidth", "3.35TB/s", "--compute", "990TFLOP/s")
    assert row(out, "weights") == ["14.97", "16.08"]
    assert "tokens/s for each of 100 users" in out and "prefill: at least" in out


def test_what_the_reader_should_know_is_said(qkv):
    _, out, _ = qkv("plan", "llama-3-8b", "--context", 9000)
    assert "note: 9,000 tokens are beyond the 8,192" in out


def test_a_bound_is_marked_as_one(qkv, tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "new-thing", **sizes}))
    _, out, _ = qkv("plan", tmp_path, "--context", 100)
    assert "(upper bound)" in out and "note: upper bound: 'new-thing'" in out


def test_json_has_the_plans_figures(qkv):
    _, out, err = qkv(*ARTICLE, "--cache", "int8", "--kv-memory", "40GiB", "--json")
    record, made = json.loads(out), plan("llama-3-8b", 100, 4096, cache="int8", kv_memory="40GiB")
    assert err == ""
    assert (record["bytes"], record["bytes_per_token"]) == (made.bytes, made.bytes_per_token)
    assert (record["users_that_fit"], record["longest_context"]) == (155, made.longest_context)
    assert record["recommended"]["cache"] == "int8"
    assert len(record["strategies"]) == len(made.outcomes)
    assert record["terms"][0]["factors"][1] == [32, "layers"]


def test_a_length_is_bounded_by_the_prompt_that_an_eviction_must_read_first(qkv):
    """Under qkv each layer holds the whole prompt until it evicts; an ideal eviction never holds more."""
    _, out, _ = qkv("plan", "llama-3-8b", "--engine", "qkv", "--context", 4096)
    assert row(out, "snapkv=1024")[-1] not in ("any", "0")
    assert row(qkv(*ARTICLE)[1], "tokens kept each")[-1] == "any"


@pytest.mark.parametrize("cache", ["keep=50", "bf16,keep=50"])
def test_the_same_strategy_is_one_row(qkv, cache):
    _, out, _ = qkv("plan", "llama-3-8b", "--context", 200, "--cache", cache)
    assert out.count("50 tokens kept each  ") == 1 and "keep 50" not in out


def test_two_figures_have_two_names(qkv):
    _, out, _ = qkv("plan", "llama-3-8b", "--context", 17, "--cache", "int8")
    paged, single = (
        row(out, "  INT8, float32 scale per token, head"),
        row(out, "unpaged INT8, float32 scale per t"),
    )
    assert paged[2] == "51.6" and single[3] == "27.4"  # 33 of 64 for each of 32 slots, of 17


def test_advice_is_one_setting_per_engine(qkv):
    _, out, _ = qkv("plan", "llama-3-8b", "--advise", "--memory", "72GiB", "--users", 64, "--context", 8192)
    assert 'qkv.new_cache(model, "int8")' in out
    assert "vllm serve meta-llama/Meta-Llama-3-8B" in out and "llama-server" in out and "why:" in out
    _, out, _ = qkv("plan", "llama-3-8b", "--advise", "--memory", "72GiB", "--json")
    assert [record["engine"] for record in json.loads(out)] == ["qkv", "vllm", "llama.cpp"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--engine", "vllm"), "--engine"),
        (("--engine", "nonsense", "--cache", "int3"), "--cache, --engine"),
        (("--kv-memory", "4GiB"), "--kv-memory"),
        (("--tensor-parallel", 1, "--page-size", 0), "--page-size, --tensor-parallel"),
        (("--lengths", "nowhere.csv", "--plot", "memory.png"), "--lengths, --plot"),
        (("--new-tokens", 5, "--step-tokens", 7), "--new-tokens, --step-tokens"),
        (("--bandwidth", "1TB/s", "--compute", "9TFLOP/s"), "--bandwidth, --compute"),
    ],
)
def test_advice_refuses_what_it_does_not_use(qkv, options, named):
    status, out, err = qkv("plan", "llama-3-8b", "--advise", *options)
    assert (status, out, err.count("\n")) == (2, "", 1) and err.endswith(f"leave out {named}\n")


def test_the_known_models_are_listed(qkv):
    _, out, _ = qkv("plan", "--models")
    assert "llama-3-8b             meta-llama/Meta-Llama-3-8B" in out
    assert "siblings/gqa           comes with qkv" in out


@pytest.mark.parametrize("options", [("--engine", "qkv"), ("--advise", "--memory", "1GiB")])
def test_the_models_that_come_with_qkv_are_known_by_name(qkv, options):
    by_name, by_path = (qkv("plan", model, *options) for model in ("verse", folder_of("verse")))
    assert by_name == by_path and by_name[0] == 0 and by_name[1].startswith("verse, 1 user")


def test_a_picture_is_drawn_where_one_is_asked_for(qkv, tmp_path):
    pytest.importorskip("matplotlib")
    status, _, err = qkv(*ARTICLE, "--kv-memory", "40GiB", "--plot", tmp_path / "memory.svg")
    assert (status, err) == (0, f"KV cache of llama-3-8b: {tmp_path / 'memory.svg'}\n")
    assert "tokens of each of 100 users" in (tmp_path / "memory.svg").read_text()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("memory.xyz", "error: --plot must be a file ending in .png, .svg or .pdf, not 'memory.xyz'\n"),
        ("missing/memory.png", "it must be a file in a folder that exists\n"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_refused(qkv, tmp_path, file, said):
    pytest.importorskip("matplotlib")
    status, out, err = qkv(*ARTICLE, "--plot", tmp_path / file)
    assert (status, out) == (2, "") and err.endswith(said) and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan",), "name a MODEL"),
        (("plan", "lama-3-8b"), "did you mean"),
        (("plan", "llama-3-8b", "--kv-memory", "40G"), "expected memory such as"),
        (("plan", "llama-3-8b", "--memory", "80"), "with its unit, such as 80GiB, not '80'"),
        (("plan", "llama-3-8b", "--advise", "--memory", "24"), "with its unit"),
        (("plan", "llama-3-8b", "--engine", "triton"), "an engine is one of"),
        (("plan", "llama-3-8b", "--cache", "int3"), "not 'int3'"),
        (("plan", "llama-3-8b", "--users", "many"), "--users"),
        (("plan", "bloom"), "context="),
        (("plan", "llama-3-8b", "--lengths", "nowhere.csv"), "CSV"),
    ],
)
def test_a_mistake_is_one_clear_line(qkv, arguments, said):
    status, out, err = qkv(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err
