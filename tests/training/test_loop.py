"""What training promises: the same losses from the same seed, whatever happens on the way."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bigram_model
import stopped_training
from bigram_model import Bigram, settings, windows
from qkv.errors import CheckpointError, NumericError
from qkv.models.llama import LlamaConfig
from qkv.training.curve import Curve
from qkv.training.llama import TrainableLlama
from qkv.training.loop import Progress, evaluate, find_gradients, optimiser_of, train

EVERY = stopped_training.CHECKPOINT_EVERY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def trained(path: Path, **changes: object) -> tuple[Curve, Bigram]:
    model = Bigram()
    curve = train(model, windows(), settings(**changes), path, evaluate_every=4, checkpoint_every=EVERY)
    return curve, model


def test_the_stand_in_has_the_right_gradient():
    model, data = Bigram(), windows()
    model.parameters.vector[:] = np.random.default_rng(1).normal(size=model.parameters.vector.size)
    gradients = model.parameters.zeros()
    model.loss_and_gradients(*data.batch(0), gradients)
    for index in (1, 60, 125):
        ends = []
        for step in (1e-2, -2e-2):
            model.parameters.vector[index] += step
            ends.append(model.loss(*data.batch(0)))
        model.parameters.vector[index] += 1e-2
        assert gradients.vector[index] == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=1e-2, abs=1e-4)


def test_training_lowers_the_loss_on_text_that_it_never_saw(path: Path):
    curve, model = trained(path, steps=60, dropout=0.0)
    first, last = evaluate(Bigram(), windows()), curve.evaluations[-1]
    assert first.nats_per_token == pytest.approx(np.log(11))
    assert last.nats_per_token < 0.7 * first.nats_per_token
    assert last == evaluate(model, windows(), 60)
    assert [evaluation.step for evaluation in curve.evaluations] == [*range(4, 61, 4)]


def test_a_seed_gives_the_same_losses_and_another_gives_others(tmp_path: Path):
    curves = [trained(tmp_path / name, seed=seed)[0] for name, seed in [("a", 5), ("b", 5), ("c", 6)]]
    assert curves[0] == curves[1]
    assert curves[0].losses != curves[2].losses  # by the dropout: the windows have a seed of their own


@pytest.mark.parametrize(
    ("call", "number"), [("none", 0), ("fsync", 1), ("fsync", 3), ("fsync", 4), ("replace", 2)]
)
def test_killed_at_any_moment_it_goes_on_with_the_same_losses_bit_for_bit(
    path: Path, tmp_path: Path, call: str, number: int
):
    arguments = [sys.executable, stopped_training.__file__, str(path), call, str(number)]
    seen = os.pathsep.join([str(Path(bigram_model.__file__).parent), *sys.path])
    process = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": seen}
    )
    assert process.stdout is not None and process.stdin is not None
    with process.stdin, process.stdout:
        steps = []
        for line in process.stdout:
            steps.append(int(line))
            if steps[-1] == 8:
                process.kill()
    assert process.wait() == -9
    last_whole = {("none", 0): 6, ("fsync", 1): 0, ("fsync", 3): 3, ("fsync", 4): 6, ("replace", 2): 3}
    assert path.exists() == (last_whole[call, number] > 0)
    straight, at_once = trained(tmp_path / "other")
    seen_steps: list[int] = []
    model = Bigram()
    curve = train(
        model,
        windows(),
        settings(),
        path,
        evaluate_every=4,
        checkpoint_every=EVERY,
        on_step=lambda progress: seen_steps.append(progress.step),
    )
    assert seen_steps[0] == last_whole[call, number] + 1
    assert curve.losses == straight.losses and curve.norms == straight.norms
    assert np.array_equal(model.parameters.vector, at_once.parameters.vector)
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(".")] == []


def test_a_llama_goes_on_with_the_same_losses_too(tmp_path: Path):
    """With dropout, and a whole model's gradients between two steps."""
    chosen = settings(E=8, F=12, L=2, H=2, G=1, D=4, steps=7)
    config = LlamaConfig.from_dict(chosen.config())

    def run(path: Path, stop_at: int) -> tuple[Curve, TrainableLlama]:
        def stop(progress: Progress) -> None:
            if progress.step == stop_at:
                raise KeyboardInterrupt

        model = TrainableLlama.begin(config, chosen.seed)
        return train(model, windows(), chosen, path, checkpoint_every=2, on_step=stop), model

    straight, model = run(tmp_path / "straight", 0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", 5)
    resumed, other = run(tmp_path / "stopped", 0)
    assert resumed == straight
    assert np.array_equal(model.parameters.vector, other.parameters.vector)


def test_a_finished_training_is_not_done_again(path: Path):
    curve, model = trained(path)
    told: list[Progress] = []
    again = Bigram()
    assert train(again, windows(), settings(), path, on_step=told.append) == curve
    assert told == [] and np.array_equal(again.parameters.vector, model.parameters.vector)


def test_steps_are_not_taken_back(path: Path):
    trained(path)
    with pytest.raises(CheckpointError, match="has taken 13 steps, more than 11; ask for more"):
        train(Bigram(), windows(), settings(steps=11), path, accept_changes=True)


def test_each_step_is_told(path: Path):
    told: list[Progress] = []
    curve = train(Bigram(), windows(), settings(), path, evaluate_every=5, on_step=told.append)
    assert [progress.step for progress in told] == [*range(1, 14)]
    assert [progress.loss for progress in told] == curve.losses
    assert told[0].loss == pytest.approx(np.log(11))  # of parameters before the step
    schedule = settings().schedule
    assert [progress.learning_rate for progress in told] == [schedule.at(step) for step in range(13)]
    assert [progress.evaluation for progress in told if progress.evaluation] == curve.evaluations
    assert [evaluation.step for evaluation in curve.evaluations] == [5, 10, 13]


class Breaking(Bigram):
    """Its loss is no number from one batch on."""

    def __init__(self, broken_batch: np.ndarray, bad: float, where: str) -> None:
        super().__init__()
        self.broken_batch, self.bad, self.where = broken_batch, bad, where

    def loss_and_gradients(self, ids, targets, gradients, dropout=None):
        loss = super().loss_and_gradients(ids, targets, gradients, dropout)
        if not np.array_equal(ids, self.broken_batch):
            return loss
        if self.where == "gradients":
            gradients.vector[3] = self.bad
            return loss
        return self.bad


@pytest.mark.parametrize("where", ["loss", "gradients"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(
    path: Path, tmp_path: Path, where: str, bad: float
):
    data = windows()
    model = Breaking(data.batch(7)[0], bad, where)
    with pytest.raises(
        NumericError, match=r"at step 8; the checkpoint of step 6 is kept; lower the learning"
    ):
        train(model, data, settings(), path, checkpoint_every=3)
    good, _ = trained(tmp_path / "good")
    assert trained(path)[0].losses == good.losses  # healed, it goes on from step 6


def test_without_a_checkpoint_a_loss_that_is_no_number_says_so(path: Path):
    data = windows()
    with pytest.raises(NumericError, match=r"step 1; there was no checkpoint yet; .* \(now 0.1\)"):
        train(Breaking(data.batch(0)[0], np.nan, "loss"), data, settings(), path)
    assert not path.exists()


def test_parameters_that_are_not_finite_are_never_kept(path: Path):
    """The very first step goes beyond what float32 holds, and a checkpoint is due after it."""
    with pytest.raises(NumericError, match=r"at step 2; there was no checkpoint yet"):
        train(Bigram(), windows(), settings(learning_rate=1e39), path, evaluate_every=1, checkpoint_every=1)
    assert not path.exists()


@pytest.mark.parametrize("evaluate_every", [1, 250])
def test_a_last_step_beyond_what_numbers_hold_is_no_training_that_ended_well(path: Path, evaluate_every: int):
    """No loss comes after it that would show it."""
    hot = settings(learning_rate=1e39, steps=1)
    with pytest.raises(NumericError, match=r"not all finite at step 1; there was no checkpoint"):
        train(Bigram(), windows(), hot, path, evaluate_every=evaluate_every)
    assert not path.exists()


def test_a_full_disk_is_one_clear_error_and_the_last_checkpoint_stays(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 2:  # after the file and the folder of the first checkpoint
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left on device; the checkpoint that was there"):
            trained(path)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]
    assert trained(path)[0] == trained(tmp_path / "other")[0]


def test_gradients_are_clipped_and_their_length_is_told(path: Path):
    model, data = Bigram(), windows()
    gradients = model.parameters.zeros()
    _, norm = find_gradients(model, data, settings(max_norm=0.01, dropout=0.0), 0, gradients)
    model.loss_and_gradients(*data.batch(0), gradients)
    assert norm == pytest.approx(float(np.linalg.norm(gradients.vector))) and norm > 0.01
    find_gradients(model, data, settings(max_norm=0.01, dropout=0.0), 0, gradients)
    assert np.linalg.norm(gradients.vector) == pytest.approx(0.01)


def test_each_step_drops_other_numbers():
    class Watched(Bigram):
        def loss_and_gradients(self, ids, targets, gradients, dropout=None):
            assert dropout is not None
            drawn.append(dropout.draw((3, 5, 7)))
            return 1.0

    drawn: list[np.ndarray] = []
    model = Watched()
    for step, seed in [(0, 5), (1, 5), (0, 6), (0, 5)]:
        find_gradients(model, windows(), settings(seed=seed), step, model.parameters.zeros())
    assert [np.array_equal(drawn[0], other) for other in drawn[1:]] == [False, False, True]


def test_matrices_decay_and_scales_do_not():
    parameters = Bigram().parameters
    parameters["table"][:] = 2
    optimiser_of(parameters, settings(weight_decay=0.5)).step(parameters.zeros(), learning_rate=0.5)
    assert np.allclose(parameters["table"], 1.5) and (parameters["scale"] == 1).all()


def test_an_evaluation_weighs_every_token_the_same():
    """Batches of 3 and 1 counted targets, of 2 nats and 6 nats each: 12 nats over 4 tokens and 8 bytes."""

    class Rows:
        fingerprint, held_out_bytes = "", 8

        def batch(self, step: int):
            raise AssertionError("not asked for")

        def held_out(self):
            yield np.zeros((1, 4), int), np.array([[1, 1, 1, -1]])
            yield np.zeros((1, 4), int), np.array([[-1, 1, -1, -1]])

    class Known(Bigram):
        def loss(self, ids, targets):
            return {3: 2.0, 1: 6.0}[int(np.count_nonzero(targets >= 0))]

    evaluation = evaluate(Known(), Rows(), 17)
    assert (evaluation.step, evaluation.nats_per_token) == (17, 3.0)
    assert evaluation.bits_per_byte == pytest.approx(12 / np.log(2) / 8)
