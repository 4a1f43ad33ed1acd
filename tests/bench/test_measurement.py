"""A figure, as JSON holds it."""

import json
from dataclasses import replace

from made_up_figures import FOLDED, MACHINE, REPORT, attention
from qkv.bench.measurement import Report


def test_a_figure_is_one_flat_record_with_quartiles_and_what_was_achieved():
    assert attention(1024, (FOLDED,)).record() == {
        "name": "prefill",
        "sizes": {"H": 8, "n": 1024},
        "seconds": {"median": 0.004, "low": 0.003, "high": 0.005},
        "flops": 10**9,
        "bytes": 20_000_000,
        "flops_per_second": 250e9,
        "bytes_per_second": 5e9,
        "ratios": [{"peer": "PyTorch", "form": "groups folded", "median": 2.041, "low": 1.96, "high": 2.17}],
        "shares": [
            {"limit": "matrix rate", "limit_rate": 300.4e9, "median": 0.832, "low": 0.801, "high": 0.856},
            {"limit": "read bandwidth", "limit_rate": 44.04e9, "median": 0.05, "low": 0.041, "high": 0.06},
        ],
        "peak_bytes": {},
        "notes": [],
    }


def test_a_report_holds_the_machine_every_figure_and_what_was_left_out():
    record = json.loads(json.dumps(REPORT.record()))
    assert (record["machine"]["cpu"], record["machine"]["versions"]["numpy"]) == ("Some CPU", "2.4.6")
    assert (record["pairs"], record["notes"]) == (15, ["a note"])
    assert [figure["sizes"]["n"] for figure in record["measurements"]] == [1024, 4096, 25]
    assert [(entry["sizes"]["n"], entry["reason"][:5]) for entry in record["skipped"]] == [(8192, "needs")]


def test_an_empty_report_is_a_report():
    assert Report(replace(MACHINE, cache_bytes=None), 2, (), ()).record()["measurements"] == []
    assert "cache" not in replace(MACHINE, cache_bytes=None).line()


def test_a_peer_or_a_limit_that_was_not_compared_is_none():
    figure = attention(1024, (FOLDED,))
    assert figure.ratio("NumPy") is None and figure.share("NumPy's matrix rate") is None
    assert figure.ratio("PyTorch") is FOLDED
