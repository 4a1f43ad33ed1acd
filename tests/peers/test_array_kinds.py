"""The same operations on PyTorch tensors and JAX arrays: the same numbers, and gradients that flow."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from array_api_compat import array_namespace

from array_kinds import CALLS, WHOLE_NUMBERS, flat
from attention_paths import PATHS, normal
from qkv.ops.arrays import dtype_name

MAKE: dict[str, Callable[[np.ndarray], Any]] = {
    "torch": lambda x: torch.asarray(np.ascontiguousarray(x)),  # it has no negative strides
    "jax": jnp.asarray,
}
KINDS = {"torch": torch.Tensor, "jax": jax.Array}
ROTARY = {"rotate", "rotary table"}  # its table is float32, whose cosines differ by a unit

all_calls = pytest.mark.parametrize("name", CALLS)
both_paths = pytest.mark.parametrize("path", [PATHS["dense"], PATHS["tiled 4x4"]], ids=["dense", "tiled"])


@pytest.fixture(autouse=True)
def _jax_has_float64() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(params=MAKE)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def is_float(x: np.ndarray) -> bool:
    return x.dtype == np.float64


def loss(call: Callable[..., Any], arrays: list[Any], make: Callable[[np.ndarray], Any]) -> Any:
    """Weigh all numbers of a call's results into one; those that are ``-inf`` by promise count as 0."""
    total = 0.0
    for seed, result in enumerate(flat(call(*arrays))):
        xp = array_namespace(result)
        finite = xp.where(xp.isfinite(result), result, xp.zeros_like(result))
        total = total + xp.sum(finite * make(normal(seed, *result.shape)))
    return total


@cache
def torch_gradients(name: str) -> list[np.ndarray]:
    call, inputs = CALLS[name]
    tensors = [MAKE["torch"](x).requires_grad_(is_float(x)) for x in inputs]
    loss(call, tensors, torch.asarray).backward()
    return [tensor.grad.numpy() for tensor in tensors if tensor.requires_grad]


@cache
def jax_gradients(name: str) -> list[np.ndarray]:
    call, inputs = CALLS[name]
    floats = tuple(n for n, x in enumerate(inputs) if is_float(x))
    gradient = jax.grad(lambda *arrays: loss(call, list(arrays), jnp.asarray), argnums=floats)
    return [np.asarray(x) for x in jax.jit(gradient)(*(jnp.asarray(x) for x in inputs))]


@pytest.mark.parametrize("name", {**CALLS, **WHOLE_NUMBERS})
def test_an_array_gives_its_own_kind_with_numpys_numbers(kind, name):
    call, inputs = {**CALLS, **WHOLE_NUMBERS}[name]
    compiled = jax.jit(call) if kind == "jax" and name != "embed" else call  # embed checks its ids
    got, expected = flat(compiled(*(MAKE[kind](x) for x in inputs))), flat(call(*inputs))
    error = 2e-6 if name in ROTARY else 1e-12
    for one, other in zip(got, expected, strict=True):
        assert isinstance(one, KINDS[kind])
        assert dtype_name(one) == other.dtype.name
        np.testing.assert_allclose(np.asarray(one), other, rtol=error, atol=error)


@all_calls
def test_gradients_are_what_small_steps_show(kind, name):
    call, inputs = CALLS[name]
    gradients = torch_gradients(name) if kind == "torch" else jax_gradients(name)
    floats = [x for x in inputs if is_float(x)]
    steps = [1e-5 * normal(20 + n, *x.shape) for n, x in enumerate(floats)]

    def after(sign: int) -> float:
        moved = iter([x + sign * step for x, step in zip(floats, steps, strict=True)])
        return float(loss(call, [next(moved) if is_float(x) else x for x in inputs], np.asarray))

    assert all(np.isfinite(gradient).all() for gradient in gradients)
    slope = sum((gradient * step).sum() for gradient, step in zip(gradients, steps, strict=True))
    assert (after(1) - after(-1)) / 2 == pytest.approx(slope, rel=1e-5, abs=1e-10)


@all_calls
def test_torch_and_jax_agree_on_every_gradient(name):
    error = 2e-6 if name in ROTARY else 1e-10
    for one, other in zip(torch_gradients(name), jax_gradients(name), strict=True):
        np.testing.assert_allclose(one, other, rtol=error, atol=error)


@pytest.mark.parametrize("name", ["attend", "attend by all rules", "merge", "gelu", "mlp"])
def test_jax_gives_the_same_step_by_step_as_compiled(name):
    call, inputs = CALLS[name]
    arrays = [jnp.asarray(x) for x in inputs]
    for one, other in zip(flat(call(*arrays)), flat(jax.jit(call)(*arrays)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@both_paths
def test_hidden_slots_are_not_read_in_any_library(kind, path):
    make = MAKE[kind]
    q, k, v = normal(1, 6, 5, 3), normal(2, 3, 7, 3), normal(3, 3, 7, 3)
    mask = make(np.array([True, False, True, True, False, True, False]))
    bad_k, bad_v = k.copy(), v.copy()
    bad_k[:, 4], bad_v[:, 1] = np.nan, np.inf
    bad_v[:, 0, 2] = np.nan
    clean, _ = path(*map(make, (q, k, v)), mask=mask)
    dirty, _ = path(*map(make, (q, bad_k, bad_v)), mask=mask)
    assert (np.asarray(dirty)[..., :2] == np.asarray(clean)[..., :2]).all()
    assert np.isnan(np.asarray(dirty)[..., 2]).all()  # what is visible is not hidden


@both_paths
def test_a_row_that_sees_nothing_has_no_gradient_and_spoils_none(path):
    q, k, v = (torch.asarray(normal(n, 2, 5, 3)).requires_grad_() for n in (1, 2, 3))
    mask = torch.asarray(np.array([True, False, True, True, False])[:, None])
    output, _ = path(q, k, v, mask=mask)
    output.square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))
    assert not q.grad[:, [1, 4]].any()
    assert q.grad[:, [0, 2, 3]].any()


@both_paths
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision_is_summed_in_float32_in_any_library(kind, path, dtype):
    q, k, v = (x.astype(np.float32) for x in (normal(1, 6, 5, 3), normal(2, 3, 7, 3), normal(3, 3, 7, 3)))
    namespace = torch if kind == "torch" else jnp
    rounded = [namespace.asarray(x, dtype=getattr(namespace, dtype)) for x in (q, k, v)]
    output, lse = path(*rounded, causal=True)
    assert (dtype_name(output), dtype_name(lse)) == (dtype, "float32")
    wide = [namespace.asarray(x, dtype=namespace.float32) for x in rounded]
    exact, exact_lse = path(*wide, causal=True)
    assert (output == namespace.asarray(exact, dtype=output.dtype)).all()
    assert (lse == exact_lse).all()
