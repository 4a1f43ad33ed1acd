"""What is shown while a model trains, at moments that are made up."""

import io

import pytest
from rich.console import Console

from qkv.app.cli.train_display import Display
from qkv.training.curve import Evaluation
from qkv.training.loop import Progress
from qkv.training.presets import preset

SETTINGS = preset("tiny", B=5, T=20, steps=40)


def progress(step: int, loss: float, evaluation: Evaluation | None = None) -> Progress:
    return Progress(step, 40, loss, learning_rate=0.1, norm=1.0, evaluation=evaluation)


def display(moments: list[float], *, terminal: bool) -> tuple[Display, io.StringIO]:
    written = io.StringIO()
    console = Console(file=written, width=100, force_terminal=terminal)
    return Display(SETTINGS, console, clock=iter(moments).__next__), written


def test_the_speed_is_that_of_the_steps_between_the_looks():
    """100 tokens a step: 4 seconds, then 2 after a sample that took 50."""
    shown, _ = display([10.0, 14.0, 64.0, 66.0], terminal=False)
    shown.step(progress(1, 6.0))
    assert shown.tokens_per_second == 0
    shown.step(progress(2, 6.0))
    assert shown.tokens_per_second == 25
    shown.resume_clock()
    shown.step(progress(3, 6.0))
    assert shown.tokens_per_second == pytest.approx(25 + 0.05 * 25)


def test_without_a_terminal_there_is_a_line_for_each_look_and_no_bar():
    shown, written = display([0.0, 1.0, 2.0], terminal=False)
    with shown:
        shown.step(progress(1, 6.0))
        shown.step(progress(2, 4.0))
        shown.step(progress(3, 5.9, Evaluation(3, 2.5, 1.75)))
        shown.sample("\nAll's well\nthat [ends] well\n")
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    assert lines == [
        "step 3 · loss 5.900 · 100 tokens/s · held out 2.500 nats per token, 1.750 bits per byte",
        "    All's well",
        "    that [ends] well",
        "",
    ]


def test_in_a_terminal_a_bar_tells_how_far_it_is():
    shown, written = display([0.0, 1.0], terminal=True)
    with shown:
        shown.step(progress(9, 6.0))
        shown.step(progress(10, 6.0))
    assert "10/40" in written.getvalue() and "loss 6.000 · 100 tokens/s" in written.getvalue()
