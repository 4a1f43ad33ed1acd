"""(m) as one line for each document, from small chunks to the whole."""

import pytest

from lab_results import as_result
from qkv.lab import Measured
from qkv.lab.chunking import CHUNKING
from qkv.viz.pictures import draw, svg

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

RESULT = as_result(
    CHUNKING,
    CHUNKING.quick,
    Measured(
        {"two_whole": 0.875, "two_rounds": 1.0, "two_alone": 0.5},
        {
            "fits_size": [2, 32],
            "fits_found": [0.75, 1.0],
            "long_size": [2, 32, 64],
            "long_found": [0.5, 0.875, 0.75],
            "longest_size": [32, 256],
            "longest_found": [1.0, 0.25],
        },
    ),
)


@pytest.fixture(scope="module")
def axes():
    drawn = figures.Figure().add_subplot()
    draw(RESULT, drawn, "en")
    return drawn


def test_each_document_has_its_line_and_the_whole_of_it_is_ringed(axes):
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["32 facts, as in training"] == [[2, 0.75], [32, 1.0]]
    assert lines["64 facts"] == [[2, 0.5], [32, 0.875], [64, 0.75]]
    assert lines["64 facts told 4 times"] == [[32, 1.0], [256, 0.25]]
    rings = [line.get_xydata().tolist() for line in axes.lines if line.get_fillstyle() == "none"]
    assert [one for one in rings if one] == [[[32, 1.0]], [[64, 0.75]], [[256, 0.25]]]


def test_every_size_is_written_and_what_training_had_is_marked(axes):
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "32", "64", "256"]
    assert list(axes.lines[0].get_xdata()) == [32, 32]


def test_questions_of_two_steps_stand_in_the_legend(axes):
    title = axes.get_legend().get_title().get_text().split("\n")
    assert title == [
        "found in two steps, of 64 facts:",
        "whole 88%",
        "in two rounds 100%",
        "each chunk alone 50%",
    ]
    assert "每块独自" in svg(RESULT, "zh")
