"""PyTorch: `torch_sdpa` against F.scaled_dot_product_attention, and autograd through `qkv.attend`."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.compat import torch_sdpa
from qkv.ops.attention import Attended, attend_by, dense_path
from qkv.ops.tiles import attend_tiled

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NUMPY_DTYPES = {torch.bfloat16: ml_dtypes.bfloat16}
MASKS = ["none", "bool", "float", "causal"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Handing such small arrays to other threads takes longer than the sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tolerance(dtype, value):
    """Return how far two computations may be apart, for outputs that are means of ``value``.

    PyTorch's half precision kernel rounds the weights to the input's type before it mixes, then
    the output: two units. In float32 and float64 the sums of up to 17 terms take another order.
    """
    units = 2 if dtype in (torch.float16, torch.bfloat16) else 32
    return units * torch.finfo(dtype).eps * max(1.0, float(value.abs().max()))


def random_call(seed, dtype, masking, enable_gqa):
    """Return shapes of distinct sizes, T != S, in two to five axes, with a mask of fewer axes or more."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    T, S, D, V_D = rng.permutation([2, 3, 5, 7, 11, 13, 17])[:4].tolist()
    batch = (2, 3, 5)[: rng.integers(0, 4)]
    H, G = (6, int(rng.choice([1, 2, 3]))) if enable_gqa else (4, 4)
    query_axes, key_axes = ((*batch, H), (*batch, G)) if batch or enable_gqa else ((), ())
    shapes = (*query_axes, T, D), (*key_axes, S, D), (*key_axes, S, V_D if rng.random() < 0.5 else D)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    options = {"enable_gqa": enable_gqa, "is_causal": masking == "causal"}
    if rng.random() < 0.5:
        options["scale"] = float(rng.uniform(-1, 1))
    if masking in ("bool", "float"):
        full = (*query_axes, T, S)
        shape = [1 if rng.random() < 0.3 else size for size in full[rng.integers(0, len(full) - 1) :]]
        mask = torch.randn(shape, generator=generator, dtype=torch.float64)
        options["attn_mask"] = mask > -0.3 if masking == "bool" else mask.to(dtype)
    return q, k, v, options


def to_numpy(x):
    if x is None or not isinstance(x, torch.Tensor):
        return x
    if x.dtype in NUMPY_DTYPES:
        return x.to(torch.float32).numpy().astype(NUMPY_DTYPES[x.dtype])
    return x.numpy()


@pytest.mark.parametrize("kernel", ["chosen by PyTorch", "math"])
@pytest.mark.parametrize("enable_gqa", [False, True], ids=["mha", "gqa"])
@pytest.mark.parametrize("masking", MASKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_as_pytorch_on_tensors_and_on_numpy_arrays(dtype, masking, enable_gqa, kernel):
    backends = [SDPBackend.MATH] if kernel == "math" else [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    for seed in range(12):
        q, k, v, options = random_call(seed, dtype, masking, enable_gqa)
        with sdpa_kernel(backends):
            expected = F.scaled_dot_product_attention(q, k, v, **options)
        ours = torch_sdpa(q, k, v, **options)
        assert isinstance(ours, torch.Tensor)
        assert ours.dtype == dtype
        close = {"rtol": 0, "atol": tolerance(dtype, v)}
        torch.testing.assert_close(ours, expected, **close)
        arrays = {name: to_numpy(option) for name, option in options.items()}
        in_numpy = torch_sdpa(to_numpy(q), to_numpy(k), to_numpy(v), **arrays)
        assert in_numpy.dtype == to_numpy(q).dtype
        np.testing.assert_allclose(in_numpy.astype(np.float64), expected.to(torch.float64).numpy(), **close)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((2, 6, 3, 4), (6, 5, 4), (1, 1, 5, 7)),
        ((1, 6, 3, 4), (2, 1, 5, 4), (2, 6, 5, 7)),
        ((2, 1, 2, 3, 4), (3, 1, 5, 4), (5, 7)),
        ((3, 4), (2, 5, 4), (5, 7)),
        ((3, 4), (5, 4), (5, 7)),
    ],
    ids=str,
)
def test_leading_axes_broadcast_as_in_pytorch(query, key, value):
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in (query, key, value))
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(torch_sdpa(q, k, v), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_both_kernels_give_zero_where_nothing_may_be_seen(backend, kind, dtype):
    q, k, v = (torch.randn(2, 3, size, 4, dtype=dtype) for size in (2, 5, 5))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0] = False
    if kind == "float":
        mask = torch.zeros(2, 5, dtype=dtype).masked_fill(~mask, -math.inf)
    with sdpa_kernel(backend):
        theirs = F.scaled_dot_product_attention(q, k, v, mask)
    ours = torch_sdpa(q, k, v, mask)
    assert (theirs[:, :, 0] == 0).all()
    assert (ours[:, :, 0] == 0).all()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance(dtype, v))


