"""onnxruntime's attention as a peer: the standard's operator, and two of its own.

Each form is a model of one node, built in memory. They lay heads out differently: ``Attention`` takes
queries as (B, H, T, D), the others as (B, T, H * D). ``GroupQueryAttention`` is causal always, and
appends the last key to a cache before it attends.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.bench.attention_work import AttentionCall, Floats, fold_groups
from qkv.bench.comparison import Way
from qkv.bench.machine import is_installed
from qkv.bench.stopwatch import Run

STANDARD, MULTI_HEAD, GROUPED = "Attention", "MultiHeadAttention", "GroupQueryAttention"

IR_VERSION, OPSET, OWN_OPSET = 10, 23, 1
OWN_DOMAIN = "com.microsoft"

ERRORS_ONLY = 3


def onnxruntime_ways(call: AttentionCall, q: Floats, k: Floats, v: Floats) -> list[Way]:
    """Return onnxruntime's forms of a call on as many threads as ours; none where it is not installed.

    A form that the installed version does not know is left out.
    """
    if not (is_installed("onnxruntime") and is_installed("onnx")):
        return []
    makers = _plain_forms(call, q, k, v) if call.H == call.G else _grouped_forms(call, q, k, v)
    unknown = _errors_of_unknown_operators()
    ways = []
    for form, make in makers.items():
        try:
            run = make()
        except unknown:
            continue
        ways.append(Way("onnxruntime", run, form, lambda y: _heads_apart(y, q.shape)))
    return ways


Makers = Mapping[str, Callable[[], Run]]


def _plain_forms(call: AttentionCall, q: Floats, k: Floats, v: Floats) -> Makers:
    """Return the forms for as many key heads as query heads."""
    forms: dict[str, Callable[[], Run]] = {
        STANDARD: lambda: _standard(q, k, v, call.causal),
        MULTI_HEAD: lambda: _multi_head(q, k, v, call.causal),
    }
    if call.causal:
        forms[GROUPED] = lambda: _grouped_prefill(q, k, v)
    return forms


def _grouped_forms(call: AttentionCall, q: Floats, k: Floats, v: Floats) -> Makers:
    """Return the forms for one query on grouped heads, which sees every key."""
    folded = fold_groups(q, call.G)
    return {
        STANDARD: lambda: _standard(q, k, v, False),
        f"{STANDARD}, groups folded": lambda: _standard(folded, k, v, False),
        f"{MULTI_HEAD}, groups folded": lambda: _multi_head(folded, k, v, False),
        GROUPED: lambda: _grouped_decode(q, k, v),
    }


def _standard(q: Floats, k: Floats, v: Floats, causal: bool) -> Run:
    session = _session(STANDARD, "", ("q", "k", "v"), ("y",), is_causal=int(causal))
    return _bound(session, {"q": q, "k": k, "v": v})


def _multi_head(q: Floats, k: Floats, v: Floats, causal: bool) -> Run:
    session = _session(
        MULTI_HEAD, OWN_DOMAIN, ("q", "k", "v"), ("y",), num_heads=q.shape[1], unidirectional=int(causal)
    )
    return _bound(session, {"q": _heads_in_rows(q), "k": k, "v": v})


def _grouped_prefill(q: Floats, k: Floats, v: Floats) -> Run:
    rows = {"q": _heads_in_rows(q), "k": _heads_in_rows(k), "v": _heads_in_rows(v)}
    session = _grouped_session(q.shape[1], k.shape[1], ("", ""))
    return _bound(session, rows | _lengths(k))


def _grouped_decode(q: Floats, k: Floats, v: Floats) -> Run:
    """Run on a cache that is read and appended to in place, with the last key where it stands already."""
    last = {"k": _heads_in_rows(k[:, :, -1:]), "v": _heads_in_rows(v[:, :, -1:])}
    session = _grouped_session(q.shape[1], k.shape[1], ("past_k", "past_v"))
    return _bound(session, {"q": _heads_in_rows(q)} | last | _lengths(k), {"k": k, "v": v})


def _grouped_session(H: int, G: int, past: tuple[str, str]) -> Any:
    inputs = ("q", "k", "v", *past, "last", "length")
    return _session(GROUPED, OWN_DOMAIN, inputs, ("y", "present_k", "present_v"), num_heads=H, kv_num_heads=G)


def _lengths(k: Floats) -> dict[str, NDArray[np.int32]]:
    B, _, S, _ = k.shape
    return {"last": np.full(B, S - 1, np.int32), "length": np.array([S], np.int32)}


def _session(
    operator: str, domain: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int
) -> Any:
    """Return a model of one node, ready to run."""
    from qkv.kernels.host import num_threads  # the compiler is loaded when it is first needed

    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    helper, types = onnx.helper, onnx.TensorProto
    kinds = {"last": types.INT32, "length": types.INT32}
    node = helper.make_node(operator, inputs, outputs, domain=domain, **attributes)
    described = [
        [helper.make_tensor_value_info(name, kinds.get(name, types.FLOAT), None) for name in names if name]
        for names in (inputs, outputs)
    ]
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(OWN_DOMAIN, OWN_OPSET)]
    graph = helper.make_graph([node], operator, *described)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = num_threads()
    options.log_severity_level = ERRORS_ONLY
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _bound(
    session: Any, inputs: Mapping[str, NDArray[Any]], cache: Mapping[str, Floats] | None = None
) -> Run:
    """Hand a session its arrays once, without copies, and return a run that gives ``y``."""
    from_numpy = import_module("onnxruntime").OrtValue.ortvalue_from_numpy
    slots = {name: from_numpy(array) for name, array in (cache or {}).items()}
    held = {name: from_numpy(array) for name, array in inputs.items()}
    held |= {f"past_{name}": value for name, value in slots.items()}
    binding = session.io_binding()
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for name in (output.name for output in session.get_outputs()):
        slot = slots.get(name.removeprefix("present_"))
        binding.bind_output(name) if slot is None else binding.bind_ortvalue_output(name, slot)

    def run() -> Any:
        assert held, "the session does not keep the arrays alive"
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return run


def _heads_in_rows(x: Floats) -> Floats:
    """Return (B, H, T, D) as (B, T, H * D)."""
    B, H, T, D = x.shape
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(B, T, H * D)


def _heads_apart(y: Any, shape: tuple[int, ...]) -> Floats:
    """Return a result as (B, H, T, D), from rows of heads or from folded groups."""
    array = y.numpy()
    if array.ndim == len(shape):
        return array.reshape(shape)
    (B, rows, width), D = array.shape, shape[-1]
    return array.reshape(B, rows, width // D, D).swapaxes(1, 2).reshape(shape)


def _errors_of_unknown_operators() -> tuple[type[Exception], ...]:
    errors = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    return errors.NotImplemented, errors.InvalidGraph, errors.Fail
