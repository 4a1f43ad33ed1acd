"""Compare one piece of work with the same done by others: equal results first, then times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.bench.limits import Limits
from qkv.bench.machine import available_bytes
from qkv.bench.measurement import Measurement, Ratio, Workload
from qkv.bench.stopwatch import Run, Spread, Stopwatch, Times, times_as_fast
from qkv.errors import NumericError

OURS = "qkv"

RELATIVE, OF_LARGEST = 1e-4, 1e-5
"""How far results may lie apart: of themselves, and of the largest of all."""


@dataclass(frozen=True)
class Way:
    """One way to do a piece of work.

    Parameters
    ----------
    name : str
        The library.
    run : callable
    form : str
        Which of the library's ways this is, where there are several.
    output : callable
        Turns what ``run`` returns into an array that lies as ours does.
    """

    name: str
    run: Run
    form: str = ""
    output: Callable[[Any], NDArray[Any]] = np.asarray


@dataclass(frozen=True)
class Instruments:
    """What a measurement needs: a stopwatch, the limits to measure beside, the memory that is free."""

    stopwatch: Stopwatch
    limits: Limits = field(default_factory=Limits)
    free_bytes: Callable[[], int | None] = available_bytes


def compare(
    work: Workload,
    run: Run,
    peers: Sequence[Way],
    instruments: Instruments,
    *,
    baselines: Mapping[str, Run] | None = None,
    notes: Sequence[str] = (),
) -> Measurement:
    """Measure a piece of work beside its peers, each by the fastest of its forms.

    Parameters
    ----------
    work : Workload
    run : callable
        Does it, our way.
    peers : sequence of Way
        Forms of one library stand side by side.
    instruments : Instruments
    baselines : mapping of str to callable, optional
        Other work to compare the time with, whose results are its own.
    notes : sequence of str
        For the reader of the figure.

    Returns
    -------
    Measurement

    Raises
    ------
    NumericError
        If a peer's result is not ours; then nothing is timed.

    Examples
    --------
    >>> stopwatch = Stopwatch(pairs=2, clock=iter(range(99)).__next__, rest=lambda: None)
    >>> x = np.arange(3.0)
    >>> doubled = compare(
    ...     Workload("double", {"n": 3}), lambda: x + x, [Way("NumPy", lambda: 2 * x)], Instruments(stopwatch)
    ... )
    >>> doubled.ratio("NumPy").spread.median
    1.0
    """
    expected = np.asarray(run())
    for peer in peers:
        require_equal(work, peer, expected)
    chosen = fastest_forms(peers, instruments.stopwatch)
    others = {peer.name: peer.run for peer in chosen} | dict(baselines or {})
    times = instruments.stopwatch.time_in_turn({OURS: run, **others, **instruments.limits.runs})
    forms = dict.fromkeys(others, "") | {peer.name: peer.form for peer in chosen}
    return judge(work, times, OURS, forms, instruments.limits, notes=notes)


def judge(
    work: Workload,
    times: Times,
    ours: str,
    peers: Mapping[str, str],
    limits: Limits,
    *,
    notes: Sequence[str] = (),
) -> Measurement:
    """Make a measurement of what one way took, among the times of all.

    Parameters
    ----------
    work : Workload
    times : Times
    ours : str
        The way that the measurement is about.
    peers : mapping of str to str
        The ways to compare with, and their forms.
    limits : Limits
    notes : sequence of str

    Returns
    -------
    Measurement
    """
    return Measurement(
        work=work,
        seconds=Spread.of(times[ours]),
        ratios=tuple(Ratio(peer, times_as_fast(times, ours, peer), form) for peer, form in peers.items()),
        shares=limits.shares(times, ours, work),
        notes=tuple(notes),
    )


def require_equal(work: Workload, peer: Way, expected: NDArray[Any], of_largest: float = OF_LARGEST) -> None:
    """Refuse a peer that computes something else, by more than that part of the largest number.

    Raises
    ------
    NumericError
        If its result is of another shape, or further from ours than rounding explains.
    """
    who = f"{peer.name} ({peer.form})" if peer.form else peer.name
    what = f"{work.name} {dict(work.sizes)}"
    got = peer.output(peer.run())
    if got.shape != expected.shape:
        raise NumericError(f"{what}: {who} returned {got.shape} where qkv returned {expected.shape}")
    largest = float(np.abs(expected).max(initial=0.0))
    if not np.allclose(got, expected, rtol=RELATIVE, atol=of_largest * largest):
        apart = float(np.abs(got - expected).max())
        raise NumericError(
            f"{what}: {who} is up to {apart:.2g} from qkv, more than rounding explains, so nothing was "
            "timed; try another version of it, or uninstall it to compare with the others"
        )


def fastest_forms(peers: Sequence[Way], stopwatch: Stopwatch) -> list[Way]:
    """Return each library's fastest form, by a few runs where there is a choice."""
    chosen = []
    for _, group in groupby(peers, key=lambda peer: peer.name):
        forms = list(group)
        chosen.append(
            forms[0] if len(forms) == 1 else min(forms, key=lambda way: stopwatch.best_seconds(way.run))
        )
    return chosen
