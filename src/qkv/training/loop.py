"""The loop: draw a batch, find the gradients, take a step; look at held-out text, keep a checkpoint."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qkv.errors import CheckpointError, NumericError
from qkv.training.adamw import AdamW, clip
from qkv.training.batches import Batch
from qkv.training.checkpoint import load_checkpoint, origin_of, save_checkpoint
from qkv.training.cross_entropy import IGNORED
from qkv.training.curve import Curve, Evaluation
from qkv.training.dropout import Dropout
from qkv.training.parameters import Parameters
from qkv.training.presets import Settings

DROPOUT_STREAM = 1
"""Beside the seed and the step, so that dropout is not drawn from the numbers that the batch was."""


class Trainable(Protocol):
    """A model that knows its loss and the way downhill."""

    @property
    def parameters(self) -> Parameters:
        """What training moves, in place."""
        ...

    def loss(self, ids: Any, targets: Any) -> float:
        """Return the mean nats of the targets that count; ids and targets are (B, T)."""
        ...

    def loss_and_gradients(
        self, ids: Any, targets: Any, gradients: Parameters, dropout: Dropout | None = None
    ) -> float:
        """Return the loss, and overwrite the gradients with its derivative by each parameter."""
        ...


class Data(Protocol):
    """What is learned: the same step gives the same batch, in any process."""

    @property
    def fingerprint(self) -> str:
        """Tells this data from other data."""
        ...

    @property
    def held_out_bytes(self) -> int | None:
        """What the held-out text takes in UTF-8; ``None`` if it is no text."""
        ...

    def batch(self, step: int) -> Batch:
        """Return the ids and targets of a step."""
        ...

    def held_out(self) -> Iterator[Batch]:
        """Give what the model is examined on and never trained on."""
        ...


@dataclass(frozen=True)
class Progress:
    """Where a training is, after a step.

    Attributes
    ----------
    step, steps : int
        Taken, and in all.
    loss : float
        Mean nats per token of this step's batch.
    learning_rate, norm : float
        What the step was taken with: its size, and the length of the gradients before clipping.
    evaluation : Evaluation or None
        If there was one after this step.
    """

    step: int
    steps: int
    loss: float
    learning_rate: float
    norm: float
    evaluation: Evaluation | None


def train(
    model: Trainable,
    data: Data,
    settings: Settings,
    path: Path,
    *,
    evaluate_every: int = 250,
    checkpoint_every: int = 100,
    accept_changes: bool = False,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> Curve:
    """Train a model to the last step, from the first or from where a checkpoint left it.

    Parameters
    ----------
    model : Trainable
        Before its first step; from a checkpoint its parameters are overwritten.
    data : Data
    settings : Settings
    path : Path
        The checkpoint. Killed at any moment, the same call goes on from it with the same losses, to the bit.
    evaluate_every, checkpoint_every : int
        Steps from one to the next; both happen after the last step too.
    accept_changes : bool
        Go on from a checkpoint of other settings.
    on_step : callable
        Told how far it is after each step.

    Returns
    -------
    Curve

    Raises
    ------
    NumericError
        If a loss, a gradient or what the last step has made is not finite; the last checkpoint is from
        before.
    CheckpointError
        If the checkpoint is of another training or cannot be written; the last one stays.
    """
    optimiser = optimiser_of(model.parameters, settings)
    origin = origin_of(settings, data.fingerprint)
    curve = Curve()
    if path.exists():
        curve = load_checkpoint(path, optimiser, origin, accept_changes=accept_changes)
        if curve.num_steps > settings.steps:
            raise CheckpointError(
                f"{path} has taken {curve.num_steps} steps, more than {settings.steps}; ask for more, "
                "or take another folder"
            )
    saved = curve.num_steps
    gradients = model.parameters.zeros()
    for step in range(curve.num_steps, settings.steps):
        learning_rate = settings.schedule.at(step)
        loss, norm = find_gradients(model, data, settings, step, gradients)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = f"loss is {loss}" if not math.isfinite(loss) else f"length of the gradients is {norm}"
            raise NumericError(_not_finite(what, step, saved, settings))
        with np.errstate(all="ignore"):  # it may overflow, which the next loss will show, if there is one
            optimiser.step(gradients, learning_rate)
        curve.losses.append(loss)
        curve.norms.append(norm)
        done, is_last = step + 1, step + 1 == settings.steps
        if is_last and not _is_finite(model.parameters):
            raise NumericError(_not_finite("parameters are not all finite", step, saved, settings))
        evaluation = evaluate(model, data, done) if done % evaluate_every == 0 or is_last else None
        if evaluation is not None:
            curve.evaluations.append(evaluation)
        if (done % checkpoint_every == 0 or is_last) and _is_finite(model.parameters):
            save_checkpoint(path, optimiser, curve, origin)
            saved = done
        on_step(Progress(done, settings.steps, loss, learning_rate, norm, evaluation))
    return curve


def optimiser_of(parameters: Parameters, settings: Settings) -> AdamW:
    """Return AdamW before its first step; only matrices decay."""
    return AdamW(
        parameters,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        decayed=[name for name, array in parameters.items() if array.ndim > 1],
    )


def find_gradients(
    model: Trainable, data: Data, settings: Settings, step: int, gradients: Parameters
) -> tuple[float, float]:
    """Write the gradients of a step, clipped; return the loss and the length they had."""
    dropout = None
    if settings.dropout:
        generator = np.random.default_rng((settings.seed, step, DROPOUT_STREAM))
        dropout = Dropout(settings.dropout, generator)
    with np.errstate(all="ignore"):  # what is no longer finite is found by the caller
        loss = model.loss_and_gradients(*data.batch(step), gradients, dropout)
        return loss, clip(gradients, settings.max_norm)


@np.errstate(all="ignore")
def evaluate(model: Trainable, data: Data, step: int = 0) -> Evaluation:
    """Examine a model on all held-out data.

    Parameters
    ----------
    model : Trainable
    data : Data
    step : int
        How many steps the model has taken, for the record.

    Returns
    -------
    Evaluation
        Nats per token over every target that counts, and bits per byte of the text.
    """
    nats, num_tokens = 0.0, 0
    for ids, targets in data.held_out():
        counted = int(np.count_nonzero(targets != IGNORED))
        nats += model.loss(ids, targets) * counted
        num_tokens += counted
    return Evaluation.of(step, nats, num_tokens, data.held_out_bytes)


def _is_finite(parameters: Parameters) -> bool:
    return bool(np.isfinite(parameters.vector).all())


def _not_finite(what: str, step: int, saved: int, settings: Settings) -> str:
    kept = f"the checkpoint of step {saved} is kept" if saved else "there was no checkpoint yet"
    return (
        f"the {what} at step {step + 1}; {kept}; lower the learning rate (now {settings.learning_rate:g}) "
        f"or max_norm (now {settings.max_norm:g}), or let it rise over more than {settings.warm_up:.0%} "
        "of the steps"
    )
