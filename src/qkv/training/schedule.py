"""How large a step is taken, from the first to the last."""

import math
from dataclasses import dataclass

from qkv.errors import OptionError


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises in a straight line, then falls along half a cosine.

    Source: Loshchilov and Hutter 2017, equation 5, without restarts; the rise as in Goyal et al. 2017.

    Parameters
    ----------
    peak : float
        The highest rate, after the rise.
    steps : int
        Of the whole training.
    warm_up : int
        Steps of the rise; 0 begins at the peak.
    last_share : float
        The rate at the end, as a share of the peak.

    Raises
    ------
    OptionError
        If the rise is as long as the training, or a rate is not above 0.

    Examples
    --------
    >>> schedule = Schedule(peak=1.0, steps=6, warm_up=2, last_share=0.0)
    >>> [round(schedule.at(step), 4) for step in range(7)]
    [0.5, 1.0, 1.0, 0.8536, 0.5, 0.1464, 0.0]
    """

    peak: float
    steps: int
    warm_up: int
    last_share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up < self.steps:
            raise OptionError(f"expected a warm-up shorter than all {self.steps} steps, got {self.warm_up}")
        if not 0 < self.peak < math.inf or not 0 <= self.last_share <= 1:
            raise OptionError(
                f"expected a learning rate above 0 and a last share from 0 to 1, "
                f"got {self.peak} and {self.last_share}"
            )

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        done = (step - self.warm_up) / (self.steps - self.warm_up)
        share = (1 + math.cos(math.pi * done)) / 2
        return self.peak * (self.last_share + (1 - self.last_share) * share)
