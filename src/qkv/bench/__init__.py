"""How fast, measured: against other libraries in turn, and against what the machine can do.

Read `stopwatch` (how times are taken), `comparison` (equal results first), then the kinds of work in
`attention`, `decode`, `matmul`, `tiling`, `caching`, `policies` and `latent`. Peers are imported where they
are used.
"""

from qkv.bench.comparison import Instruments
from qkv.bench.limits import Limits, machine_limits
from qkv.bench.machine import notes_on, this_machine
from qkv.bench.measurement import Measurement, Report, Result, Skipped
from qkv.bench.sections import QUICK, SECTIONS, Case, Extent, chosen_cases
from qkv.bench.stopwatch import Stopwatch
from qkv.bench.tables import grids, markdown, terminal_table

__all__ = [
    "QUICK",
    "SECTIONS",
    "Case",
    "Extent",
    "Instruments",
    "Limits",
    "Measurement",
    "Report",
    "Result",
    "Skipped",
    "Stopwatch",
    "chosen_cases",
    "grids",
    "machine_limits",
    "markdown",
    "notes_on",
    "terminal_table",
    "this_machine",
]
