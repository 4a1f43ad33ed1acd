"""`qkv compare`: what cache policies and smaller weights save, and what they change in what a model says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from qkv.app.cli.compare_report import as_record, comparison_table, heading, notes
from qkv.app.cli.console import read_text, require_drawing
from qkv.app.cli.loading import load_model, warm_up
from qkv.cache import Policy
from qkv.engine.comparison import Step
from qkv.engine.comparison import compare as compare_policies
from qkv.engine.generation import require_tokenizer
from qkv.errors import OptionError
from qkv.models import Model
from qkv.models.weights import Weights, form_of, weight_nbytes

if TYPE_CHECKING:
    from qkv.engine.compared import Comparison


def compare(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; half of --text when left out.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A folder with config.json and safetensors; verse comes with qkv.")
    ] = "verse",
    cache: Annotated[
        list[str] | None,
        typer.Option(help="A policy, such as int8,window=1024; repeatable. One of each kind when left out."),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="Run these weights beside the stored ones; repeatable. Alone, no policy is run."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Score the text of this file, instead of what the model writes.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="How many tokens to compare: 128, or all of --text.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw what each policy keeps, and each token's KL, to a .png, .svg or .pdf file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run cache policies and weights side by side on PROMPT; say what each costs against the full cache.

    All read the same tokens: those that the full float32 cache makes most likely, or those of a text.
    """
    if plot is not None:
        require_drawing(plot)
    policies = None if cache is None and weights is None else [_policy(one) for one in cache or ()]
    forms: list[Weights] = [_weights(one) for one in weights or ()]
    continuation = None if text is None else read_text("--text", text)
    loaded = load_model(model)
    beginning, scored = _split(loaded, prompt, continuation)
    others: dict[str, Model] = {form: load_model(model, form) for form in forms}
    for one in (loaded, *others.values()):
        warm_up(one, Policy())
    with _progress() as progress:
        found = compare_policies(
            loaded,
            beginning,
            policies,
            text=scored,
            max_tokens=max_tokens,
            others=others,
            on_step=_showing(progress),
        )
    if plot is not None:
        draw(found, plot)
    tokenizer = require_tokenizer(loaded)
    nbytes = {name: weight_nbytes(one) for name, one in {"": loaded, **others}.items()}
    if as_json:
        typer.echo(json.dumps(as_record(found, tokenizer, nbytes), ensure_ascii=False, indent=2))
        return
    console = Console(highlight=False)
    for part in heading(found, tokenizer, scored):
        console.print(part)
    console.print(comparison_table(found, tokenizer))
    for line in notes(found, nbytes):
        console.print(Text(line, "dim"), soft_wrap=True)


def draw(found: "Comparison", path: Path) -> None:
    """Draw a comparison to a file; the drawing library is loaded only here."""
    from qkv.viz.memory import save
    from qkv.viz.strategies import strategies_figure

    save(strategies_figure(found), path)


def _policy(text: str) -> Policy:
    try:
        return Policy.parse(text)
    except OptionError as error:
        raise OptionError(f"--cache {text}: {error}") from error


def _weights(text: str) -> Weights:
    form_of(cast(Weights, text))
    return cast(Weights, text)


def _split(
    model: Model, prompt: str | None, text: str | None
) -> tuple[str | Sequence[int], Sequence[int] | None]:
    """Return what is read at once and what is scored: a text without a prompt is its own, up to half."""
    if text is None and prompt is None:
        raise OptionError("give a PROMPT to continue, or a text to score with --text FILE")
    if text is None:
        return prompt or "", None
    ids = require_tokenizer(model).encode(text, add_special_tokens=prompt is None)
    if prompt is not None:
        return prompt, ids
    half = max(1, min(len(ids), model.context_length) // 2)
    return ids[:half], ids[half:]


def _progress() -> Progress:
    # Drawn between tokens only: a thread that draws would take its time from what is being measured.
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    return Progress(*columns, console=console, transient=True, auto_refresh=False, disable=hidden)


def _showing(progress: Progress) -> Step:
    task = progress.add_task("tokens", total=None)

    def show(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total, refresh=True)

    return show
