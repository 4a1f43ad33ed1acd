"""The normal distribution's cumulative function, which exact GELU needs and the Array API lacks.

Source: Cody 1969, "Rational Chebyshev Approximations for the Error Function", tables I to III.
"""

import math
from collections.abc import Sequence

from qkv.ops.arrays import array_namespace
from qkv.shapes import Array

# erf(y) / y as a ratio of polynomials in y^2, for y up to 0.46875. Highest power first.
NEAR_TOP = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
NEAR_BOTTOM = (
    1.0,
    2.36012909523441209e1,
    2.44024637934444173e2,
    1.28261652607737228e3,
    2.84423683343917062e3,
)

# erfc(y) exp(y^2) as a ratio of polynomials in y, for y from 0.46875 to 4.
MIDDLE_TOP = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
MIDDLE_BOTTOM = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)

# (1/sqrt(pi) - erfc(y) exp(y^2) y) y^2 as a ratio of polynomials in 1/y^2, for y beyond 4.
FAR_TOP = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
FAR_BOTTOM = (
    1.0,
    2.56852019228982242e0,
    1.87295284992346725e0,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def normal_cdf(x: Array) -> Array:
    """Return the probability that a standard normal variable is at most ``x``.

    To a few units in the last place around 0; towards the far negative tail the relative error
    grows as the square of ``x``, to less than 1e-12 in float64.

    Examples
    --------
    >>> import numpy as np
    >>> normal_cdf(np.array([-1.0, 0.0, 1.0])).round(6).tolist()
    [0.158655, 0.5, 0.841345]
    """
    xp = array_namespace(x)
    upper_tail = 0.5 * complementary_erf(xp.abs(x) * math.sqrt(0.5))
    return xp.where(x < 0, upper_tail, 1.0 - upper_tail)


def complementary_erf(y: Array) -> Array:
    """Return ``1 - erf(y)`` for y >= 0.

    Each range is evaluated on its own numbers only: elsewhere its formula may overflow, and a
    gradient would carry that NaN through the choice between the ranges.
    """
    xp = array_namespace(y)
    near = xp.minimum(y, xp.full_like(y, 0.46875))
    middle = xp.clip(y, 0.46875, 4.0)
    far = xp.clip(y, 4.0, 40.0)  # beyond 40 even float64 has no number as small
    below = 1.0 - near * _ratio(NEAR_TOP, NEAR_BOTTOM, near * near)
    between = xp.exp(-middle * middle) * _ratio(MIDDLE_TOP, MIDDLE_BOTTOM, middle)
    inverse = 1.0 / (far * far)
    tail = 1 / math.sqrt(math.pi) - inverse * _ratio(FAR_TOP, FAR_BOTTOM, inverse)
    beyond = xp.exp(-far * far) / far * tail
    return xp.where(y <= 0.46875, below, xp.where(y <= 4.0, between, beyond))


def _ratio(top: Sequence[float], bottom: Sequence[float], x: Array) -> Array:
    return _polynomial(top, x) / _polynomial(bottom, x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Evaluate by Horner's rule, highest power first."""
    value = 0.0 * x + coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