def test_mask_and_causal_together_are_an_error_in_the_documented_kernel_only():
    x, mask = torch.zeros(1, 1, 3, 4), torch.ones(3, 3, dtype=torch.bool)
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="is_causal"):
        F.scaled_dot_product_attention(x, x, x, mask, is_causal=True)
    with pytest.raises(ValueError, match="not both"):
        torch_sdpa(x, x, x, mask, is_causal=True)
    mask[2, 0] = False
    v = torch.tensor([1.0, 2.0, 4.0])[:, None].expand(1, 1, 3, 4).contiguous()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        intersected = F.scaled_dot_product_attention(x, x, v, mask, is_causal=True)
    torch.testing.assert_close(intersected[0, 0, :, 0], torch.tensor([1.0, 1.5, 3.0]))


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_what_pytorch_refuses_is_refused(enable_gqa):
    q, k = torch.zeros(1, 4, 3, 5), torch.zeros(1, 3 if enable_gqa else 2, 7, 5)
    for attend in (F.scaled_dot_product_attention, torch_sdpa):
        with pytest.raises((RuntimeError, ValueError)):
            attend(q, k, k, enable_gqa=enable_gqa)
        with pytest.raises((RuntimeError, TypeError)):
            attend(q, q, q, torch.ones(3, 3, dtype=torch.int64))


# Gradients. The dense path, the tiled path, and the tiled path in tiles smaller than any axis.
PATHS = {
    "dense": dense_path,
    "tiled": lambda operands: Attended(*insert_no_weights(attend_tiled(operands))),
    "small tiles": lambda operands: Attended(*insert_no_weights(attend_tiled(operands, 2, 3))),
}


def insert_no_weights(output_and_lse):
    output, lse = output_and_lse
    return output, None, lse


def leaves(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def gradients(output, inputs):
    """Return the gradients of a scalar in which every output has another weight."""
    weights = torch.arange(1.0, output.numel() + 1, dtype=output.dtype).reshape(output.shape).cos()
    return torch.autograd.grad((output * weights).sum(), inputs)


def assert_same_gradients(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    for own, their in zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        assert own.isfinite().all()
        torch.testing.assert_close(own, their, rtol=0, atol=1e-10)


def masks(T, S):
    mask = torch.rand(T, S, generator=torch.Generator().manual_seed(1)) > 0.4
    hidden = mask.clone()
    hidden[[0, 3]] = False
    return {
        "plain": ({}, {}),
        "causal": ({"causal": "top_left"}, {"is_causal": True}),
        "bool mask": ({"mask": mask}, {"attn_mask": mask}),
        "fully hidden rows": ({"mask": hidden}, {"attn_mask": hidden}),
        "bottom right": (
            {"causal": True},
            {"attn_mask": torch.ones(T, S, dtype=torch.bool).tril(S - T)},
        ),
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("G", [1, 2, 6])
@pytest.mark.parametrize("rule", masks(5, 7))
@pytest.mark.parametrize("T", [5, 11])
def test_gradients_are_those_of_pytorch(path, G, rule, T):
    inputs = leaves((2, 6, T, 3), (2, G, 7, 3), (2, G, 7, 3))
    own_rule, their_rule = masks(T, 7)[rule]
    ours = attend_by(PATHS[path], *inputs, **own_rule, scale=0.7).output
    with sdpa_kernel(SDPBackend.MATH):
        theirs = F.scaled_dot_product_attention(*inputs, **their_rule, scale=0.7, enable_gqa=True)
    assert_same_gradients(ours, theirs, inputs)


@pytest.mark.parametrize("path", PATHS)
def test_gradient_reaches_the_bias(path):
    *inputs, bias = leaves((2, 3, 5, 3), (2, 3, 7, 3), (2, 3, 7, 3), (3, 5, 7))
    ours = attend_by(PATHS[path], *inputs, bias=bias[None]).output
    with sdpa_kernel(SDPBackend.MATH):
        theirs = F.scaled_dot_product_attention(*inputs, attn_mask=bias)
    assert_same_gradients(ours, theirs, [*inputs, bias])


def formula(q, k, v, softcap, sinks, mask):
    """Attention with a soft cap and a sink per head, written out in PyTorch."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, -math.inf)
    sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1] @ v


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rule", ["bool mask", "fully hidden rows"])
def test_gradients_through_softcap_and_sinks_are_those_of_the_formula(path, rule):
    *inputs, sinks = leaves((2, 3, 5, 3), (2, 3, 7, 3), (2, 3, 7, 3), (3,))
    mask = masks(5, 7)[rule][0]["mask"]
    ours = attend_by(PATHS[path], *inputs, mask=mask, softcap=0.8, sinks=sinks).output
    theirs = formula(*inputs, 0.8, sinks, mask)
    assert_same_gradients(ours, theirs, [*inputs, sinks])


@pytest.mark.parametrize("path", PATHS)
def test_gradients_ignore_what_hidden_values_hold(path):
    q, k, v = leaves((1, 2, 5, 3), (1, 2, 7, 3), (1, 2, 7, 3))
    mask = torch.tensor([True, True, False, True, True, False, False])
    clean = gradients(attend_by(PATHS[path], q, k, v, mask=mask).output, (q, k, v))
    with torch.no_grad():
        v[:, :, 2], v[:, :, 5] = math.nan, math.inf
    spoilt = gradients(attend_by(PATHS[path], q, k, v, mask=mask).output, (q, k, v))
    for one, other in zip(spoilt, clean, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
