"""Every form of a peer that `qkv bench` times computes attention, on the layout it says."""

import numpy as np
import pytest

import reference
from qkv.bench.attention_work import AttentionCall
from qkv.bench.comparison import require_equal
from qkv.bench.measurement import Workload
from qkv.bench.onnxruntime_peer import onnxruntime_ways
from qkv.bench.torch_peer import torch_ways

# onnxruntime's grouped operator takes head sizes that are multiples of 8.
CALLS = {
    "full": AttentionCall(2, 3, 3, 7, 7, 8),
    "causal": AttentionCall(2, 3, 3, 7, 7, 8, causal=True),
    "decode": AttentionCall(2, 6, 3, 1, 11, 8, causal=True),
}
FORMS = {
    "full": ["PyTorch", "onnxruntime Attention", "onnxruntime MultiHeadAttention"],
    "causal": [
        "PyTorch",
        "onnxruntime Attention",
        "onnxruntime MultiHeadAttention",
        "onnxruntime GroupQueryAttention",
    ],
    "decode": [
        "PyTorch groups folded",
        "PyTorch enable_gqa",
        "onnxruntime Attention",
        "onnxruntime Attention, groups folded",
        "onnxruntime MultiHeadAttention, groups folded",
        "onnxruntime GroupQueryAttention",
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_every_form_gives_what_the_plain_loops_give(name):
    call = CALLS[name]
    q, k, v = call.draw()
    expected = reference.attend(q, k, v, causal=call.causal)[0].astype(np.float32)
    ways = torch_ways(call, q, k, v) + onnxruntime_ways(call, q, k, v)
    assert [f"{way.name} {way.form}".strip() for way in ways] == FORMS[name]
    for way in ways:
        for _ in range(3):  # a cache that is appended to in place stays as it is
            require_equal(Workload(name, {}), way, expected)
