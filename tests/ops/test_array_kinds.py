"""Every operation speaks nothing but the Array API: what comes in goes out, on a strict library too."""

from types import ModuleType

import array_api_strict
import numpy as np
import pytest

from array_kinds import CALLS, WHOLE_NUMBERS, flat
from qkv import use_backend

ALL = {**CALLS, **WHOLE_NUMBERS}


def strict(x: np.ndarray, float_dtype: str) -> object:
    return array_api_strict.asarray(x.astype(float_dtype) if x.dtype == np.float64 else x)


@pytest.mark.parametrize("float_dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ALL)
def test_a_strict_array_gives_the_strict_array_with_numpys_numbers(name, float_dtype):
    call, inputs = ALL[name]
    numbers = [x.astype(float_dtype) if x.dtype == np.float64 else x for x in inputs]
    with use_backend("numpy"):  # the kernels add up in another order
        got, expected = flat(call(*(strict(x, float_dtype) for x in inputs))), flat(call(*numbers))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        namespace: ModuleType = one.__array_namespace__()
        assert namespace.__name__ == "array_api_strict"
        assert str(one.dtype).rpartition(".")[2] == other.dtype.name
        np.testing.assert_array_equal(np.asarray(one), other)


def test_a_non_finite_value_is_hidden_and_shown_as_in_numpy():
    q, k, v = (np.arange(6.0).reshape(3, 2) for _ in range(3))
    v[1, 0] = np.nan
    mask = np.array([[True, False, True], [True, True, True], [False, False, False]])
    call, _ = CALLS["scaled dot product"]
    got = call(*(array_api_strict.asarray(x) for x in (q, k, v, mask)))
    for one, other in zip(got, call(q, k, v, mask), strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)
