"""The picture of a comparison shows each token's cost and who still holds it."""

import io

import numpy as np
import pytest

from qkv.cache import Policy
from qkv.engine import compare
from qkv.engine.compared import Compared, Comparison, Divergence, NotCompared
from qkv.models import load
from qkv.viz.strategies import BARS_TOP, MASK_TOP, draw_strategies, strategies_figure
from tiny_models import write_model

figures = pytest.importorskip("matplotlib.figure", reason="needs the extra: pip install 'qkv[viz]'")

NUM_PROMPT, NUM_TEXT, L, G = 3, 5, 2, 3
S = NUM_PROMPT + NUM_TEXT - 1


def row(policy, kl, held, divergence=None, weights="", nbytes=2048):
    kl = tuple(kl)
    return Compared(
        policy=Policy.parse(policy),
        kl=kl,
        agrees=(True,) * len(kl),
        log_probs=(-1.0,) * len(kl),
        divergence=divergence,
        nbytes=nbytes,
        peak_nbytes=nbytes,
        dropped_tokens=0,
        prefill_seconds=1.0,
        decode_seconds=1.0,
        held=held,
        weights=weights,
    )


@pytest.fixture
def found():
    held = np.zeros((L, G, S), bool)
    held[0, 0, :2] = held[1, 2, 1] = held[:, :, 5:] = True
    everything = np.ones((L, G, S), bool)
    rows = (
        row("h2o=4", [1e-6, 1e-2, 99.0, 0.0, 1e-4], held, Divergence(2, 7, 8)),
        NotCompared(Policy.parse("latent"), "no latent attention"),
        row("", [0.0] * 5, everything, weights="int8"),
    )
    return Comparison((1, 2, 3), (4, 5, 6, 7, 8), row("", [0.0] * 5, everything, nbytes=4096), rows)


@pytest.fixture
def axes(found):
    made = figures.Figure(figsize=(9, 4)).add_subplot()
    draw_strategies(found, made)
    return made


def test_a_cell_is_the_share_of_key_heads_that_hold_the_token(axes):
    full, h2o, weights = (image.get_array()[0].tolist() for image in axes.images)
    assert full == weights == [1.0] * S
    assert h2o == pytest.approx([1 / 6, 2 / 6, 0, 0, 0, 1, 1])
    left, right, bottom, top = axes.images[1].get_extent()
    assert (left, right) == (-0.5, S - 0.5) and 1 < top < bottom < 2


def test_a_bar_stands_over_each_token_that_was_predicted(axes):
    from matplotlib.patches import StepPatch

    stairs = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    values, edges, baseline = stairs[1].get_data()
    assert edges.tolist() == [2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert baseline == 1 + MASK_TOP
    # 7 powers of ten between the lowest bar and the highest.
    assert (baseline - values).tolist() == pytest.approx([0, BARS_TOP * 4 / 7, BARS_TOP, 0, BARS_TOP * 2 / 7])
    assert (stairs[0].get_data()[0] == MASK_TOP).all()


def test_the_first_other_choice_is_marked_where_it_is(axes):
    marked = [line for line in axes.lines if line.get_marker() == "v"]
    assert [list(line.get_xdata()) for line in marked] == [[5, 5]]
    assert 1 < min(marked[0].get_ydata()) < 2


def test_rows_have_names_and_figures_and_say_what_was_not_run(axes, found):
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "full, float32", "h2o=4", "latent", "int8 weights",
    ]  # fmt: skip
    beside = next(one for one in axes.figure.axes if one is not axes)
    figures_of = [label.get_text() for label in beside.get_yticklabels()]
    assert figures_of == ["0 nats a token, 4 KiB", "20 nats a token, 2 KiB", "", "0 nats a token, 2 KiB"]
    assert [text.get_text() for text in axes.texts] == ["not run"]
    assert axes.get_xlabel() == "token: 3 of the prompt, then 5"


def test_a_real_comparison_is_drawn_the_same_each_time(tmp_path):
    model = load(write_model(tmp_path, "llama"))
    found = compare(model, [3, 17, 5, 59, 11, 2, 31], ["int8", "streaming=5,sinks=2,page=1"], max_tokens=13)

    def picture():
        written = io.BytesIO()
        strategies_figure(found).savefig(written, format="png")
        return written.getvalue()

    assert picture() == picture()
    figure = strategies_figure(found)
    shown = np.asarray(figure.axes[0].images[2].get_array())[0]
    assert shown.tolist() == [1.0] * 2 + [0.0] * (19 - 5) + [1.0] * 3
