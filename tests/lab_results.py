"""Measured numbers as a result, without a run of the lab."""

from functools import cache

from qkv.bench.machine import this_machine
from qkv.lab import Number, Result
from qkv.lab.result import settings_record


def as_result(experiment, settings, measured):
    """What a run would make of what an experiment measured."""
    numbers = {
        name: one if isinstance(one, Number) else Number(float(one)) for name, one in measured.numbers.items()
    }
    return Result(
        experiment.id,
        "quick",
        settings_record(settings),
        0,
        numbers,
        measured.series,
        None,
        0.0,
        "2026-01-01T00:00:00+00:00",
        machine(),
    )


@cache
def machine():
    """This machine, described once."""
    return this_machine()
