"""Every experiment, in the order of the board."""

from typing import Any

from qkv.lab.caching import CACHING
from qkv.lab.causality import CAUSALITY
from qkv.lab.experiment import Experiment
from qkv.lab.quadratic import QUADRATIC
from qkv.lab.scaling import SCALING
from qkv.lab.utilisation import UTILISATION

EXPERIMENTS: tuple[Experiment[Any], ...] = (
    SCALING,
    CAUSALITY,
    CACHING,
    QUADRATIC,
    UTILISATION,
)
