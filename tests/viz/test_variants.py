"""The table of variants: a bar and a number in each cell."""

import pytest

from lab_results import as_result
from qkv.lab import Measured
from qkv.lab.variants import VARIANTS
from qkv.viz.variants import bar_lengths, draw_variants

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

SERIES = {
    "variant": ["mha", "mqa", "window"],
    "bytes_per_token": [8192.0, 512.0, 256.0],
    "decode": [1.0, 0.25, 0.125],
    "prefill": [1.0, 0.5, 8.0],
    "workspace": [1_000_000, 250_000, 0],
    "kl": [None, None, 0.0042],
}


def texts_of(language):
    axes = figures.Figure().add_subplot()
    draw_variants(as_result(VARIANTS, VARIANTS.quick, Measured({}, SERIES)), axes, language)
    return axes, [text.get_text() for text in axes.texts]


def test_every_number_of_the_table_is_written_down():
    axes, texts = texts_of("en")
    for text in ("8,192", "512", "256", "1×", "0.25×", "0.12×", "8×", "1.0", "0.2", "0.0", "0.004 (W = 64)"):
        assert text in texts, text
    assert texts.count("exact") == texts.count("not trained here") == 1
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["MHA, tiled", "MQA", "window of 128"]


def test_a_column_is_headed_in_the_language_asked_for():
    assert "decode time\nS = 4096" in texts_of("en")[1]
    assert "解码时间\nS = 4096" in texts_of("zh")[1]


def test_the_longest_bar_is_half_a_column_and_times_are_cut_at_four():
    assert bar_lengths("workspace", [2, 1, 0]) == [0.5, 0.25, 0.0]
    assert bar_lengths("prefill", [1.0, 8.0]) == [0.125, 0.5]
    assert bar_lengths("kl", [None, 0.5]) == [0.0, 0.0]
