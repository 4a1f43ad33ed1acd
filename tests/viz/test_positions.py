"""(f) as lines for what was found by place, and bars for where attention lies."""

import pytest

from lab_results import as_result
from qkv.lab import Measured
from qkv.lab.positions import POSITIONS
from qkv.viz.pictures import draw, svg

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

RESULT = as_result(
    POSITIONS,
    POSITIONS.quick,
    Measured(
        {},
        {
            "even": [1.0, 0.75],
            "recent": [0.0, 1.0],
            "beyond": [0.5, 0.25],
            "recent_beyond": [0.125, 0.5],
            "untrained": [0.0, 0.0625],
            "text_mass": [0.125, 0.125, 0.25, 0.5],
            "blank_mass": [0.25, 0.25, 0.25, 0.25],
        },
    ),
)


def test_every_share_stands_in_the_middle_of_its_part():
    axes = figures.Figure().add_subplot()
    draw(RESULT, axes, "en")
    lines = [(line.get_label(), line.get_xydata().tolist()) for line in axes.lines]
    assert lines == [
        ("asked for all alike, N = 32", [[0.25, 1.0], [0.75, 0.75]]),
        ("asked for the latest, N = 32", [[0.25, 0.0], [0.75, 1.0]]),
        ("the same, N = 64", [[0.25, 0.5], [0.75, 0.25]]),
        ("the same, N = 64", [[0.25, 0.125], [0.75, 0.5]]),
        ("untrained", [[0.25, 0.0], [0.75, 0.0625]]),
    ]
    (beside,) = [one for one in axes.figure.axes if one is not axes]
    assert [bar.get_height() for bar in beside.patches] == [0.125, 0.125, 0.25, 0.5]
    assert [bar.get_x() + bar.get_width() / 2 for bar in beside.patches] == [0.125, 0.375, 0.625, 0.875]
    assert beside.lines[0].get_ydata().tolist() == [0.25] * 4


def test_the_legend_names_what_either_axis_shows_in_both_languages():
    assert all(name in svg(RESULT, "en") for name in ("untrained (right)", "by tenths"))
    assert all(name in svg(RESULT, "zh") for name in ("未训练（右）", "按十分之一"))
