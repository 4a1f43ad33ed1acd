"""What `qkv train` shows while it runs: how far it is, how fast, what is left, and what the model writes."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from qkv.training.curve import Evaluation
from qkv.training.loop import Progress as Step
from qkv.training.presets import Settings

NEW_SHARE = 0.05
"""Of each step in the running means of loss and speed."""


class Display:
    """A progress bar with lines above it; without a terminal only the lines.

    Parameters
    ----------
    settings : Settings
    console : rich.console.Console
    clock : callable
        Seconds.

    Attributes
    ----------
    tokens_per_second : float
        A running mean; 0 before the second step.
    """

    def __init__(
        self, settings: Settings, console: Console, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tokens_of_step = settings.B * settings.T
        self._console, self._clock = console, clock
        self._loss: float | None = None
        self._before: float | None = None
        self.tokens_per_second = 0.0
        columns = (
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
        )
        hidden = not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=hidden)
        self._task = self._bar.add_task("", total=settings.steps, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Show a line above the bar."""
        self._console.print(Text(line, "dim"), soft_wrap=True)

    def step(self, step: Step) -> None:
        """Show that a step was taken; what happens until the next call is the next step's."""
        now = self._clock()
        if self._before is not None:
            speed = self._tokens_of_step / max(now - self._before, 1e-9)
            self.tokens_per_second = _mean(self.tokens_per_second or speed, speed)
        self._before = now
        self._loss = _mean(step.loss if self._loss is None else self._loss, step.loss)
        figures = f"loss {self._loss:.3f} · {self.tokens_per_second:,.0f} tokens/s"
        self._bar.update(self._task, completed=step.step, figures=figures)
        if step.evaluation is not None:
            self.say(f"step {step.step:,} · {figures} · held out {describe(step.evaluation)}")

    def resume_clock(self) -> None:
        """Take what happened since the last step, such as a sample, out of the speed."""
        self._before = self._clock()

    def sample(self, text: str) -> None:
        """Show what the model writes."""
        self._console.print(Padding(Text(text.strip("\n")), (0, 0, 1, 4)))


def describe(evaluation: Evaluation) -> str:
    """Return the figures of an evaluation.

    Examples
    --------
    >>> describe(Evaluation(step=7, nats_per_token=2.5, bits_per_byte=1.75))
    '2.500 nats per token, 1.750 bits per byte'
    """
    nats = f"{evaluation.nats_per_token:.3f} nats per token"
    return (
        nats if evaluation.bits_per_byte is None else f"{nats}, {evaluation.bits_per_byte:.3f} bits per byte"
    )


def _mean(mean: float, value: float) -> float:
    return mean + NEW_SHARE * (value - mean)
