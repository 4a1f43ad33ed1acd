"""Pictures show the numbers of a result, and stand in a page beside each other."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from lab_results import as_result
from qkv.lab import EXPERIMENTS, Measured
from qkv.viz.pictures import PICTURES, draw, has_picture, svg

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

WAYS = ("textbook", "tiled", "kernel")
MEASURED = {
    "a": Measured(
        {},
        {
            "D": [16, 64],
            "raw_top": [0.5, 0.75],
            "scaled_top": [0.07, 0.0625],
            "derivative_ratio": [2.5, 1.75],
        },
    ),
    "b": Measured(
        {"future_mass": 0.0, "unmasked_future_mass": 0.43},
        {"weights": [[1.0, 0.0], [0.25, 0.75]], "unmasked_weights": [[0.5, 0.5], [0.25, 0.75]]},
    ),
    "g": Measured(
        {f"{way}_{of}_slope": 1.25 for way in WAYS for of in ("bytes", "time")},
        {"ways": list(WAYS), "bytes_n": [7, 128], "seconds_n": [128]}
        | {f"{way}_bytes": [1000, 30000] for way in WAYS}
        | {f"{way}_seconds": [0.5] for way in WAYS},
    ),
    "l": Measured(
        {},
        {
            "strategy": ["max", "pages of 16"],
            "token_states": [0.25, 0.9375],
            "reserved": [0.125, 0.0],
            "internal": [0.5, 0.0625],
            "external": [0.125, 0.0],
        },
    ),
}
"""Numbers to draw, made up."""


def result_of(letter):
    experiment = next(one for one in EXPERIMENTS if one.id == letter)
    return as_result(experiment, experiment.quick, MEASURED[letter])


def drawn(letter):
    axes = figures.Figure().add_subplot()
    draw(result_of(letter), axes)
    return axes


def test_lines_run_through_the_numbers():
    lines = {line.get_label(): line for line in drawn("a").lines}
    assert lines["top weight, unscaled"].get_xydata().tolist() == [[16, 0.5], [64, 0.75]]
    assert lines["softmax's derivative, unscaled by scaled"].get_ydata().tolist() == [2.5, 1.75]
    lines = {line.get_label(): line for line in drawn("g").lines}
    assert lines["tiled, NumPy (n^1.2, n^1.2)"].get_xydata().tolist() == [[7, 1000], [128, 30000]]


def test_maps_stand_side_by_side_with_their_shares_of_the_future():
    axes = drawn("b")
    image = axes.images[0].get_array()
    assert image.shape == (2, 2 + 4 + 2)
    assert image[1, :2].tolist() == [0.5, 0.75**0.5]  # the root, so that small weights show
    assert image[:, 2:6].mask.all()
    assert [text.get_text() for text in axes.texts] == ["0%", "43%"]


def test_bars_of_a_strategy_fill_the_whole_pool():
    axes = drawn("l")
    ends = [max(bar.get_x() + bar.get_width() for bar in group) for group in axes.containers]
    assert ends == [0.9375, 0.9375, 1.0, 1.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["for the longest", "pages of 16"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pictures_of_one_page_share_no_name_and_fetch_nothing(language):
    seen = set()
    for letter in MEASURED:
        text = svg(result_of(letter), language)
        root = ElementTree.fromstring(text)
        ids = {one.get("id") for one in root.iter() if one.get("id")}
        assert not ids & seen
        seen |= ids
        used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
        assert used <= ids
        assert not re.search(r"href=\"(?!#|data:image/png;base64)|url\((?!#)|<script|<metadata", text)
        assert "width" not in root.attrib and "viewBox" in root.attrib


def test_text_stays_text_in_the_language_asked_for():
    assert "最大权重，不缩放" in svg(result_of("a"), "zh")
    assert "top weight, unscaled" in svg(result_of("a"), "en")


def test_the_same_result_gives_the_same_picture():
    assert svg(result_of("a")) == svg(result_of("a"))


def test_only_what_was_measured_has_a_picture():
    assert all(has_picture(result_of(letter)) for letter in MEASURED)
    experiment = EXPERIMENTS[0]
    assert not has_picture(as_result(experiment, experiment.quick, Measured({})))
    assert set(PICTURES) <= {one.id for one in EXPERIMENTS}
