"""`qkv bench`: how fast this machine runs qkv, beside other libraries and beside its own limits."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qkv.bench import (
    QUICK,
    SECTIONS,
    Case,
    Extent,
    Instruments,
    Report,
    Result,
    Stopwatch,
    chosen_cases,
    grids,
    machine_limits,
    markdown,
    notes_on,
    terminal_table,
    this_machine,
)
from qkv.errors import OptionError

LEAST_PAIRS = 2
"""Fewer have no quartiles."""


def bench(
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"What to measure, all when left out: {', '.join(SECTIONS)}.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few and small sizes: a minute or two.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to a file.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables to a file.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=LEAST_PAIRS, help="Rounds that a figure comes from.")] = 15,
) -> None:
    """Measure qkv beside NumPy, PyTorch and onnxruntime, and beside what the machine can do."""
    cases = chosen_cases(sections or (), QUICK if quick else Extent())
    _require_folders(json_file, markdown_file)
    machine = this_machine()
    notes = notes_on(machine, os.environ)
    typer.echo(f"{machine.line()}\n{machine.software()}")
    for note in notes:
        typer.secho(f"note: {note}", err=True, dim=True)
    instruments = Instruments(Stopwatch(pairs), machine_limits())
    results: list[Result] = []
    try:
        for name, of_section in cases.items():
            _measure(name, of_section, instruments, results)
    finally:  # an interrupt, or a peer that is refused, takes nothing from what was measured before
        _write(Report(machine, pairs, notes, tuple(results)), json_file, markdown_file)


def _require_folders(*files: Path | None) -> None:
    """Refuse a file that cannot be written before minutes have gone into measuring."""
    for file in files:
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise OptionError(f"cannot write {file}: it must be a file in a folder that exists")


def _measure(name: str, cases: Sequence[Case], instruments: Instruments, results: list[Result]) -> None:
    """Measure one section, showing how far it is, then its tables."""
    first = len(results)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between cases only: a thread that draws would take its time from what is being measured.
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task(name, total=len(cases))
        try:
            for case in cases:
                progress.refresh()
                results += case.measure(instruments)
                progress.advance(task)
        finally:
            progress.stop()
            _show(results[first:], instruments.stopwatch.pairs)


def _show(results: Sequence[Result], pairs: int) -> None:
    console = Console()
    for grid in grids(results, pairs):
        console.print("", terminal_table(grid))


def _write(report: Report, json_file: Path | None, markdown_file: Path | None) -> None:
    if json_file is not None:
        record = json.dumps(report.record(), ensure_ascii=False, indent=2)
        json_file.write_text(record + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(report), encoding="utf-8")
