"""`qkv lab`: what people say about attention, tried on this machine."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from qkv.app.cli.console import note
from qkv.errors import OptionError

if TYPE_CHECKING:
    from qkv.lab import Board, Language
    from qkv.lab.experiment import Experiment

MOST_WITH_PARTS = 3
"""So many claims asked for by name are shown part by part."""

HTML, MARKDOWN = ".html", ".md"


def lab(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="quick (default) or full, and experiments by letter or name; or: list, history, diff [A B]."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the board to a .html file that needs nothing else, or to a .md file."),
    ] = None,
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    seed: Annotated[int, typer.Option(min=0, help="Of every random number.")] = 0,
    save: Annotated[bool, typer.Option(help="Keep the results for `qkv lab history`.")] = True,
) -> None:
    """Measure what people say about attention: what holds, under which condition, and what fails."""
    language = language_of(lang)
    match words or []:
        case ["list"]:
            show_list(language, as_json)
        case ["history"]:
            show_history(as_json)
        case ["diff", *runs]:
            show_diff(runs, language)
        case asked:
            try_claims(asked, language, as_json, report, seed, save)


def language_of(name: str) -> "Language":
    """Return the language of a name."""
    if name == "en":
        return "en"
    if name == "zh":
        return "zh"
    raise OptionError(f"--lang must be en or zh, not {name!r}")


def try_claims(
    words: Sequence[str], language: "Language", as_json: bool, report: Path | None, seed: int, save: bool
) -> None:
    """Run experiments with progress, show the board, keep it."""
    from qkv.lab import Instruments
    from qkv.lab.running import chosen

    chosen(*words)  # a wrong word is refused before anything else
    if report is not None:
        require_report(report)
    board = run_with_progress(words, Instruments(seed=seed), language)
    if save:
        keep(board)
    if report is not None:
        write_report(board, report, language)
    if as_json:
        typer.echo(json.dumps(board.record(language), ensure_ascii=False, indent=2))
    else:
        show_board(board, language)


def run_with_progress(words: Sequence[str], instruments: Any, language: "Language") -> "Board":
    """Run experiments; a line tells each verdict as soon as it is there."""
    from qkv.lab import Row, run
    from qkv.viz.board import verdict_text

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between experiments only: a thread that draws would take its time from what is being measured.
    console = Console(stderr=True, highlight=False)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task("", total=None)

        def begin(experiment: "Experiment[Any]", done: int, total: int) -> None:
            title = experiment.title.say(language)
            progress.update(
                task, description=f"{experiment.id} {title}", completed=done, total=total, refresh=True
            )

        def finished(row: Row) -> None:
            name = (
                f"{row.experiment.id}  {row.experiment.title.say(language):30} {row.result.seconds:5.1f} s  "
            )
            progress.console.print(Text(name).append_text(verdict_text(row.ruling.verdict, language)))

        return run(*words, instruments=instruments, on_begin=begin, on_row=finished)


def show_board(board: "Board", language: "Language") -> None:
    """Print the board; few claims also part by part."""
    from qkv.viz.board import board_table, counts_line, parts_table

    console = Console(highlight=False)
    first = board.rows[0].result
    console.print(f"{first.machine.line()}\n{first.machine.software()}", style="dim")
    for condition in first.conditions:
        console.print(condition, style="dim")
    console.print("", board_table(board, language))
    if len(board.rows) <= MOST_WITH_PARTS:
        for row in board.rows:
            console.print(parts_table(row, language), "")
    console.print(counts_line(board, language))


def keep(board: "Board") -> None:
    """Keep a board in the user's data folder; where that cannot be, say so and go on."""
    from qkv.lab.store import StoreError, user_store

    try:
        store = user_store()
        number = store.save(board)
    except StoreError as error:
        note(f"not kept: {error}")
        return
    note(f"kept as run {number} in {store.path}")


def require_report(path: Path) -> None:
    """Refuse a file that cannot be written before minutes have gone into measuring."""
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"cannot write {path}: it must be a file in a folder that exists")
    if path.suffix not in (HTML, MARKDOWN):
        raise OptionError(f"cannot write {path}: a report is a {HTML} or a {MARKDOWN} file")


def write_report(board: "Board", path: Path, language: "Language") -> None:
    """Write the board as the file's ending says; HTML has pictures where matplotlib is installed."""
    from qkv.viz.claims import claims_markdown
    from qkv.viz.report import report_html

    if path.suffix == MARKDOWN:
        path.write_text(claims_markdown(board, language), encoding="utf-8")
        note(f"report: {path}")
        return
    pictures = find_spec("matplotlib") is not None
    path.write_text(report_html(board, language, pictures=pictures), encoding="utf-8")
    without = "" if pictures else ", without pictures: pip install 'qkv[viz]'"
    note(f"report: {path}{without}")


def show_list(language: "Language", as_json: bool) -> None:
    """Print which experiments there are."""
    from qkv.lab import EXPERIMENTS

    if as_json:
        entries = [
            {"id": one.id, "name": one.name, "claim": one.claim.say(language), "source": one.source}
            for one in EXPERIMENTS
        ]
        typer.echo(json.dumps(entries, ensure_ascii=False, indent=2))
        return
    for one in EXPERIMENTS:
        typer.echo(f"{one.id}  {one.name:12} {one.claim.say(language)}")


def show_history(as_json: bool) -> None:
    """Print the runs that were kept."""
    from dataclasses import asdict

    from qkv.lab.store import user_store
    from qkv.viz.history import history_table

    store = user_store()
    runs = store.runs()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in runs], ensure_ascii=False, indent=2))
    elif not runs:
        typer.echo(f"no run is kept in {store.path} yet; `qkv lab` makes one")
    else:
        Console(highlight=False).print(history_table(runs))


def show_diff(numbers: Sequence[str], language: "Language") -> None:
    """Print what changed between two runs, the last two when none is named."""
    from qkv.lab.changes import changes
    from qkv.lab.store import user_store
    from qkv.viz.history import changes_table

    store = user_store()
    before, after = chosen_runs(numbers, [one.number for one in store.runs()])
    found = changes(store.board(before), store.board(after))
    if not found:
        raise OptionError(f"runs {before} and {after} have no experiment in common")
    console = Console(highlight=False)
    console.print(f"run {before} → run {after}", style="bold")
    console.print(changes_table(found, language))


def chosen_runs(numbers: Sequence[str], known: Sequence[int]) -> tuple[int, int]:
    """Return the two runs to compare."""
    if not numbers:
        if len(known) < 2:
            raise OptionError(f"expected two runs to compare, but {len(known)} are kept; run `qkv lab` again")
        return known[-2], known[-1]
    if len(numbers) != 2 or not all(one.isdigit() for one in numbers):
        raise OptionError(
            "expected two numbers of runs, such as `qkv lab diff 1 2`; `qkv lab history` lists them"
        )
    return int(numbers[0]), int(numbers[1])
