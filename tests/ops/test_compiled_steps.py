"""Norms, rotations and gates go to the kernels where these run them, and elsewhere to the formula."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_paths import bits, normal
from qkv import use_backend
from qkv.ops.backend import can_compile
from qkv.ops.mlp import gate, gelu, gelu_tanh, silu
from qkv.ops.norm import layer_norm, rms_norm
from qkv.ops.rotary import rotate

pytestmark = pytest.mark.skipif(not can_compile(), reason="this machine has no fused multiply-add")

STEPS = {
    "rms_norm": lambda x, a, b: rms_norm(x, a, 1e-5),
    "layer_norm": lambda x, a, b: layer_norm(x, a, b, 1e-5),
    "rotate": lambda x, a, b: rotate(x, a[:3], b[:3], interleaved=True),
    "activate": lambda x, a, b: silu(x),
    "gate": lambda x, a, b: gate(x, b + 0 * x, gelu_tanh),
}
"""By what the kernels call them."""

EACH = pytest.mark.parametrize("name", STEPS)


@pytest.fixture
def taken(monkeypatch):
    """What the kernels were asked for."""
    from qkv.kernels import steps

    names = []
    for name in STEPS:
        run = getattr(steps, name)
        monkeypatch.setattr(steps, name, lambda *a, r=run, n=name, **o: names.append(n) or r(*a, **o))
    return names


def operands(dtype: Any = np.float32):
    return normal(1, 5, 11, dtype=dtype), normal(2, 11, dtype=dtype), normal(3, 11, dtype=dtype)


@EACH
def test_kernels_take_numpy_float32(taken, name):
    with use_backend("compiled"):
        STEPS[name](*operands())
    assert taken == [name]


@EACH
def test_kernels_take_nothing_else(taken, name):
    with use_backend("numpy"):
        STEPS[name](*operands())
    with use_backend("compiled"):
        for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
            STEPS[name](*operands(dtype))
        STEPS[name](np.ma.masked_array(operands()[0]), *operands()[1:])
    assert not taken


@EACH
def test_both_give_the_same_to_a_few_roundings(name):
    found = {}
    for backend in ("compiled", "numpy"):
        with use_backend(backend):
            found[backend] = STEPS[name](*operands())
    assert found["compiled"].dtype == np.float32
    np.testing.assert_allclose(found["compiled"], found["numpy"], rtol=1e-5, atol=1e-6)


def test_operands_that_numpy_alone_makes_sense_of_go_to_it(taken):
    x, weight, bias = operands()
    with use_backend("compiled"):
        assert rms_norm(x, weight.astype(np.float64), 1e-5).dtype == np.float32
        assert (rms_norm(x, np.array([2], np.float32), 1e-5) == 2 * rms_norm(x, np.ones(1, "f"), 1e-5)).all()
        layer_norm(x, weight, bias[:1], 1e-5)
        gate(x, x, gelu)
        silu(np.array(1, np.float32))
        rotate(x, weight[:2].astype(np.float64), bias[:2])
    assert not taken
    with use_backend("compiled"):
        gate(x, weight, silu)
    assert taken == ["activate"]


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
@pytest.mark.parametrize("shape", [(4, 2), (3, 5, 2), (2, 3, 5, 2)])
def test_tables_for_other_rows_than_there_are_make_an_error(backend, shape):
    with use_backend(backend), pytest.raises(ValueError, match=r"broadcast|dimension"):
        rotate(normal(1, 5, 4, dtype=np.float32), *np.ones((2, *shape), np.float32))


@EACH
def test_a_row_has_the_same_bits_alone_and_among_others(name):
    x, a, b = normal(1, 2, 5, 11, dtype=np.float32), *operands()[1:]
    with use_backend("compiled"):
        assert (bits(STEPS[name](x, a, b)[1, 3]) == bits(STEPS[name](x[1, 3], a, b))).all()
