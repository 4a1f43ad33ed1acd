"""Gradients of attention: by central differences, by loops, and the same from tiles and from the kernels."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qkv.errors import ShapeError
from qkv.ops import attend
from qkv.ops.backend import can_compile, use_backend
from qkv.training.attention import attend_backward

B, H, G = 2, 6, 2
CASES = {
    "causal": ((37, 37, 11, 7), {"causal": True}),
    "more keys": ((19, 41, 5, 13), {"causal": True}),
    "more queries": ((41, 19, 32, 32), {"causal": True}),
    "from the top": ((23, 31, 16, 16), {"causal": "top_left"}),
    "a window": ((67, 67, 8, 8), {"causal": True, "window": 9}),
    "both sides": ((29, 43, 17, 33), {"window": (3, 2)}),
    "ragged": ((41, 53, 32, 48), {"causal": True, "q_lengths": [41, 7], "kv_lengths": [53, 11]}),
    "nothing to see": ((5, 7, 3, 3), {"q_lengths": [5, 2], "kv_lengths": [0, 7]}),
    "negative scale": ((31, 29, 8, 8), {"scale": -0.3}),
    "several blocks": ((131, 197, 24, 24), {"causal": True}),
}
each_case = pytest.mark.parametrize(("sizes", "rules"), CASES.values(), ids=CASES)
needs_kernels = pytest.mark.skipif(not can_compile(), reason="no compiler here")


def operands(sizes: tuple, dtype: Any = np.float64, seed: int = 0) -> list[Any]:
    T, S, D, D_v = sizes
    random = np.random.default_rng(seed)
    shapes = (B, H, T, D_v), (B, H, T, D), (B, G, S, D), (B, G, S, D_v)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def gradients(arrays: Sequence[Any], rules: dict) -> tuple[Any, ...]:
    d_output, q, k, v = arrays
    output, lse = attend(q, k, v, return_lse=True, **rules)
    return attend_backward(d_output, q, k, v, output, lse, **rules)


@each_case
def test_gradients_are_central_differences(sizes, rules):
    """Along random directions of q, k and v, of the output's product with a fixed array."""
    d_output, *arrays = operands(sizes)
    found = gradients((d_output, *arrays), rules)
    random, step = np.random.default_rng(1), 1e-6
    hidden = np.ones(d_output.shape, bool)
    for row, length in enumerate(rules.get("q_lengths", ())):
        hidden[row, :, length:] = False  # what stands there is no query
    for place, gradient in enumerate(found):
        direction = random.standard_normal(arrays[place].shape)
        ends = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[place] = arrays[place] + sign * step * direction
            ends.append((attend(*moved, **rules) * d_output)[hidden].sum())
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope == pytest.approx((gradient * direction).sum(), rel=1e-6, abs=1e-7)


def test_a_mask_hides_in_both_directions():
    d_output, q, k, v = operands((11, 13, 5, 5))
    mask = np.random.default_rng(3).random((B, 1, 11, 13)) < 0.5
    mask[:, :, :, 4] = False
    d_q, d_k, d_v = gradients((d_output, q, k, v), {"mask": mask})
    assert np.abs(d_k[:, :, 4]).max() == np.abs(d_v[:, :, 4]).max() == 0
    open_mask = np.ones_like(mask)
    for masked, plain in zip((d_q, d_k, d_v), gradients((d_output, q, k, v), {}), strict=True):
        assert np.abs(masked - plain).max() > 1e-3
    for opened, plain in zip(
        gradients((d_output, q, k, v), {"mask": open_mask}), gradients((d_output, q, k, v), {}), strict=True
    ):
        np.testing.assert_allclose(opened, plain, atol=1e-12)


@needs_kernels
@each_case
def test_kernels_give_what_tiles_give(sizes, rules):
    arrays = operands(sizes, np.float32)
    exact = gradients([x.astype(np.float64) for x in arrays], rules)
    with use_backend("numpy"):
        tiled = gradients(arrays, rules)
    with use_backend("compiled"):
        compiled = gradients(arrays, rules)
    for name, wanted, slow, fast in zip(("d_q", "d_k", "d_v"), exact, tiled, compiled, strict=True):
        largest = max(np.abs(wanted).max(), 1e-9)
        assert np.abs(slow - wanted).max() <= 1e-5 * largest, name
        assert np.abs(fast - wanted).max() <= 1e-5 * largest, name


@needs_kernels
def test_bits_do_not_depend_on_threads():
    from qkv.kernels.attention_backward import attend_backward as compiled

    d_output, q, k, v = operands((131, 131, 32, 32), np.float32)
    output, lse = attend(q, k, v, causal=True, return_lse=True)
    runs = [
        compiled(d_output, q, k, v, output, lse, scale=32**-0.5, right=0, num_workers=workers)
        for workers in (1, 2, 3)
    ]
    for other in runs[1:]:
        assert all(np.array_equal(one, same) for one, same in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("backend", ["numpy", pytest.param("compiled", marks=needs_kernels)])
def test_hidden_slots_are_never_read(backend):
    """NaN behind the lengths, in queries, keys, values and gradients alike."""
    rules = {"causal": True, "q_lengths": [41, 7], "kv_lengths": [53, 11]}
    d_output, q, k, v = operands((41, 53, 16, 16), np.float32)
    spoilt = [x.copy() for x in (d_output, q, k, v)]
    for array, lengths in zip(spoilt, ([41, 7], [41, 7], [53, 11], [53, 11]), strict=True):
        for row, length in enumerate(lengths):
            array[row, :, length:] = np.nan
    with use_backend(backend):
        clean, poisoned = gradients((d_output, q, k, v), rules), gradients(spoilt, rules)
    for one, other in zip(clean, poisoned, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", ["numpy", pytest.param("compiled", marks=needs_kernels)])
def test_operands_may_have_any_strides_and_are_not_written(backend):
    d_output, q, k, v = operands((31, 31, 16, 16), np.float32)
    strided = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (d_output, q, k, v)]
    copies = [x.copy() for x in strided]
    with use_backend(backend):
        straight = gradients((d_output, q, k, v), {"causal": True})
        found = gradients(strided, {"causal": True})
    for one, other in zip(straight, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert all(np.array_equal(one, other) for one, other in zip(copies, strided, strict=True))


@pytest.mark.parametrize("backend", ["numpy", pytest.param("compiled", marks=needs_kernels)])
def test_memory_does_not_grow_with_t_times_s(backend):
    """2,048 x 2,048 weights of one head would take 16 MiB."""
    q = np.random.default_rng(0).standard_normal((1, 1, 2048, 16)).astype(np.float32)
    with use_backend(backend):
        output, lse = attend(q, q, q, causal=True, return_lse=True)
        attend_backward(q, q, q, q, output, lse, causal=True)
        tracemalloc.start()
        attend_backward(q, q, q, q, output, lse, causal=True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 * 2**20


def test_arrays_that_do_not_fit_are_refused():
    d_output, q, k, v = operands((7, 7, 5, 5))
    output, lse = attend(q, k, v, return_lse=True)
    with pytest.raises(ShapeError, match="d_output"):
        attend_backward(d_output[:, :, 1:], q, k, v, output, lse)
    with pytest.raises(ShapeError, match="lse"):
        attend_backward(d_output, q, k, v, output, lse[..., 1:])
