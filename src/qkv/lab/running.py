"""Run experiments and judge what they find."""

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from qkv.bench.machine import Machine, notes_on, this_machine
from qkv.errors import OptionError
from qkv.lab.board import Board, Row
from qkv.lab.catalogue import EXPERIMENTS
from qkv.lab.experiment import Experiment, Pace
from qkv.lab.instruments import Instruments
from qkv.lab.result import Measured, Number, Result, settings_record
from qkv.lab.trained import NotTestable
from qkv.lab.words import Words

Progress = Callable[[Experiment[Any], int, int], None]
"""Is told which experiment begins, how many are done, and how many there are."""


def run(
    *which: str,
    instruments: Instruments | None = None,
    on_begin: Progress | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> Board:
    """Try claims on this machine.

    Parameters
    ----------
    *which : str
        ``"quick"`` (the default) or ``"full"``, and the letters or names of experiments; all when
        none is named.
    instruments : Instruments, optional
        Seed, stopwatch and models.
    on_begin : callable, optional
        Is called before each experiment with it, how many are done, and how many there are.
    on_row : callable, optional
        Is called with each row as soon as it is judged.

    Returns
    -------
    Board

    Raises
    ------
    OptionError
        If there is no such experiment.

    Examples
    --------
    >>> board = run("causality")
    >>> board["causality"].ruling.verdict.value
    'HOLDS'
    """
    pace, experiments = chosen(*which)
    tools = Instruments() if instruments is None else instruments
    machine = this_machine()
    rows = []
    for done, experiment in enumerate(experiments):
        if on_begin is not None:
            on_begin(experiment, done, len(experiments))
        rows.append(Row.of(experiment, run_one(experiment, pace, tools, machine)))
        if on_row is not None:
            on_row(rows[-1])
    return Board(tuple(rows))


def chosen(*which: str) -> tuple[Pace, tuple[Experiment[Any], ...]]:
    """Return the pace and the experiments that words ask for.

    Raises
    ------
    OptionError
        If a word is neither a pace nor an experiment.
    """
    named = {key: one for one in EXPERIMENTS for key in (one.id, one.name)}
    names = [word for word in which if word not in ("quick", "full")]
    unknown = [word for word in names if word not in named]
    if unknown:
        known = ", ".join(f"{one.id} {one.name}" for one in EXPERIMENTS)
        raise OptionError(
            f"expected quick, full, or experiments by letter or name, not {unknown[0]!r}: {known}"
        )
    if {"quick", "full"} <= set(which):
        raise OptionError("expected quick or full, not both")
    pace: Pace = "full" if "full" in which else "quick"
    return pace, tuple(dict.fromkeys(named[name] for name in names)) or EXPERIMENTS


def run_one(
    experiment: Experiment[Any],
    pace: Pace,
    instruments: Instruments,
    machine: Machine,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Run one experiment and return its numbers with all they depend on."""
    settings = experiment.settings(pace)
    conditions = conditions_of(machine, os.environ)
    began, start = datetime.now(UTC), clock()
    reason: Words | None = None
    try:
        measured = experiment.measure(settings, instruments)
    except NotTestable as missing:
        measured, reason = Measured({}), missing.reason
    return Result(
        experiment=experiment.id,
        pace=pace,
        settings=settings_record(settings),
        seed=instruments.seed,
        numbers={name: _number(value) for name, value in measured.numbers.items()},
        series=measured.series,
        reason=reason,
        seconds=clock() - start,
        began=began.isoformat(timespec="seconds"),
        machine=machine,
        conditions=conditions,
    )


def conditions_of(machine: Machine, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what keeps figures from being what they seem, and how busy the machine is."""
    notes = notes_on(machine, environment)
    if not hasattr(os, "getloadavg"):
        return notes
    return (*notes, f"load average {os.getloadavg()[0]:.1f} on {machine.cores} cores at the start")


def _number(value: Number | float) -> Number:
    return value if isinstance(value, Number) else Number(float(value))
