"""What a user of `qkv lab` is promised: a board, a file, a history, and one clear line for a mistake."""

import json
import sys

import pytest

from qkv.app.cli.main import main
from qkv.lab import EXPERIMENTS


@pytest.fixture
def qkv(monkeypatch, capsys, tmp_path):
    """Run the command line with a data folder of its own; return exit status, stdout and stderr."""
    monkeypatch.setenv("QKV_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_one_claim_is_tried_judged_kept_and_reported(qkv, tmp_path):
    status, out, err = qkv("lab", "causality", "--report", tmp_path / "report.html")
    assert status == 0
    assert "✓ HOLDS" in out and "mind: " in out and "load average" in out
    assert "kept as run 1" in err and "report: " in err
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<svg" in text
    assert max(map(len, out.splitlines())) <= 80


def test_a_report_may_be_markdown(qkv, tmp_path):
    assert qkv("lab", "b", "--report", tmp_path / "claims.md", "--lang", "zh", "--no-save")[0] == 0
    assert (tmp_path / "claims.md").read_text(encoding="utf-8").startswith("# 关于注意力的说法")


def test_json_has_verdict_parts_and_numbers_in_the_language_asked_for(qkv):
    status, out, _ = qkv("lab", "b", "--json", "--lang", "zh", "--seed", 5, "--no-save")
    row = json.loads(out)["rows"][0]
    assert status == 0
    assert (row["id"], row["seed"], row["pace"]) == ("b", 5, "quick")
    assert row["verdict"] == "成立"
    assert row["numbers"]["future_mass"]["value"] == 0
    assert len(row["parts"]) == 7


def test_history_and_diff_tell_what_was_kept(qkv):
    assert "no run is kept" in qkv("lab", "history")[1]
    assert qkv("lab", "diff")[0] == 2
    for seed in (0, 1):
        qkv("lab", "b", "--seed", seed)
    qkv("lab", "b", "--no-save")
    history = json.loads(qkv("lab", "history", "--json")[1])
    assert [(one["number"], one["seed"], one["verdicts"]) for one in history] == [
        (1, 0, {"b": "HOLDS"}),
        (2, 1, {"b": "HOLDS"}),
    ]
    assert "✓1" in qkv("lab", "history")[1]
    status, out, _ = qkv("lab", "diff")
    assert status == 0 and "run 1 → run 2" in out and "article_future_mass" in out
    assert qkv("lab", "diff", 2, 1)[0] == 0
    assert "there is no run 9" in qkv("lab", "diff", 1, 9)[2]


def test_the_list_names_every_experiment(qkv):
    _, out, _ = qkv("lab", "list")
    for one in EXPERIMENTS:
        assert one.claim.en in out
    entries = json.loads(qkv("lab", "list", "--json", "--lang", "zh")[1])
    assert [one["id"] for one in entries] == [one.id for one in EXPERIMENTS]
    assert entries[0]["claim"] == EXPERIMENTS[0].claim.zh


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zz"], "expected quick, full, or experiments by letter or name, not 'zz'"),
        (["quick", "full"], "expected quick or full, not both"),
        (["b", "--lang", "fr"], "--lang must be en or zh, not 'fr'"),
        (["b", "--report", "no/such/folder/report.html"], "must be a file in a folder that exists"),
        (["b", "--report", "report.pdf"], "a report is a .html or a .md file"),
        (["diff", "1"], "expected two numbers of runs"),
        (["diff", "one", "two"], "expected two numbers of runs"),
    ],
)
def test_a_mistake_gets_one_line_before_anything_runs(qkv, arguments, message):
    status, out, err = qkv("lab", *arguments)
    assert (status, out) == (2, "")
    assert message in err and len(err.splitlines()) == 1


def test_where_results_cannot_be_kept_the_board_is_shown_all_the_same(qkv, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("QKV_DATA_DIR", str(tmp_path / "file"))
    status, out, err = qkv("lab", "b")
    assert status == 0 and "✓ HOLDS" in out
    assert "not kept: " in err
