"""Runs of the lab over time, and what changed between two of them, as tables for a terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from qkv.lab import Language, Verdict
from qkv.lab.changes import Change, NumberChange
from qkv.lab.store import Run
from qkv.viz.board import MARKS, STYLES, verdict_text


def history_table(runs: Sequence[Run]) -> Table:
    """Return a row for each run: when, where, how long, and how many claims came out how."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("run", "when", "pace", "seed", "s", "verdicts", "machine"):
        table.add_column(name, justify="right" if name in ("run", "seed", "s") else "left")
    for run in runs:
        counted = Counter(run.verdicts.values())
        marks = Text(" ").join(
            Text(f"{MARKS[one]}{counted[one.value]}", STYLES[one]) for one in Verdict if counted[one.value]
        )
        when, machine = run.began[:16].replace("T", " "), run.machine
        where = f"{machine.cpu}, {machine.cores} cores, qkv {machine.versions.get('qkv', '?')}"
        table.add_row(
            str(run.number), when, run.pace, str(run.seed), f"{run.seconds:.0f}", marks, Text(where, "dim")
        )
    return table


def changes_table(found: Sequence[Change], language: Language = "en") -> Table:
    """Return a row for each claim, and below it each deciding number that is another one now."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("", "before", "after", ""):
        table.add_column(name)
    for change in found:
        experiment = change.row.experiment
        same = change.before is change.after
        table.add_row(
            Text(f"{experiment.id}  {experiment.title.say(language)}", "bold"),
            verdict_text(change.before, language),
            Text("=", "dim") if same else verdict_text(change.after, language),
            "",
        )
        for one in change.numbers:
            table.add_row(*_number_row(one))
    return table


def _number_row(one: NumberChange) -> tuple[Text, str, str, Text]:
    before, after = one.before.value, one.after.value
    factor = f"x{after / before:.2f}" if before > 0 and after > 0 else ""
    note = "within the spread" if one.is_within_spread else factor
    name = Text(f"   {one.part.decides.metric}", "dim")
    return name, f"{before:.4g}", f"{after:.4g}", Text(note, "dim" if one.is_within_spread else "")
