"""Attention's backward beside PyTorch's autograd through its own attention."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from qkv.ops import attend
from qkv.training.attention import attend_backward

CASES = {
    "causal": ((2, 6, 2, 37, 37, 11), {"causal": True}),
    "as many key heads": ((2, 3, 3, 131, 131, 32), {"causal": True}),
    "one key head": ((1, 5, 1, 71, 71, 24), {"causal": True}),
    "more keys": ((2, 6, 2, 19, 41, 16), {"causal": True}),
    "a window": ((2, 4, 2, 67, 67, 8), {"causal": True, "window": 9}),
    "full": ((2, 4, 2, 43, 29, 17), {}),
    "scaled": ((2, 4, 2, 43, 43, 17), {"causal": True, "scale": 0.7}),
    "ragged": ((3, 4, 2, 23, 31, 16), {"causal": True, "q_lengths": [23, 7, 1], "kv_lengths": [31, 9, 1]}),
}


def visible(B, T, S, rules):
    """Which keys each query sees, and which queries there are, from their definition."""
    seen, real = np.zeros((B, T, S), bool), np.zeros((B, T), bool)
    for b in range(B):
        num_queries, num_keys = rules.get("q_lengths", [T] * B)[b], rules.get("kv_lengths", [S] * B)[b]
        for t in range(num_queries):
            own, real[b, t] = t + num_keys - num_queries, True
            for s in range(num_keys):
                late = rules.get("causal", False) and s > own
                seen[b, t, s] = not late and own - s < rules.get("window", S + T)
    return seen, real


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize(("sizes", "rules"), CASES.values(), ids=CASES)
def test_gradients_are_those_of_autograd(sizes, rules, dtype, error):
    B, H, G, T, S, D = sizes
    random = np.random.default_rng(0)
    shapes = (B, H, T, D), (B, H, T, D), (B, G, S, D), (B, G, S, D)
    d_output, q, k, v = (random.standard_normal(shape).astype(dtype) for shape in shapes)
    seen, real = visible(B, T, S, rules)
    ours = torch.tensor(np.where(real[:, None, :, None], d_output, 0))
    theirs = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    mask = torch.tensor(seen | ~real[..., None])[:, None]  # a row that is no query sees all, for nothing
    scale = rules.get("scale")
    expected = scaled_dot_product_attention(*theirs, attn_mask=mask, scale=scale, enable_gqa=True)
    expected.backward(ours)
    output, lse = attend(q, k, v, return_lse=True, **rules)
    found = attend_backward(d_output, q, k, v, output, lse, **rules)
    for gradient, twin in zip(found, theirs, strict=True):
        wanted = twin.grad.numpy()
        np.testing.assert_allclose(gradient, wanted, rtol=0, atol=error * np.abs(wanted).max())
