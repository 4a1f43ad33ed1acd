"""The picture of (i) shows costs against the same seed, and bars of bytes."""

import pytest

from lab_results import as_result
from qkv.lab import Language, Measured
from qkv.lab.key_heads import KEY_HEADS_SHARED, KeyHeads
from qkv.viz.key_heads import draw_key_heads

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

MEASURED = Measured(
    {"seed_spread": 0.02},
    {
        "name": ["mha", "gqa", "mqa"],
        "G": [8, 2, 1],
        "seeds": [3, 5],
        "recorded": [[2.0, 4.0], [2.5, 4.0], [3.0, 5.0]],
        "here": [1.0, 1.0, 1.125],
        "bytes": [1600, 400, 200],
        "milliseconds": [9.0, 3.0, 2.25],
    },
)


def drawn(language: Language = "en"):
    figure = figures.Figure()
    axes = figure.add_subplot()
    draw_key_heads(as_result(KEY_HEADS_SHARED, KeyHeads(), MEASURED), axes, language)
    return axes, figure.axes[1]


def test_a_line_is_what_a_seed_costs_against_its_own_mha():
    lines = {line.get_label(): line for line in drawn()[0].lines}
    assert lines["recorded at training, seed 3"].get_ydata().tolist() == [0, 25, 50]
    assert lines["recorded at training, seed 5"].get_ydata().tolist() == [0, 0, 25]
    assert lines["texts read here, seed 3"].get_ydata().tolist() == [0, 0, 12.5]


def test_bars_are_shares_of_the_largest_cache():
    (bars,) = drawn()[1].containers
    assert [bar.get_height() for bar in bars] == [1.0, 0.25, 0.125]


def test_each_kind_is_named_with_its_key_heads_and_its_time():
    labels = [label.get_text() for label in drawn()[0].get_xticklabels()]
    assert labels == [
        "MHA, G = 8\n9.0 ms a token",
        "GQA, G = 2\n3.0 ms a token",
        "MQA, G = 1\n2.2 ms a token",
    ]
    assert drawn("zh")[0].get_xticklabels()[2].get_text() == "MQA，G = 1\n每个 token 2.2 ms"
