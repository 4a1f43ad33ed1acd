"""What experiments are given and never make themselves: random numbers, a stopwatch, models."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from qkv.bench.stopwatch import Stopwatch
from qkv.lab.trained import recall_model, text_model
from qkv.models import Model


@dataclass(frozen=True)
class Instruments:
    """What a measurement needs besides its settings.

    Parameters
    ----------
    seed : int
        Of every random number.
    stopwatch : Stopwatch
        Its clock and its rests may be others.
    text_model, recall_model : callable
        Return the two models that come with qkv: one writes text, one finds what it has read.

    Examples
    --------
    Each purpose has a stream of its own, so that one experiment's draws change no other's:

    >>> tools = Instruments(seed=3)
    >>> [int(tools.generator(name).integers(100)) for name in ("keys", "values", "keys")]
    [56, 89, 56]
    """

    seed: int = 0
    stopwatch: Stopwatch = field(default_factory=lambda: Stopwatch(pairs=7))
    text_model: Callable[[], Model] = text_model
    recall_model: Callable[[], Model] = recall_model

    def generator(self, *purpose: str | int) -> np.random.Generator:
        """Return random numbers that depend on the seed and on what they are for, and on nothing else."""
        key = [int.from_bytes(one.encode()) if isinstance(one, str) else one for one in purpose]
        return np.random.default_rng([self.seed, *key])
