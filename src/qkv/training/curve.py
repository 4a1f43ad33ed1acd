"""How a training went: the loss of each step, and what was found on held-out text now and then."""

from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Evaluation:
    """What a model knows of text it was not trained on.

    Attributes
    ----------
    step : int
        Steps taken before.
    nats_per_token : float
        Mean over all held-out tokens.
    bits_per_byte : float or None
        All nats in bits, over the bytes of the text: comparable between vocabularies. ``None`` where the
        data is no text.
    """

    step: int
    nats_per_token: float
    bits_per_byte: float | None

    @classmethod
    def of(cls, step: int, nats: float, num_tokens: int, num_bytes: int | None) -> "Evaluation":
        """Divide the nats of a whole text by its tokens, and as bits by its bytes.

        Examples
        --------
        >>> Evaluation.of(step=7, nats=4 * log(2), num_tokens=2, num_bytes=8).bits_per_byte
        0.5
        """
        return cls(step, nats / num_tokens, nats / log(2) / num_bytes if num_bytes else None)


@dataclass
class Curve:
    """A record that grows by a step at a time; the training owns it.

    Attributes
    ----------
    losses : list of float
        Mean nats per token of each step's batch, before the step.
    norms : list of float
        Of the gradients, before they were clipped.
    evaluations : list of Evaluation
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return len(self.losses)

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return all of it as arrays, as a checkpoint keeps it."""
        rows = [
            (evaluation.step, evaluation.nats_per_token, evaluation.bits_per_byte or np.nan)
            for evaluation in self.evaluations
        ]
        return {
            "losses": np.array(self.losses, np.float64),
            "norms": np.array(self.norms, np.float64),
            "evaluations": np.array(rows, np.float64).reshape(-1, 3),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.float64]]) -> "Curve":
        """Return the curve that `arrays` gave.

        Examples
        --------
        >>> curve = Curve([2.5, 2.25], [1.0, 0.5], [Evaluation(2, 2.0, None)])
        >>> Curve.from_arrays(curve.arrays()) == curve
        True
        """
        evaluations = [
            Evaluation(int(step), nats, None if np.isnan(bits) else bits)
            for step, nats, bits in arrays["evaluations"].tolist()
        ]
        return cls(arrays["losses"].tolist(), arrays["norms"].tolist(), evaluations)
