"""(e) as bars and lines over the tokens of one text."""

from dataclasses import replace

import pytest

from lab_results import as_result
from qkv.lab import Measured
from qkv.lab.importance import IMPORTANCE
from qkv.viz.pictures import draw, svg

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

RESULT = as_result(
    IMPORTANCE,
    IMPORTANCE.quick,
    Measured(
        {
            "last_tau": 0.5,
            "rollout_tau": 0.75,
            "recency_tau": 0.25,
            "gradient_tau": 0.125,
            "recall_last": 0.75,
        },
        {
            "importance": [0.25, 1.0, 0.5],
            "last": [0.25, 0.125, 0.5],
            "rollout": [0.0, 0.5, 0.25],
            "gradient": [2.0, 4.0, 1.0],
        },
    ),
)


def test_all_are_drawn_as_shares_of_their_largest():
    axes = figures.Figure().add_subplot()
    draw(RESULT, axes, "en")
    assert [bar.get_height() for bar in axes.patches] == [0.25, 1.0, 0.5]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    told = "attention, last layer: tau 0.50; the pair asked for first: 75%"
    assert lines[told] == [[1, 0.5], [2, 0.25], [3, 1.0]]
    assert lines["attention rolled out: tau 0.75"] == [[1, 0.0], [2, 1.0], [3, 0.5]]
    assert lines["gradient x input: tau 0.12"] == [[1, 0.5], [2, 1.0], [3, 0.25]]


def test_without_a_way_back_gradients_are_not_drawn():
    series = {name: values for name, values in RESULT.series.items() if name != "gradient"}
    axes = figures.Figure().add_subplot()
    draw(replace(RESULT, series=series), axes, "en")
    assert len(axes.lines) == 3


def test_it_speaks_both_languages():
    assert "仅距离" in svg(RESULT, "zh") and "distance alone" in svg(RESULT, "en")
