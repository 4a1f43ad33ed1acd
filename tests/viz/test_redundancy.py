"""The picture of what repeats cost: what is saved, what stays, and the control in black."""

import pytest

from lab_results import as_result
from qkv.lab import Measured
from qkv.lab.redundancy import REDUNDANCY
from qkv.viz.redundancy import SMALLEST, draw_redundancy

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

TEXT = {"times": [2, 4], "text_exact_kl": [0.0, 0.004], "text_random_kl": [0.125, 0.25]}
PAIRS = {
    "tokens": [35, 67],
    "tokens_saved": [0.5, 0.75],
    "cells_saved": [0.75, 0.875],
    "exact_agreement": [1.0, 1.0],
    "random_agreement": [0.75, 0.625],
}


def drawn(series):
    figure = figures.Figure()
    draw_redundancy(as_result(REDUNDANCY, REDUNDANCY.quick, Measured({}, series)), figure.add_subplot())
    return figure.axes


def test_lines_run_through_the_numbers_and_chance_is_black():
    lines = {line.get_label(): line for line in drawn(TEXT | PAIRS)[0].lines}
    assert lines["tokens saved"].get_xydata().tolist() == [[2, 0.5], [4, 0.75]]
    assert lines["scores saved"].get_ydata().tolist() == [0.75, 0.875]
    assert [line.get_color() for line in lines.values()].count("black") == 1


def test_the_loss_on_text_has_an_axis_of_its_own_that_0_does_not_stretch():
    exact, at_random = drawn(TEXT | PAIRS)[1].lines
    assert exact.get_ydata().tolist() == [SMALLEST, 0.004]
    assert at_random.get_ydata().tolist() == [0.125, 0.25] and at_random.get_color() == "black"


def test_without_pairs_the_text_is_shown_alone():
    axes, beside = drawn(TEXT)
    assert not axes.lines and len(beside.lines) == 2
