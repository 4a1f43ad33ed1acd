"""`MultiHeadAttention` with the weights of PyTorch's layer gives what PyTorch's layer gives."""

import numpy as np
import pytest
import torch

from qkv.models import MultiHeadAttention
from qkv.ops.masks import causal_mask

B, T, S, E, H = 3, 7, 11, 30, 6
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def theirs(request: pytest.FixtureRequest, dtype: torch.dtype) -> torch.nn.MultiheadAttention:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.MultiheadAttention(E, H, bias=request.param, batch_first=True, dtype=dtype).eval()
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=dtype) * E**-0.5
    return layer


def text(length: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(B, length, E, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def compare(
    theirs: torch.nn.MultiheadAttention,
    texts: tuple[torch.Tensor, ...],
    hidden: np.ndarray | None = None,
    **rules,
) -> None:
    """Both layers on the same texts; ``hidden`` is PyTorch's mask, in which True = may not attend."""
    ours = MultiHeadAttention.from_torch(theirs.state_dict(), H)
    mask = None if hidden is None else torch.from_numpy(hidden)
    query, key, value = (texts * 3)[:3] if len(texts) == 1 else (*texts, *texts[-1:])[:3]
    with torch.no_grad():
        expected = theirs(query, key, value, attn_mask=mask, average_attn_weights=False)
    got = ours(*(part.numpy() for part in texts), **rules)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.numpy().dtype
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=TOLERANCE[query.dtype])


def test_self_attention_is_theirs(theirs: torch.nn.MultiheadAttention, dtype: torch.dtype):
    compare(theirs, (text(T, dtype),))


def test_causal_attention_is_theirs(theirs: torch.nn.MultiheadAttention, dtype: torch.dtype):
    compare(theirs, (text(T, dtype),), hidden=~causal_mask(T), causal=True)


def test_a_mask_is_theirs_turned_round(theirs: torch.nn.MultiheadAttention, dtype: torch.dtype):
    visible = np.random.default_rng(0).random((T, T)) < 0.6
    visible[:, 3] = True  # a row that sees nothing is NaN there
    compare(theirs, (text(T, dtype),), hidden=~visible, mask=visible)


def test_cross_attention_is_theirs(theirs: torch.nn.MultiheadAttention, dtype: torch.dtype):
    compare(theirs, (text(T, dtype), text(S, dtype, 2)))
    compare(theirs, (text(T, dtype), text(S, dtype, 2), text(S, dtype, 3)))


def test_padding_of_keys_is_theirs(theirs: torch.nn.MultiheadAttention, dtype: torch.dtype):
    lengths = np.array([11, 4, 7])
    real = np.arange(S) < lengths[:, None]
    ours = MultiHeadAttention.from_torch(theirs.state_dict(), H)
    query, key = text(T, dtype), text(S, dtype, 2)
    with torch.no_grad():
        expected, _ = theirs(query, key, key, key_padding_mask=torch.from_numpy(~real))
    got, _ = ours(query.numpy(), key.numpy(), mask=real[:, None, None])
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=TOLERANCE[dtype])
