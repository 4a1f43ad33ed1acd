"""Every example runs to its end and shows what it is there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NUMBERED = ["01_formula.py", "02_masks.py", "03_heads.py", "04_kv_cache.py", "05_model.py", "06_pictures.py"]


def run_example(file, *words, folder=None):
    """Run it as a reader does, with every warning an error; return what it printed, line by line."""
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
        "PYTHONWARNINGS": "error",
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    if folder is not None:
        environment["QKV_DATA_DIR"] = str(folder)
    finished = subprocess.run(
        [sys.executable, EXAMPLES / file, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert (finished.returncode, "Warning" in finished.stderr) == (0, False), finished.stderr
    return [line.rstrip() for line in finished.stdout.splitlines()]


def test_examples_are_numbered_in_reading_order():
    assert sorted(file.name for file in EXAMPLES.glob("[0-9]*.py")) == NUMBERED


def test_formula_example_contrasts_its_weights_with_the_printed_ones():
    lines = run_example("01_formula.py")
    assert "row 0 here     [0.235, 0.264, 0.246, 0.255]" in lines
    assert any(line.startswith("row 0 article  [0.274, 0.238, 0.249, 0.239]") for line in lines)
    assert any(line.startswith("rows that peak on their own token: 0 of 4") for line in lines)
    (scaled,) = (line for line in lines if line.lstrip().startswith("q k / sqrt(D)"))
    assert "variance of the scores   1.0" in scaled


def test_masks_example_keeps_every_bit_beside_a_hidden_nan():
    lines = run_example("02_masks.py")
    assert " token 3    0.18     0.49     0.20     0.13" in lines
    assert "last key NaN, last value inf: the other outputs keep every bit: True" in lines


def test_heads_example_shows_shapes_and_what_grouping_saves():
    lines = run_example("03_heads.py")
    assert "input (2, 10, 64), output (2, 10, 64), weights (2, 8, 10, 10)" in lines
    assert "keys per text: 640 numbers with 8 key heads, 160 with 2 (GQA)" in lines


def test_cache_example_compares_three_ways_that_agree():
    lines = run_example("04_kv_cache.py")
    (agreement,) = (line for line in lines if line.startswith("100 tokens, three ways: largest difference "))
    assert float(agreement.split()[-1]) < 1e-12
    assert sum(line.endswith("x") and "tokens, against recomputing" in line for line in lines) == 8
    assert any("weights of shape (100, 8, 1, 1), all 1.0" in line for line in lines)
    assert any(line.endswith("524,288 for 200 tokens (predicted: 524,288)") for line in lines)


def test_demo_shows_the_model_then_the_lab_and_writes_a_report(tmp_path):
    lines = run_example("demo.py", "causality", folder=tmp_path)
    first, second = (
        next(row for row, line in enumerate(lines) if part in line) for part in ("05_model.py", "qkv lab")
    )
    assert first < second
    assert any("✓ HOLDS" in line for line in lines[second:])
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["demo.py", *NUMBERED])
def test_examples_say_first_what_they_are(file):
    assert (EXAMPLES / file).read_text(encoding="utf-8").startswith('"""')


def test_model_example_writes_looks_and_counts():
    lines = run_example("05_model.py")
    assert lines[0] == "HAMLET."
    (kv,) = (line for line in lines if line.startswith("KV cache:"))
    predicted, allocated = re.findall(r"[\d,]+", kv)
    assert predicted == allocated and int(predicted.replace(",", "")) > 0
    (head,) = (line for line in lines if line.startswith("layer "))
    assert "of its attention on the token before" in head
    assert lines[-1].endswith("times as fast, the same text")


def test_pictures_example_draws_three_files_and_prints_who_shares_which_pages(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra: pip install 'qkv[viz]'")
    lines = run_example("06_pictures.py", str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pages.png", "strategies.png", "timeline.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in tmp_path.iterdir())
    assert "bytes measured as predicted at 90 of 90 steps" in lines
    rows = {
        name: line
        for line in lines
        for name in ("first ", "begins alike ", "fork of ")
        if line.startswith(name)
    }
    first, alike, fork = (re.findall(r"(\d+)[×←](\d+)", row) for row in rows.values())
    assert first[0] == alike[0] == fork[0] and first[0][1] == "4"  # with the index that knows it
    assert first[-2] == fork[-3] and fork[-2][1] == first[-1][0]  # the last page of the first was copied
