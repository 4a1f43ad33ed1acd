"""What `attend` promises, asked of every path that computes it."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from attention_paths import PATHS, bits, normal

B, H, G, T, S, D, WIDE = 2, 6, 3, 5, 7, 11, 13

RELATIVE_ERROR = {"float64": 1e-12, "float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}
"""For 16 bits, half a unit in the last place of the output: the sum itself is in float32."""


@pytest.fixture(params=list(PATHS.values()), ids=list(PATHS))
def path(request: pytest.FixtureRequest) -> Any:
    return request.param


def random_mask(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).random(shape) < 0.7


def some_hidden(*shape: int) -> np.ndarray:
    return np.where(random_mask(*shape), normal(5, *shape), -np.inf)


MASKS = {
    f"mask {shape}": {"mask": random_mask(*shape)}
    for shape in [(S,), (1,), (T, S), (T, 1), (B, 1, 1, S), (B, H, T, S), (1, H, 1, S), (B, 1, T, 1)]
}
BIASES = {
    "bias": {"bias": normal(4, T, S)},
    "bias per head": {"bias": normal(4, H, 1, S)[None]},
    "bias hides": {"bias": some_hidden(B, 1, T, S)},
    "alibi": {"alibi_slopes": normal(6, H) ** 2},
}
ORDERS = {
    "causal": {"causal": True},
    "causal top left": {"causal": "top_left"},
    "window 1": {"window": 1},
    "window 3": {"window": 3},
    "window longer than the text": {"window": 100},
    "window on both sides": {"window": (1, 2)},
    "window to the right": {"window": (None, 1)},
    "window of one's own key": {"window": (0, 0)},
    "causal window": {"window": (2, 2), "causal": True},
    "causal top left window": {"window": 2, "causal": "top_left"},
}
LENGTHS = {
    "key lengths": {"kv_lengths": [S, 3]},
    "no key": {"kv_lengths": [0, S]},
    "query lengths": {"q_lengths": [2, T]},
    "both lengths": {"q_lengths": [T, 1], "kv_lengths": [4, 6]},
}
LOGITS = {
    "scale 0": {"scale": 0.0},
    "negative scale": {"scale": -1.0},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": normal(7, H)},
}
RULES: dict[str, dict[str, Any]] = {
    "no rule": {},
    **MASKS,
    **BIASES,
    **ORDERS,
    **LENGTHS,
    **LOGITS,
    "causal with a negative scale": {"causal": True, "scale": -1.0},
    "window with scale 0": {"window": 3, "scale": 0.0},
    "causal with lengths": {"causal": True, "q_lengths": [3, T], "kv_lengths": [S, 5]},
    "window with lengths": {"window": 2, "q_lengths": [T, 2], "kv_lengths": [3, S]},
    "alibi with lengths": {"alibi_slopes": normal(6, H) ** 2, "kv_lengths": [4, S]},
}


@cache
def loops(rule: str, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return reference.attend(*inputs(dtype), **RULES[rule])


def inputs(dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        normal(1, B, H, T, D, dtype=dtype),
        normal(2, B, G, S, D, dtype=dtype),
        normal(3, B, G, S, WIDE, dtype=dtype),
    )


def check(got: tuple[np.ndarray, np.ndarray], expected: tuple[Any, Any, Any], dtype: str = "float64") -> None:
    output, _, lse = expected
    absolute = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(got[0].astype(float), output, rtol=RELATIVE_ERROR[dtype], atol=absolute)
    np.testing.assert_allclose(got[1].astype(float), lse, rtol=absolute, atol=absolute)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_what_the_loops_give(path, rule, dtype):
    got = path(*inputs(dtype), **RULES[rule])
    check(got, loops(rule, dtype), np.dtype(dtype).name)


@settings(deadline=None, max_examples=100)
@given(
    bias=st.sampled_from([{}, *BIASES.values()]),
    mask=st.sampled_from([{}, *MASKS.values()]),
    order=st.sampled_from([{}, *ORDERS.values()]),
    lengths=st.sampled_from([{}, *LENGTHS.values()]),
    cap=st.sampled_from([{}, {"softcap": 0.7}]),
    sinks=st.sampled_from([{}, {"sinks": normal(7, H)}]),
    swapped=st.booleans(),
)
def test_rules_intersect_on_every_path_as_in_the_loops(bias, mask, order, lengths, cap, sinks, swapped):
    options = {**bias, **mask, **order, **lengths, **cap, **sinks}
    q, k, v = inputs()
    if swapped and not mask and not lengths and "bias" not in bias:
        q, k, v = normal(1, B, H, S, D), k[:, :, :T], v[:, :, :T]  # more queries than keys
    expected = reference.attend(q, k, v, **options)
    for run in PATHS.values():
        check(run(q, k, v, **options), expected)


@pytest.mark.parametrize("rule", ["no rule", "causal", "mask (2, 6, 5, 7)", "softcap", "sinks", "alibi"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_each_dtype_returns_itself_as_exactly_as_it_can(path, dtype, rule):
    output, lse = path(*inputs(dtype), **RULES[rule])
    assert (output.dtype, lse.dtype) == (dtype, np.float64 if dtype == np.float64 else np.float32)
    check((output, lse), loops(rule, dtype), np.dtype(dtype).name)


@pytest.mark.parametrize("G", [1, 2, 3, 6])
@pytest.mark.parametrize(("T", "S"), [(1, 7), (7, 7), (7, 5), (7, 1), (1, 1)])
def test_key_heads_are_shared_and_lengths_may_differ(path, G, T, S):
    q, k, v = normal(1, B, H, T, D), normal(2, B, G, S, D), normal(3, B, G, S, WIDE)
    check(path(q, k, v, causal=True), reference.attend(q, k, v, causal=True))


@pytest.mark.parametrize("leading", [(), (H,)])
def test_leading_axes_may_be_absent(path, leading):
    q, k, v = normal(1, *leading, T, D), normal(2, *leading, S, D), normal(3, *leading, S, WIDE)
    heads = (x.reshape(1, -1, *x.shape[-2:]) for x in (q, k, v))
    output, _, lse = reference.attend(*heads, causal=True)
    expected = output.reshape(*leading, T, WIDE), None, lse.reshape(*leading, T)
    check(path(q, k, v, causal=True), expected)


@pytest.mark.parametrize(("B", "T", "S"), [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)])
def test_empty_axes_keep_their_shape(path, B, T, S):
    q, k, v = normal(1, B, H, T, D), normal(2, B, G, S, D), normal(3, B, G, S, WIDE)
    options = {"causal": True, "mask": np.ones((B, 1, T, S), bool), "kv_lengths": [S] * B}
    for rules in ({}, options, {"window": 3, "bias": np.zeros((T, S))}):
        output, lse = path(q, k, v, **rules)
        assert (output.shape, lse.shape) == ((B, H, T, WIDE), (B, H, T))
        assert not output.any()
        assert (lse == -np.inf).all()


LAYOUTS = {
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "transposed": lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2),
    "heads last": lambda x: np.ascontiguousarray(x.transpose(2, 3, 0, 1)).transpose(2, 3, 0, 1),
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_any_strides_give_equal_values_and_inputs_are_never_written(path, layout):
    plain = [*inputs(), random_mask(B, H, T, S), normal(4, B, H, T, S)]
    strided = [layout(x) for x in plain]
    for x in strided:
        x.flags.writeable = False
    q, k, v, mask, bias = strided
    options = {"mask": mask, "bias": bias, "causal": True, "kv_lengths": [S, 3]}
    expected = reference.attend(*plain[:3], **{**options, "mask": plain[3], "bias": plain[4]})
    check(path(q, k, v, **options), expected)
    assert all((x == y).all() for x, y in zip(strided, plain, strict=True))


def test_broadcast_inputs_give_what_their_copies_give(path):
    q, k, v = (np.broadcast_to(x[:1, :1], x.shape) for x in inputs())
    copies = (x.copy() for x in (q, k, v))
    check(path(q, k, v, window=3), reference.attend(*copies, window=3))


def test_a_call_gives_the_same_bits_each_time(path):
    first, second = (path(*inputs(np.float32), **RULES["causal"]) for _ in range(2))
    assert all((bits(x) == bits(y)).all() for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_paths_agree_to_a_few_units_in_the_last_place(path, dtype):
    q, k, v = normal(1, B, H, 97, D, dtype=dtype), *(normal(n, B, G, 101, D, dtype=dtype) for n in (2, 3))
    output, _ = path(q, k, v, causal=True)
    dense, _ = PATHS["dense"](q, k, v, causal=True)
    assert np.abs(output - dense).max() <= 16 * np.finfo(dtype).eps * np.abs(v).max()
