"""(c) as a table of colours: patterns and costs by head, with the control beside."""

import numpy as np
import pytest

from lab_results import as_result
from qkv.lab import Measured
from qkv.lab.heads import HEADS
from qkv.viz.pictures import draw, svg

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

RESULT = as_result(
    HEADS,
    HEADS.quick,
    Measured(
        {},
        {
            "patterns": ["previous", "induction"],
            "scores": [[0.75, 0.125], [0.25, 0.5]],
            "even": [0.0625, 0.03125],
            "cost": [0.01, 0.04],
            "heads": ["0.0", "0.1"],
        },
    ),
)


def test_scores_costs_and_control_stand_where_their_names_say():
    axes = figures.Figure().add_subplot()
    draw(RESULT, axes, "en")
    drawn = axes.images[0].get_array()
    assert drawn[:2].tolist() == [[0.75, 0.125, 0.0625], [0.25, 0.5, 0.03125]]
    assert drawn[2, :2].tolist() == [0.25, 1.0] and drawn.mask[2, 2]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.0", "0.1", "even"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "previous",
        "induction",
        "cost / largest",
    ]


def test_heads_that_cost_nothing_are_drawn_as_such():
    axes = figures.Figure().add_subplot()
    free = as_result(HEADS, HEADS.quick, Measured({}, {**RESULT.series, "cost": [0.0, 0.0]}))
    draw(free, axes, "en")
    assert np.all(axes.images[0].get_array()[2, :2] == 0)


def test_it_speaks_both_languages():
    assert "归纳" in svg(RESULT, "zh") and "induction" in svg(RESULT, "en")
