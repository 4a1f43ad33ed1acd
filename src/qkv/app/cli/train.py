"""`qkv train`: a small model of one's own text, from nothing, on a CPU."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.app.cli.console import note, require_drawing
from qkv.app.cli.status import INTERRUPTED
from qkv.errors import OptionError

if TYPE_CHECKING:  # imported by those who train
    from qkv.app.cli.train_display import Display
    from qkv.training.curve import Curve, Evaluation
    from qkv.training.export import Stored
    from qkv.training.loop import Progress
    from qkv.training.text import Split
    from qkv.training.text_model import TextModel

SAMPLE_TOKENS, SAMPLE_TEMPERATURE = 80, 0.8
LOOKS = 20
"""At held-out text in a training, where nothing else is asked for."""


def train(
    text: Annotated[Path, typer.Argument(help="A UTF-8 text file, or a folder of .txt files.")],
    out: Annotated[Path, typer.Option(help="The model's folder; begun again, the training goes on.")],
    preset: Annotated[str, typer.Option(help="tiny: minutes. small: about an hour, far better.")] = "tiny",
    steps: Annotated[int | None, typer.Option(min=1, help="How many; more take longer.")] = None,
    vocab: Annotated[int | None, typer.Option(help="V, how many tokens are learned from the text.")] = None,
    context: Annotated[int | None, typer.Option(help="T, tokens of a window and of the context.")] = None,
    batch: Annotated[int | None, typer.Option(help="B, windows of a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest, after the warm-up.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Against learning a small text by heart.")] = None,
    hold_out: Annotated[
        list[str] | None, typer.Option(help="A share of the text, 0.1 if not given, or a file; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of first weights, windows and dropout.")] = 0,
    stored: Annotated[str, typer.Option(help="The numbers: bfloat16, float16 or float32.")] = "bfloat16",
    sample_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between two samples, with the held-out loss.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")] = 100,
    prompt: Annotated[str, typer.Option(help="What samples begin with.")] = "",
    plot: Annotated[Path | None, typer.Option(help="Draw the loss to a .png, .svg or .pdf file.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Where the text is from, for the model card; repeatable.")
    ] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on from a checkpoint of other settings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a small Llama on TEXT; its folder then loads in `qkv generate` and in transformers."""
    from qkv.app.cli.train_display import Display
    from qkv.training.freed_memory import keep_freed_memory
    from qkv.training.presets import preset as settings_of
    from qkv.training.text_model import TextModel, check_vocabulary
    from qkv.training.whole_file import check_folder

    keep_freed_memory()
    asked = {"steps": steps, "V": vocab, "T": context, "B": batch}
    asked |= {"learning_rate": learning_rate, "dropout": dropout, "seed": seed}
    settings = settings_of(preset, **{name: value for name, value in asked.items() if value is not None})
    form = stored_form(stored)
    if plot is not None:
        require_drawing(plot)
    check_folder(out)
    check_vocabulary(settings.V)
    split = split_text(text, hold_out or ["0.1"])
    with Display(settings, Console(stderr=True)) as display:
        display.say(f"{settings.num_parameters:,} parameters; first the text becomes {settings.V:,} tokens")
        run = Run(TextModel.begin(split, settings, out), form, prompt, tuple(source or ()), display)
        curve = run.train(sample_every or max(1, settings.steps // LOOKS), checkpoint_every, accept_changes)
        evaluation, sample = run.finish(curve)
    if plot is not None:
        draw(curve, plot)
    show_json(run, curve, evaluation, sample) if as_json else show(run, curve, evaluation, sample)


@dataclass(frozen=True, eq=False)
class Run:
    """A training and what it shows.

    Parameters
    ----------
    model : TextModel
    stored : "bfloat16", "float16" or "float32"
    prompt : str
        What samples begin with.
    source : tuple of str
        Where the text is from, for the model card.
    display : Display
    """

    model: "TextModel"
    stored: "Stored"
    prompt: str
    source: tuple[str, ...]
    display: "Display"

    def train(self, sample_every: int, checkpoint_every: int, accept_changes: bool) -> "Curve":
        """Train to the end; after Ctrl-C the last checkpoint is there."""
        try:
            return self.model.train(
                evaluate_every=sample_every,
                checkpoint_every=checkpoint_every,
                accept_changes=accept_changes,
                on_step=self._show_step,
            )
        except KeyboardInterrupt:
            kept = self.model.checkpoint.exists()
            note("run the same command to go on from the last checkpoint" if kept else "nothing was kept yet")
            raise typer.Exit(INTERRUPTED) from None

    def finish(self, curve: "Curve") -> tuple["Evaluation", str]:
        """Examine the model as it will be stored, and write its folder; return the figures and a sample."""
        from qkv.training.card import text_card

        evaluation, sample = self.model.evaluate_stored(self.stored, curve.num_steps), self._sample()
        card = text_card(
            self.model,
            curve,
            evaluation,
            title=self.model.folder.resolve().name,
            stored=self.stored,
            source=self.source,
            command=shlex.join(["qkv", *sys.argv[1:]]),
            sample=sample,
        )
        self.model.export(card.markdown(), self.stored)
        return evaluation, sample

    def _show_step(self, progress: "Progress") -> None:
        self.display.step(progress)
        if progress.evaluation is not None and progress.step < progress.steps:
            self.display.sample(self._sample())
            self.display.resume_clock()

    def _sample(self) -> str:
        """Return what the model writes, the same for the same parameters."""
        from qkv.engine import generate

        model = self.model.snapshot(self.stored)
        most = min(SAMPLE_TOKENS, model.context_length // 2)
        pieces = generate(
            model, self.prompt, max_tokens=most, temperature=SAMPLE_TEMPERATURE, seed=self.model.settings.seed
        )
        return self.prompt + "".join(pieces)


def split_text(path: Path, which: Sequence[str]) -> "Split":
    """Read a text, and hold out what ``--hold-out`` says: one share, or files by their names."""
    from qkv.training.text import hold_out, read_documents

    documents = read_documents(path)
    shares = [share for share in map(as_number, which) if share is not None]
    if not shares:
        return hold_out(documents, which)
    if len(which) > 1:
        raise OptionError("--hold-out takes one share of the text, or names of files, not both")
    return hold_out(documents, shares[0])


def as_number(text: str) -> float | None:
    """Return the number that a text is, if it is one.

    Examples
    --------
    >>> as_number("0.1"), as_number("tempest")
    (0.1, None)
    """
    try:
        return float(text)
    except ValueError:
        return None


def stored_form(name: str) -> "Stored":
    """Return the form of numbers of that name."""
    match name:
        case "bfloat16" | "float16" | "float32":
            return name
    raise OptionError(f"--stored must be bfloat16, float16 or float32, not {name!r}")


def draw(curve: "Curve", path: Path) -> None:
    """Draw the loss to a file; the drawing library is loaded only here."""
    from qkv.viz.loss import draw_loss, new_figure
    from qkv.viz.memory import save

    figure = new_figure()
    draw_loss(figure.subplots(), curve, title=path.stem)
    save(figure, path)


def show(run: Run, curve: "Curve", evaluation: "Evaluation", sample: str) -> None:
    """Show how the loss fell, what the model writes, and how to use it."""
    from qkv.app.cli.train_display import describe
    from qkv.viz.loss import loss_bars

    Console(stderr=True).print(loss_bars(curve))
    typer.echo(sample.strip("\n"))
    note(f"held out, as stored in {run.stored}: {describe(evaluation)}")
    note(f'{run.model.folder} is ready: qkv generate "..." --model {shlex.quote(str(run.model.folder))}')


def show_json(run: Run, curve: "Curve", evaluation: "Evaluation", sample: str) -> None:
    """Print the figures as one JSON object."""
    record = {
        "folder": str(run.model.folder),
        "parameters": run.model.settings.num_parameters,
        "steps": curve.num_steps,
        "last_loss": curve.losses[-1],
        "nats_per_token": evaluation.nats_per_token,
        "bits_per_byte": evaluation.bits_per_byte,
        "tokens_per_second": run.display.tokens_per_second,
        "sample": sample,
    }
    typer.echo(json.dumps(record, ensure_ascii=False, indent=2))
