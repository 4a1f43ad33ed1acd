"""A grid says the same in colour and without."""

import io

import numpy as np
import pytest
from rich.console import Console

from qkv import ShapeError, causal_mask
from qkv.viz import curve, mask_grid, weight_grid


def lines_of(picture, **options):
    written = io.StringIO()
    Console(file=written, width=80, **options).print(picture)
    return written.getvalue().splitlines()


def test_every_weight_is_written_into_its_own_cell():
    weights = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
    lines = lines_of(weight_grid(weights, rows=["a", "b"], columns=["x", "y", "z"]))
    assert [line.split() for line in lines] == [
        ["x", "y", "z"],
        ["a", "1.00", "·", "·"],
        ["b", "0.25", "0.75", "·"],
    ]


def test_shades_rise_with_the_weight():
    line = lines_of(weight_grid([[0.0, 0.05, 0.2, 0.5, 1.0]], numbers=False))[1]
    assert [cell for cell in line if cell in "░▒▓█"][::3] == ["░", "▒", "▓", "█"]


def test_a_mask_shows_who_may_see_whom():
    lines = lines_of(mask_grid(causal_mask(3), title="causal"))
    assert lines[0].strip() == "causal"
    assert [line.split()[1:] for line in lines[2:]] == [["■", "·", "·"], ["■", "■", "·"], ["■", "■", "■"]]


def test_positions_label_a_grid_that_has_no_names():
    assert lines_of(mask_grid(causal_mask(2, 4)))[0].split() == ["0", "1", "2", "3"]


def test_bars_share_one_scale():
    lines = lines_of(curve([("one", 1.0), ("four", 4.0)], unit="x", width=8))
    assert [line.count("█") for line in lines] == [2, 8]
    assert lines[1].split()[-1] == "4.0x"


def test_the_brightest_cell_is_the_largest_weight():
    coloured = "\n".join(lines_of(weight_grid([[0.0, 1.0]]), force_terminal=True, color_system="truecolor"))
    assert "48;2;255;196;64" in coloured
    assert "48;2;18;24;48" in coloured


def test_more_than_one_matrix_is_refused_with_advice():
    with pytest.raises(ShapeError, match=r"\(2, 3, 3\).*weights\[0, 0\]"):
        weight_grid(np.zeros((2, 3, 3)))
