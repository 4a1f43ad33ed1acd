"""Questions as code: each claim people make about attention is measured, and gets a verdict.

Read `experiment` (what a claim is), `verdict` (how numbers become one), then any experiment: each
is a file that explains itself. `run` tries them on this machine.
"""

from qkv.lab.board import Board, Row
from qkv.lab.catalogue import EXPERIMENTS
from qkv.lab.experiment import Control, Experiment, Part, Threshold, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.result import Measured, Number, Result
from qkv.lab.running import run
from qkv.lab.trained import NotTestable
from qkv.lab.verdict import Ruling, Verdict, judge
from qkv.lab.words import Language, Words

__all__ = [
    "EXPERIMENTS",
    "Board",
    "Control",
    "Experiment",
    "Instruments",
    "Language",
    "Measured",
    "NotTestable",
    "Number",
    "Part",
    "Result",
    "Row",
    "Ruling",
    "Threshold",
    "Verdict",
    "Words",
    "at_least",
    "at_most",
    "judge",
    "run",
]
