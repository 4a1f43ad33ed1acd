"""Rows of logits for tests: from probabilities, at random, and what a filter left of one."""

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

# Multiples of 1/8 are exact in every type, and close enough to tie now and then.
eighths = st.integers(-64, 64).map(lambda n: n / 8)
rows = arrays(np.float64, st.integers(1, 13), elements=eighths)


def log(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def kept(filtered: np.ndarray) -> set[int]:
    return {int(token_id) for token_id in np.flatnonzero(filtered > -np.inf)}
