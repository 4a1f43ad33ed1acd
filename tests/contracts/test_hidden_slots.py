"""What a query may not see changes no bit of its result, whatever it is: asked of every path."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from attention_paths import PATHS, bits, normal
from qkv.ops import merge_attended

POISONS = [np.nan, np.inf, -np.inf]
LAYOUTS = {
    "plain": lambda x: x,
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "transposed": lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2),
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
}


@pytest.fixture(params=list(PATHS.values()), ids=list(PATHS))
def path(request: pytest.FixtureRequest) -> Any:
    return request.param


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[np.ndarray], dict[str, Any], np.ndarray]:
    """Inputs, rules that hide some of the slots, and which those are: ``(B, H, T, S)``."""
    B, (H, G), T, S, D = 2, draw(st.sampled_from([(2, 1), (6, 3)])), draw(st.sampled_from([1, 5])), 17, 3
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = [(S,), (T, S), (B, 1, 1, S), (1, H, 1, S), (B, 1, T, S), (B, H, T, S), (B, 1, T, 1)]
    shape = draw(st.sampled_from(shapes))
    options: dict[str, Any] = {"mask": rng.random(shape) < draw(st.sampled_from([0.2, 0.7]))}
    if draw(st.booleans()):
        options = {"bias": np.where(options["mask"], rng.standard_normal(shape), -np.inf)}
    options |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "causal": st.sampled_from([True, "top_left"]),
                "window": st.sampled_from([1, 4, (2, 1), (None, 0)]),
                "q_lengths": st.sampled_from([[T, 1], [0, T]]),
                "kv_lengths": st.sampled_from([[S, 5], [0, 11]]),
                "softcap": st.just(2.0),
                "sinks": st.just(rng.standard_normal(H)),
            },
        )
    )
    sizes = (B, H, T, D), (B, G, S, D), (B, G, S, D)
    q, k, v = (np.where(rng.random(size) < 0.1, -0.0, rng.standard_normal(size)) for size in sizes)
    _, weights, _ = reference.attend(q, k, v, **options)
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16, ml_dtypes.bfloat16]))
    return [x.astype(dtype) for x in (q, k, v)], options, weights > 0


def poisoned(x: np.ndarray, where: np.ndarray, poison: float) -> np.ndarray:
    """Return ``x`` with whole rows of its last axis replaced."""
    return np.where(where[..., None], np.asarray(poison, x.dtype), x)


def same_bits(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple[Any, Any]:
    """Return for each query whether its output, and whether its lse, is the same to the bit."""
    return (bits(one[0]) == bits(other[0])).all(-1), bits(one[1]) == bits(other[1])


several = settings(deadline=None, max_examples=60)


@several
@given(calls(), st.sampled_from(POISONS), st.sampled_from(list(LAYOUTS)))
def test_slots_hidden_from_all_and_queries_that_see_nothing_are_never_read(call, poison, layout):
    (q, k, v), options, visible = call
    B, G, S = k.shape[:3]
    unused = ~visible.reshape(B, G, -1, S).any(axis=2)
    idle = ~visible.any(axis=-1)
    arrange = LAYOUTS[layout]
    clean = [arrange(x) for x in (q, k, v)]
    dirty = [arrange(poisoned(x, where, poison)) for x, where in ((q, idle), (k, unused), (v, unused))]
    for name, run in PATHS.items():
        expected, got = run(*clean, **options), run(*dirty, **options)
        assert all(same.all() for same in same_bits(expected, got)), name
        assert not bits(got[0])[idle].any(), name  # exactly +0.0


@several
@given(calls(), st.sampled_from(POISONS), st.data())
def test_poison_in_one_slot_reaches_only_the_queries_that_see_it(call, poison, data):
    (q, k, v), options, visible = call
    (B, G, S), H = k.shape[:3], q.shape[1]
    b, g, s = (data.draw(st.integers(0, n - 1)) for n in (B, G, S))
    slot = np.zeros((B, G, S), bool)
    slot[b, g, s] = True
    sees = (visible & np.repeat(slot, H // G, axis=1)[:, :, None, :]).any(axis=-1)
    for name, run in PATHS.items():
        clean = run(q, k, v, **options)
        with_bad_key = run(q, poisoned(k, slot, poison), v, **options)
        with_bad_value = run(q, k, poisoned(v, slot, poison), **options)
        assert all(same[~sees].all() for same in same_bits(clean, with_bad_key)), name
        assert same_bits(clean, with_bad_value)[0][~sees].all(), name
        assert same_bits(clean, with_bad_value)[1].all(), name
        assert not np.isfinite(with_bad_value[0].astype(np.float32)[sees]).any(), name
        if np.isnan(poison):
            bad = with_bad_key[0], with_bad_key[1][..., None], with_bad_value[0]
            assert all(np.isnan(x.astype(np.float32)[sees]).all() for x in bad), name


@several
@given(calls(), st.sampled_from(POISONS), st.data())
def test_a_bad_query_spoils_its_own_row_alone(call, poison, data):
    (q, k, v), options, visible = call
    query = np.zeros(q.shape[:3], bool)
    query[tuple(data.draw(st.integers(0, n - 1)) for n in q.shape[:3])] = True
    for name, run in PATHS.items():
        clean, dirty = run(q, k, v, **options), run(poisoned(q, query, poison), k, v, **options)
        assert all(same[~query].all() for same in same_bits(clean, dirty)), name
        if np.isnan(poison):
            assert np.isnan(dirty[0].astype(np.float32)[query & visible.any(-1)]).all(), name


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("T", [1, 7])
def test_values_of_any_memory_layout_are_summed_in_one_order(path, T, layout):
    q, k, v = (normal(n, 3, size, 16, dtype=np.float32) for n, size in ((1, T), (2, 64), (3, 64)))
    mask = np.arange(64) != 5
    dirty = poisoned(v, ~mask[None].repeat(3, axis=0), np.nan)
    clean, got = (path(q, k, layout(values), mask=mask) for values in (v, dirty))
    assert all(same.all() for same in same_bits(clean, got))


def test_a_masked_bias_is_not_read_either(path):
    q, k, v = normal(1, 1, 1, 3, 2), normal(2, 1, 1, 5, 2), normal(3, 1, 1, 5, 2)
    mask, bias = np.array([True, False, True, True, False]), np.zeros(5)
    dirty = np.where(mask, bias, np.nan)
    got = path(q, k, v, mask=mask, bias=dirty)
    assert all(same.all() for same in same_bits(path(q, k, v, mask=mask, bias=bias), got))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_query_that_sees_nothing_gets_exactly_zero_and_an_infinitely_small_lse(path, dtype):
    q, k, v = normal(1, 1, 2, 3, 5, dtype=dtype), *(normal(n, 1, 1, 7, 5, dtype=dtype) for n in (2, 3))
    output, lse = path(q, k, v, mask=np.array([True, False, True])[:, None])
    assert not bits(output[:, :, 1]).any()
    assert output[:, :, [0, 2]].all()
    assert (lse == -np.inf).tolist() == [[[False, True, False]] * 2]


def test_a_query_that_sees_nothing_has_its_sink_as_lse(path):
    q, k, v = normal(1, 1, 2, 3, 5), normal(2, 1, 1, 7, 5), normal(3, 1, 1, 7, 5)
    output, lse = path(q, k, v, mask=np.zeros(7, bool), sinks=np.array([0.25, -np.inf]))
    assert not bits(output).any()
    assert (lse == np.array([[0.25], [-np.inf]])).all()


def test_halves_of_the_keys_merge_into_the_whole(path):
    q, k, v = normal(1, 2, 6, 5, 3), normal(2, 2, 3, 7, 3), normal(3, 2, 3, 7, 3)
    mask = np.random.default_rng(4).random((2, 6, 5, 7)) < 0.5
    first, second = slice(0, 3), slice(3, 7)
    parts = [path(q, k[:, :, part], v[:, :, part], mask=mask[..., part]) for part in (first, second)]
    whole = path(q, k, v, mask=mask)
    for order in (parts, parts[::-1]):
        merged = merge_attended(*order[0], *order[1])
        for got, expected in zip(merged, whole, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_merging_with_a_part_that_saw_nothing_changes_no_bit(path, dtype):
    q, k, v = (normal(n, 1, 2, 5, 3, dtype=dtype) for n in (1, 2, 3))
    v[..., 0] = -0.0
    nothing = path(q, k, v, mask=np.zeros(5, bool))
    part = path(q, k, v, causal=True)
    negative_zero = np.full_like(part[0], -0.0), part[1]
    for some in (part, negative_zero, nothing):
        for merged in (merge_attended(*some, *nothing), merge_attended(*nothing, *some)):
            assert merged[0].dtype == dtype
            assert all(same.all() for same in same_bits(some, merged))
