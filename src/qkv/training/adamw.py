"""The optimiser: how far each number moves, from its gradients so far."""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError, ShapeError
from qkv.ops.compiled_steps import compiled_steps
from qkv.training.parameters import Parameters


class AdamW:
    """Moves parameters against their gradients' mean over their root mean square, and decays them apart.

    Source: Loshchilov and Hutter 2019, algorithm 2. At step t, with gradient g::

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        p = p - rate * weight_decay * p - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Parameters
    ----------
    parameters : Parameters
        What `step` moves, in place.
    betas : (float, float)
        How much of the mean, and of the mean square, stays at each step.
    eps : float
        Keeps a number without gradients from dividing by 0.
    weight_decay : float
        Share of a number that goes at each step, times the learning rate.
    decayed : collection of names
        Parameters that decay: matrices, as a rule, and not the scales of norms.

    Attributes
    ----------
    first_moments, second_moments : (size,)
        m and v, one after the other like ``parameters.vector``. A checkpoint keeps them and ``num_steps``.
    num_steps : int
        Steps taken.

    Raises
    ------
    OptionError
        If a beta is not from 0 to below 1, eps not above 0, weight_decay negative, or a decayed name unknown.

    Examples
    --------
    >>> parameters = Parameters({"w": (1,), "scale": (1,)}, np.array([1.0, 1.0]))
    >>> gradients = Parameters(parameters.shapes, np.array([5.0, -7.0]))
    >>> optimiser = AdamW(parameters, weight_decay=0.5, decayed=["w"])
    >>> optimiser.step(gradients, learning_rate=0.1)
    >>> parameters.vector.round(6).tolist()
    [0.85, 1.1]
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        decayed: Collection[str] = (),
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise OptionError(f"betas must be from 0 to below 1, not {betas}; try (0.9, 0.95)")
        if eps <= 0 or weight_decay < 0:
            raise OptionError(f"eps must be above 0 and weight_decay not below, not {eps} and {weight_decay}")
        unknown = set(decayed) - set(parameters)
        if unknown:
            raise OptionError(f"decayed has names that no parameter has: {', '.join(sorted(unknown))}")
        self.parameters = parameters
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.first_moments = np.zeros_like(parameters.vector)
        self.second_moments = np.zeros_like(parameters.vector)
        self.num_steps = 0
        self._spans = _spans(parameters, decayed)

    def step(self, gradients: Parameters, learning_rate: float) -> None:
        """Move the parameters once.

        Parameters
        ----------
        gradients : Parameters
            Of the same names and shapes.
        learning_rate : float

        Raises
        ------
        ShapeError
            If the gradients are of other parameters.
        """
        if gradients.shapes != self.parameters.shapes:
            raise ShapeError("gradients must have the parameters' names and shapes; try parameters.zeros()")
        self.num_steps += 1
        for span, is_decayed in self._spans:
            decay = learning_rate * self.weight_decay if is_decayed else 0.0
            self._move(span, gradients.vector[span], learning_rate, decay)

    def _move(self, span: slice, g: NDArray[np.floating], learning_rate: float, decay: float) -> None:
        p, m, v = (array[span] for array in (self.parameters.vector, self.first_moments, self.second_moments))
        beta1, beta2 = self.betas
        rate = learning_rate / (1 - beta1**self.num_steps)
        scale = 1 / math.sqrt(1 - beta2**self.num_steps)
        if compiled_steps(p, g):
            from qkv.kernels.adamw import move  # the compiler is loaded when it is first needed

            move(p, m, v, g, (beta1, 1 - beta1, beta2, 1 - beta2, 1 - decay, rate, scale, self.eps))
        else:
            m[:] = beta1 * m + (1 - beta1) * g
            v[:] = beta2 * v + (1 - beta2) * (g * g)
            p[:] = (1 - decay) * p - rate * m / (np.sqrt(v) * scale + self.eps)


def _spans(parameters: Parameters, decayed: Collection[str]) -> list[tuple[slice, bool]]:
    """Return the stretches of the vector that decay or do not, as long as they can be."""
    spans: list[tuple[slice, bool]] = []
    start = 0
    for name, array in parameters.items():
        stop, is_decayed = start + array.size, name in decayed
        if spans and spans[-1][1] == is_decayed:
            spans[-1] = slice(spans[-1][0].start, stop), is_decayed
        else:
            spans.append((slice(start, stop), is_decayed))
        start = stop
    return spans


def clip(gradients: Parameters, max_norm: float) -> float:
    """Shorten gradients to ``max_norm`` where they are longer, all by one factor, and return their length.

    Source: Pascanu et al. 2013, algorithm 1.

    Parameters
    ----------
    gradients : Parameters
        Changed in place.
    max_norm : float
        Above 0.

    Returns
    -------
    float
        The root of the sum of all squares, before; NaN or infinity where a gradient is, and then all stay.

    Examples
    --------
    >>> gradients = Parameters({"w": (2,)}, np.array([3.0, 4.0]))
    >>> clip(gradients, max_norm=0.5), gradients.vector.round(6).tolist()
    (5.0, [0.3, 0.4])
    """
    if not max_norm > 0:
        raise OptionError(f"max_norm must be above 0, not {max_norm}")
    norm = math.sqrt(_sum_of_squares(gradients.vector))
    if max_norm < norm < math.inf:
        gradients.vector[:] *= max_norm / norm
    return norm


def _sum_of_squares(vector: NDArray[np.floating]) -> float:
    if compiled_steps(vector):
        from qkv.kernels.adamw import sum_of_squares  # the compiler is loaded when it is first needed

        return sum_of_squares(vector)
    return float(np.sum(np.square(vector, dtype=np.float64)))
