"""How a training went: each step's loss, its running mean, and the loss on held-out text."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group

from qkv.errors import OptionError
from qkv.training.curve import Curve
from qkv.viz.terminal import curve as bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 10
SMOOTHED_SHARE = 0.02
"""Of all steps, that a point of the running mean is the mean of."""


def new_figure() -> "Figure":
    """Return an empty figure of the size a curve takes.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("drawing needs the extra: pip install 'qkv[viz]'") from None
    return Figure(figsize=(8, 4.5), layout="constrained")


def draw_loss(axes: "Axes", curve: Curve, *, title: str = "") -> None:
    """Draw a training onto an axis: steps along, nats per token up.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    curve : Curve
    title : str
    """
    steps = np.arange(1, curve.num_steps + 1)
    axes.plot(steps, curve.losses, color="tab:blue", alpha=0.25, linewidth=0.6)
    width = max(1, round(SMOOTHED_SHARE * curve.num_steps))
    axes.plot(steps[width - 1 :], running_mean(curve.losses, width), color="tab:blue", label="training")
    if curve.evaluations:
        at = [evaluation.step for evaluation in curve.evaluations]
        nats = [evaluation.nats_per_token for evaluation in curve.evaluations]
        axes.plot(at, nats, "o-", color="tab:orange", markersize=3, label=_held_out_label(curve))
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()


def loss_bars(curve: Curve) -> Group:
    """Return the mean losses of ten stretches of a training as bars, for a terminal.

    Examples
    --------
    >>> from rich.console import Console
    >>> Console(width=60, no_color=True).print(loss_bars(Curve(losses=[4.0, 2.0], norms=[1.0, 1.0])))
    training loss, nats per token
     step 1  ████████████████████████████████████████  4.0
     step 2  ████████████████████                      2.0
    """
    stretches = np.array_split(np.array(curve.losses), min(BARS, curve.num_steps))
    ends = np.cumsum([len(stretch) for stretch in stretches]).tolist()
    points = [(f"step {end:,}", float(stretch.mean())) for end, stretch in zip(ends, stretches, strict=True)]
    return bars(points, title="training loss, nats per token")


def running_mean(values: list[float], width: int) -> NDArray[np.float64]:
    """Return the mean of every ``width`` values that follow each other.

    Examples
    --------
    >>> running_mean([1.0, 3.0, 5.0], 2).tolist()
    [2.0, 4.0]
    """
    return np.convolve(values, np.full(width, 1 / width), mode="valid")


def _held_out_label(curve: Curve) -> str:
    bits = curve.evaluations[-1].bits_per_byte
    return "held out" if bits is None else f"held out, {bits:.3f} bits per byte at the end"
