"""Each way back gives what PyTorch's autograd gives for the same step, in both precisions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from qkv.training.adamw import AdamW, clip
from qkv.training.cross_entropy import IGNORED, cross_entropy, token_nats
from qkv.training.embedding import embed_backward
from qkv.training.mlp import gate_backward
from qkv.training.norm import rms_norm_backward
from qkv.training.parameters import Parameters
from qkv.training.projection import project_backward, project_plain
from qkv.training.rotary import rotate_backward

TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: dtype.__name__)
def dtype(request: pytest.FixtureRequest) -> type:
    return request.param


def normal(dtype: type, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def autograd(step: Callable[..., torch.Tensor], d_y: np.ndarray, *inputs: np.ndarray) -> list[np.ndarray]:
    """Gradients of the inputs by PyTorch."""
    leaves = [torch.tensor(array, requires_grad=True) for array in inputs]
    step(*leaves).backward(torch.tensor(d_y))
    return [leaf.grad.numpy() for leaf in leaves]


def assert_same(got: tuple[np.ndarray, ...], expected: list[np.ndarray], dtype: type) -> None:
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(other).max()))


def test_rms_norm(dtype: type):
    d_y, x, weight = normal(dtype, 3, 31, 67), normal(dtype, 3, 31, 67, seed=1), normal(dtype, 67, seed=2)
    expected = autograd(lambda x, weight: functional.rms_norm(x, (67,), weight, 1e-5), d_y, x, weight)
    assert_same(rms_norm_backward(d_y, x, weight, 1e-5), expected, dtype)


def test_rms_norm_beside_a_residual_stream(dtype: type):
    d_y, x, weight = normal(dtype, 3, 31, 67), normal(dtype, 3, 31, 67, seed=1), normal(dtype, 67, seed=2)
    expected = autograd(lambda x, weight: functional.rms_norm(x, (67,), weight, 1e-5) + x, d_y, x, weight)
    assert_same(rms_norm_backward(d_y, x, weight, 1e-5, d_skip=d_y), expected, dtype)


def test_rotary(dtype: type):
    d_y, x = normal(dtype, 2, 3, 11, 14), normal(dtype, 2, 3, 11, 14, seed=1)
    angles = normal(dtype, 11, 7, seed=2)
    cosines, sines = np.cos(angles), np.sin(angles)

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = torch.tensor(cosines), torch.tensor(sines)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)

    assert_same((rotate_backward(d_y, cosines, sines),), autograd(turn, d_y, x), dtype)


def test_gate(dtype: type):
    d_y, gate_up = normal(dtype, 3, 11, 67), 4 * normal(dtype, 3, 11, 134, seed=1)
    expected = autograd(lambda both: functional.silu(both[..., :67]) * both[..., 67:], d_y, gate_up)
    assert_same((gate_backward(d_y, gate_up),), expected, dtype)


def test_projection(dtype: type):
    d_y, x, weight = normal(dtype, 3, 31, 41), normal(dtype, 3, 31, 67, seed=1), normal(dtype, 41, 67, seed=2)
    assert_same(
        (project_plain(x, weight),), [functional.linear(*map(torch.tensor, (x, weight))).numpy()], dtype
    )
    assert_same(project_backward(d_y, x, weight), autograd(functional.linear, d_y, x, weight), dtype)


def test_embedding(dtype: type):
    ids = np.random.default_rng(0).integers(0, 13, (3, 31))
    d_x, table = normal(dtype, 3, 31, 7), normal(dtype, 17, 7)
    expected = autograd(lambda table: functional.embedding(torch.tensor(ids), table), d_x, table)
    assert_same((embed_backward(d_x, ids, 17),), expected, dtype)


def test_cross_entropy(dtype: type):
    logits, targets = 5 * normal(dtype, 3, 31, 67), np.random.default_rng(0).integers(IGNORED, 67, (3, 31))
    rows = torch.tensor(logits.reshape(-1, 67), requires_grad=True)
    places = torch.tensor(targets.reshape(-1))
    each = functional.cross_entropy(rows, places, ignore_index=IGNORED, reduction="none")
    mean = functional.cross_entropy(rows, places, ignore_index=IGNORED)
    mean.backward()
    assert_same((token_nats(logits, targets),), [each.detach().numpy().reshape(3, 31)], dtype)
    nats, d_logits = cross_entropy(logits, targets)
    assert nats == pytest.approx(mean.item(), rel=TOLERANCE[dtype])
    assert_same((d_logits,), [rows.grad.numpy().reshape(3, 31, 67)], dtype)


def test_adamw_with_clipped_gradients(dtype: type):
    shapes = {"w": (7, 11), "scale": (13,), "table": (5, 3)}
    parameters = Parameters(shapes, normal(dtype, 105))
    theirs = {name: torch.tensor(array.copy()) for name, array in parameters.items()}
    optimiser = AdamW(parameters, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3, decayed=["w", "table"])
    decaying = {"params": [theirs["w"], theirs["table"]], "weight_decay": 0.3}
    others = {"params": [theirs["scale"]], "weight_decay": 0.0}
    reference = torch.optim.AdamW([decaying, others], lr=0.0, betas=(0.8, 0.9), eps=1e-6)
    for step in range(7):
        gradients = Parameters(shapes, 3 * normal(dtype, 105, seed=step + 1))
        for name, array in gradients.items():
            theirs[name].grad = torch.tensor(array.copy())
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 2.0)
        assert clip(gradients, 2.0) == pytest.approx(norm.item(), rel=TOLERANCE[dtype])
        for group in reference.param_groups:
            group["lr"] = 0.01 * (step + 1)
        optimiser.step(gradients, 0.01 * (step + 1))
        reference.step()
    # theirs clips to the limit over norm + 1e-6
    for name, array in parameters.items():
        np.testing.assert_allclose(array, theirs[name].numpy(), rtol=0, atol=max(TOLERANCE[dtype], 1e-6))
