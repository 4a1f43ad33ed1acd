"""PyTorch's ``scaled_dot_product_attention`` as a peer."""

from functools import partial
from importlib import import_module
from typing import Any

from qkv.bench.attention_work import AttentionCall, Floats, fold_groups
from qkv.bench.comparison import Way
from qkv.bench.machine import is_installed


def torch_ways(call: AttentionCall, q: Floats, k: Floats, v: Floats) -> list[Way]:
    """Return PyTorch's forms of a call on as many threads as ours; none where it is not installed.

    Grouped heads, with one query each, come in two forms: ``enable_gqa``, and the queries of a group
    folded into positions of one head.
    """
    if not is_installed("torch"):
        return []
    from qkv.kernels.host import num_threads  # the compiler is loaded when it is first needed

    torch: Any = import_module("torch")
    torch.set_num_threads(num_threads())
    queries, keys, values = (torch.from_numpy(x) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    if call.H == call.G:
        return [Way("PyTorch", partial(attend, queries, keys, values, is_causal=call.causal))]
    folded = torch.from_numpy(fold_groups(q, call.G))
    return [
        Way("PyTorch", partial(attend, folded, keys, values), "groups folded", lambda y: y.reshape(q.shape)),
        Way("PyTorch", partial(attend, queries, keys, values, enable_gqa=True), "enable_gqa"),
    ]
