import io

import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from qkv.training.curve import Curve, Evaluation
from qkv.viz.loss import draw_loss, loss_bars, new_figure, running_mean

CURVE = Curve(
    losses=[6.0 - 0.04 * step for step in range(101)],
    norms=[1.0] * 101,
    evaluations=[Evaluation(50, 4.25, 3.1), Evaluation(101, 2.5, 1.875)],
)


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_the_losses_their_mean_and_the_held_out_text_are_drawn():
    axes = new_figure().subplots()
    draw_loss(axes, CURVE, title="verse")
    each, mean, held_out = (np.array(line.get_xydata()) for line in axes.get_lines())
    assert each.tolist() == [[step + 1, loss] for step, loss in enumerate(CURVE.losses)]
    assert mean[0].tolist() == [2, pytest.approx(5.98)]  # of the first two
    assert held_out.tolist() == [[50, 4.25], [101, 2.5]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("step", "nats per token", "verse")
    assert labels(axes) == ["training", "held out, 1.875 bits per byte at the end"]


@pytest.mark.parametrize("num_steps", [1, 2, 7])
def test_a_short_training_can_be_drawn_too(num_steps: int):
    curve = Curve([3.0] * num_steps, [1.0] * num_steps, [Evaluation(num_steps, 2.0, None)])
    axes = new_figure().subplots()
    draw_loss(axes, curve)
    assert labels(axes) == ["training", "held out"]
    draw_loss(new_figure().subplots(), Curve([3.0], [1.0]))


def test_bars_are_the_means_of_ten_stretches():
    written = io.StringIO()
    Console(file=written, width=80).print(loss_bars(CURVE))
    rows = [line.split() for line in written.getvalue().splitlines()[1:]]
    assert [row[1] for row in rows] == ["11", "21", "31", "41", "51", "61", "71", "81", "91", "101"]
    assert [float(row[-1]) for row in rows] == pytest.approx(
        [5.8, 5.4, 5.0, 4.6, 4.2, 3.8, 3.4, 3.0, 2.6, 2.2], abs=0.06
    )


def test_a_running_mean_of_one_is_the_values():
    assert running_mean([3.0, 1.0], 1).tolist() == [3.0, 1.0]
