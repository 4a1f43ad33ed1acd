"""What a user of `qkv bench` is promised: tables on stdout, notes on stderr, files on request."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest

from qkv.app.cli import bench as command
from qkv.app.cli.main import main
from qkv.bench import Extent, Stopwatch, machine_limits
from qkv.bench.caching import Caching
from qkv.bench.decode import Heads
from qkv.errors import NumericError

TINY = Extent(
    prefill_lengths=(17,),
    short_lengths=(5, 7),
    head_sizes=(3, 5),
    decode_calls=((19, 1), (13, 3)),
    decode_heads=Heads(H=6, G=2, D=6),
    window=7,
    window_lengths=(11, 29),
    products=((3, 37, 2), (11, 13, 1)),
    tiling_lengths=(7, 17),
    cache_lengths=(3, 5),
    policy_lengths=(61,),
    latent_lengths=(3,),
)
KINDS = [
    "prefill, full",
    "prefill, causal",
    "short texts",
    "decode",
    "sliding window",
    "matmul",
    "tiling",
    "KV cache",
    "decode over a cache",
    "latent decode",
]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Tiny sizes, no other libraries, and a clock that strikes each second it is looked at."""
    seconds = count()
    stopwatch = partial(Stopwatch, clock=lambda: next(seconds), rest=lambda: None)
    monkeypatch.setattr(command, "Stopwatch", stopwatch)
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(command, "machine_limits", partial(machine_limits, side=7, read_bytes=80))
    for module in ("machine", "torch_peer", "onnxruntime_peer"):
        monkeypatch.setattr(f"qkv.bench.{module}.is_installed", lambda package: False)
    for name in ("OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def qkv(monkeypatch, capsys):
    """Run the command line; return exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err.removeprefix("qkv: compiling kernels, once\n")

    return run


def test_every_section_has_its_tables_within_80_columns(qkv):
    status, out, _ = qkv("bench", "--quick")
    assert status == 0
    tables = [line for line in out.splitlines()[2:] if line.endswith("times as fast as")]
    for kind, title in zip(KINDS, tables, strict=True):
        assert title.startswith(kind)
    assert max(len(line) for line in out.splitlines()[2:]) <= 80


def test_the_machine_is_named_first_and_what_is_missing_on_stderr(qkv):
    _, out, err = qkv("bench", "cache", "--quick")
    assert " threads" in out.splitlines()[0] and "numpy " in out.splitlines()[1]
    notes = [line for line in err.splitlines() if "PyTorch" in line and "not installed" in line]
    assert len(notes) == 1 and "qkv[peers]" in notes[0]


def test_a_setting_of_numpys_products_is_one_line(qkv, monkeypatch):
    before = len(qkv("bench", "cache", "--quick")[2].splitlines())
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    _, _, err = qkv("bench", "cache", "--quick")
    assert len(err.splitlines()) == before + 1
    assert "note: OPENBLAS_CORETYPE is set" in err


def test_only_the_sections_that_are_named_are_measured(qkv):
    _, out, _ = qkv("bench", "cache", "tiling", "--quick", "--pairs", 3)
    assert "tiling, H = 8" in out and "KV cache" in out and "decode" not in out and "prefill" not in out
    assert "median of 3 pairs" in out and "median of 15 pairs" not in out


def test_quick_measures_less_than_the_whole(qkv, monkeypatch):
    monkeypatch.setattr(command, "Extent", lambda: replace(TINY, cache_lengths=(3, 11)))
    quick, whole = (qkv("bench", "cache", *options)[1].split() for options in (["--quick"], []))
    assert "5" in quick and "11" not in quick
    assert "11" in whole and "5" not in whole


def test_json_holds_every_figure_and_the_machine(qkv, tmp_path):
    file = tmp_path / "figures.json"
    status, _, _ = qkv("bench", "decode", "cache", "--quick", "--json", file)
    record = json.loads(file.read_text(encoding="utf-8"))
    assert (status, record["pairs"]) == (0, 15)
    assert record["machine"]["threads"] >= 1 and record["machine"]["versions"]["numpy"] == np.__version__
    decode = [figure for figure in record["measurements"] if figure["name"] == "decode"]
    assert [(figure["sizes"]["S"], figure["sizes"]["B"]) for figure in decode] == [(19, 1), (13, 3)]
    # The clock strikes once during each run: everything takes a second and is as fast as the rest.
    assert decode[0]["seconds"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert decode[0]["ratios"] == [
        {"peer": "NumPy", "form": "groups folded", "median": 1.0, "low": 1.0, "high": 1.0}
    ]
    assert decode[0]["flops_per_second"] == decode[0]["flops"] == 4 * 6 * 6 * 19


def test_markdown_holds_a_table_for_each_kind(qkv, tmp_path):
    file = tmp_path / "figures.md"
    qkv("bench", "decode", "--quick", "--markdown", file)
    text = file.read_text(encoding="utf-8")
    assert text.count("**decode, H = 6, G = 2, D = 6: ") == 1
    assert text.count("**sliding window, H = 6, G = 2, D = 6, window = 7: ") == 1
    assert "| 19 | 1.00 (1.0-1.0) |" in text.replace("| 1 | 19 |", "| 19 |")


@pytest.mark.parametrize("failure", ["interrupt", "wrong"])
def test_what_was_measured_before_a_failure_is_shown_and_written(qkv, tmp_path, monkeypatch, failure):
    measure, calls = Caching.measure, []

    def fail_the_second_time(case, instruments):
        calls.append(case)
        if len(calls) == 2:
            if failure == "interrupt":
                raise KeyboardInterrupt
            raise NumericError("NumPy is up to 3 from qkv")
        return measure(case, instruments)

    monkeypatch.setattr(Caching, "measure", fail_the_second_time)
    file = tmp_path / "figures.json"
    status, out, err = qkv("bench", "cache", "--quick", "--json", file)
    assert status == (130 if failure == "interrupt" else 2)
    assert "Traceback" not in err
    assert "KV cache" in out
    assert [figure["sizes"]["n"] for figure in json.loads(file.read_text())["measurements"]] == [3]


BAD = {
    "section": (["speed"], "attention, decode, matmul, tiling, cache"),
    "one pair": (["--pairs", "1"], "--pairs"),
    "folder that is not there": (["--json", "nowhere/figures.json"], "nowhere/figures.json"),
    "a folder": (["--markdown", "."], "cannot write"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_a_bad_option_is_one_line_and_status_2_before_anything_is_measured(
    qkv, monkeypatch, arguments, named
):
    monkeypatch.setattr(command, "machine_limits", None)
    status, out, err = qkv("bench", "--quick", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and named in err


def test_the_command_line_loads_neither_the_compiler_nor_a_peer():
    heavy = {"numba", "llvmlite", "torch", "onnx", "onnxruntime"}
    code = f"import sys, qkv.app.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "set()\n"
