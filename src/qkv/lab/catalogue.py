"""Every experiment, in the order of the board."""

from typing import Any

from qkv.lab.caching import CACHING
from qkv.lab.causality import CAUSALITY
from qkv.lab.codes import CODES_IN_CACHE
from qkv.lab.dropping import DROPPING
from qkv.lab.experiment import Experiment
from qkv.lab.heads import HEADS
from qkv.lab.importance import IMPORTANCE
from qkv.lab.quadratic import QUADRATIC
from qkv.lab.scaling import SCALING
from qkv.lab.utilisation import UTILISATION
from qkv.lab.windows import WINDOWS

EXPERIMENTS: tuple[Experiment[Any], ...] = (
    SCALING,
    CAUSALITY,
    HEADS,
    CACHING,
    IMPORTANCE,
    QUADRATIC,
    CODES_IN_CACHE,
    WINDOWS,
    DROPPING,
    UTILISATION,
)
