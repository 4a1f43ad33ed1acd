"""What a cache gives back, over every pair of parts that can stand in one policy."""

import tracemalloc
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from cache_cases import (
    AS_MANY,
    BACKENDS,
    GROUPED,
    LATENT,
    ONE_KEY_HEAD,
    ONE_OF_A_KIND,
    STEPS,
    Pages,
    Texts,
    each_policy,
    each_without_eviction,
    positions,
    rotary_of,
)
from qkv import use_backend
from qkv.cache import PagedCache, PagePool, Policy
from qkv.cache.elements import ELEMENTS
from qkv.cache.evicting import decoded_rows
from slow_cache import Sizes, SlowCache


def tolerance(policy: Policy, sizes: Sizes) -> float:
    if policy.element in ("int8", "int8-kivi", "int4") and sizes == ONE_KEY_HEAD:
        return 2e-4  # kernels multiply its codes by queries and weights of 16 bits, which the twin does not
    # Keys that are turned again are rounded again, which a last bit before may tip to the other side.
    return {"fp16": 2e-3, "bf16": 2e-2}.get(policy.element, 1e-5) if policy.rerotate else 1e-5


# What queries see


def check_against_slow_twin(policy: str, sizes: Sizes, steps: Any = STEPS, **rules: Any) -> None:
    """Run the same steps through caches of each backend and through the slow twin."""
    texts, asked = Texts(sizes), Policy.parse(policy)
    caches, close = [texts.cache(policy) for _ in BACKENDS], tolerance(asked, sizes)
    twins = [SlowCache(sizes, asked, rotary_of(sizes)) for _ in range(texts.B)]
    ends = list(accumulate(steps, lambda ends, counts: tuple(map(sum, zip(ends, counts, strict=True)))))
    for counts, end in zip(steps, ends, strict=True):
        outputs = []
        for backend, cache in zip(BACKENDS, caches, strict=True):
            with use_backend(backend):
                outputs.append(texts.step(cache, counts, **rules))
                cache.check_integrity()
        for row, layer in np.ndindex(texts.B, sizes.L):
            if not counts[row]:
                continue
            tokens, twin = slice(end[row] - counts[row], end[row]), twins[row]
            q, k, v = (x[layer, row, :, tokens] for x in (texts.q, texts.k, texts.v))
            twin.append(layer, k, v)
            expected = twin.attend(layer, q, **rules)
            for output in outputs:
                np.testing.assert_allclose(output[layer, row, :, : counts[row]], expected, close, close)
            kept = [positions(cache, row, layer) for cache in caches]
            twin.finish(layer, kept[0])
            assert kept == [kept[0]] * len(kept)
    assert all(cache.lengths == ends[-1] for cache in caches)


@each_policy
def test_attending_is_the_formula_on_what_the_policy_keeps(policy: str, sizes: Sizes):
    check_against_slow_twin(policy, sizes)


MIXED = ["", "int8", "int4,page=4", "int8-kivi,window=5,sinks=2,page=3", "int8,window=6,sinks=2,page=3"]
MIXED += ["window=4,heads=10,page=3", "streaming=7,page=2", "h2o=7,page=3", "tova=7,page=3"]
MIXED += ["int4,snapkv=7,page=4", "streaming=7,rerotate,page=2", "expected=7,page=4"]


@pytest.mark.parametrize("policy", MIXED)
def test_the_models_own_window_holds_beside_the_policys(policy: str):
    check_against_slow_twin(policy, GROUPED, window=4)


@pytest.mark.parametrize("policy", MIXED)
@pytest.mark.parametrize(
    "rules", [{"scale": -0.3}, {"softcap": 0.7}, {"sinks": np.array([0.5, -1, 2, 0])}], ids=str
)
def test_attend_takes_the_further_rules_of_attention(policy: str, rules: dict):
    check_against_slow_twin(policy, GROUPED, STEPS[:4], **rules)


def test_queries_of_float64_keep_their_precision():
    texts = Texts(AS_MANY)
    outputs = []
    for dtype in (np.float32, np.float64):
        cache = texts.cache("window=6,page=3")
        texts.append(cache, 0, (0, 0), (9, 9))
        outputs.append(cache.attend(0, texts.q[0, :, :, :9].astype(dtype)))
    assert [output.dtype for output in outputs] == [np.float32, np.float64]
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-6)


# What is held


@each_without_eviction
def test_what_is_held_is_what_was_appended_within_the_elements_error(policy: str, sizes: Sizes):
    texts, element = Texts(sizes), ELEMENTS[Policy.parse(policy).element]
    cache = texts.cache(policy)
    for _ in range(6):
        texts.step(cache, (1, 1))
    for row, layer in np.ndindex(texts.B, sizes.L):
        k, v = decoded_rows(cache.sequences[row], layer)
        for g, there in enumerate(slots_there(cache, row, layer, 6)):
            keys, values = texts.k[layer, row, g, :6], texts.v[layer, row, g, :6]
            stored_k = stored(keys, element.keys, element.closes_pages, cache.layout.P)
            stored_v = stored(values, element.values, element.closes_pages, cache.layout.P)
            if sizes.shares_values:
                values, stored_v = (x[:, : sizes.D_v] for x in (keys, stored_k))
            np.testing.assert_array_equal(k[g, there], stored_k[there])
            np.testing.assert_array_equal(v[g, there], stored_v[there])
            assert (np.abs(stored_k - keys) <= largest_error(element.name, keys, keys)).all()
            beside = keys if sizes.shares_values else values
            assert (np.abs(stored_v - values) <= largest_error(element.name, beside, values)).all()


def stored(rows: np.ndarray, codec: Any, closes_pages: bool, P: int) -> np.ndarray:
    """What rows are once they are stored: each by itself, or whole pages together and the rest as it came."""
    if not closes_pages:
        return codec.decode(codec.encode(rows))
    pages = [rows[start : start + P] for start in range(0, len(rows), P)]
    return np.concatenate([codec.decode(codec.encode(page)) if len(page) == P else page for page in pages])


def slots_there(cache: PagedCache, row: int, layer: int, count: int) -> list[list[int]]:
    """Which of the first slots of each head have not fallen behind a window."""
    one, P = cache.sequences[row], cache.layout.P
    there = [{*np.flatnonzero(pages).tolist()} for pages in one.pages.present[layer]]
    under_way = {count // P} if one.closes_pages else set()
    return [[slot for slot in range(count) if slot // P in pages | under_way] for pages in there]


def largest_error(element: str, rows: np.ndarray, x: np.ndarray) -> Any:
    """What `qkv.cache.elements` says of the errors of numbers ``x`` that are stored with these rows."""
    size, largest, spread = np.abs(x), np.abs(rows).max(), np.ptp(rows)
    errors = {
        "float32": 0.0,
        "fp16": size * 2.0**-11,
        "bf16": size * 2.0**-8,
        "fp8-e4m3": np.maximum(size, 2.0**-6) * 2.0**-4,
        "fp8-e5m2": np.maximum(size, 2.0**-14) * 2.0**-3,
        "int8": 0.5001 * largest / 127,
        "int8-kivi": max(0.5001 * largest / 127, 0.5 * spread / 255 + (largest + spread) * 2.0**-11),
        "int4": 0.5 * spread / 15 + (largest + spread) * 2.0**-11,
    }
    return errors[element]


@each_policy
def test_no_bit_depends_on_what_pages_held_before(policy: str, sizes: Sizes):
    texts = Texts(sizes)
    for backend in BACKENDS if (policy, sizes) in ONE_OF_A_KIND else BACKENDS[-1:]:
        with use_backend(backend):
            runs = []
            for byte in (255, 0):
                cache = texts.cache(policy, PagePool(new_page=Pages(byte)))
                outputs = [texts.step(cache, counts) for counts in STEPS]
                runs.append(
                    ([output.tobytes() for output in outputs], [d.positions.tolist() for d in cache.drops[0]])
                )
            assert runs[0] == runs[1]


# Bytes


@each_policy
def test_bytes_are_those_of_the_pages_that_are_there_and_those_predicted(policy: str, sizes: Sizes):
    texts, pages = Texts(sizes), Pages()
    cache = texts.cache(policy, PagePool(new_page=pages))
    assert cache.nbytes == cache.predict_nbytes(0) == 0
    for count in (13, *[1] * 9):
        texts.step(cache, (count, count))
        assert cache.nbytes == cache.pool.nbytes == pages.nbytes == cache.predict_nbytes(cache.length, 13)
        eviction, most = cache.policy.eviction, max(int(one.held.max()) for one in cache.sequences)
        if eviction is not None and cache.keeping.budgets is not None:
            beyond = cache.layout.P - 1 if eviction.acts_every_step else cache.length - 13
            assert most <= max(cache.keeping.budgets) + beyond
    cache.free()
    assert (cache.nbytes, cache.pool.nbytes, pages.nbytes, cache.lengths) == (0, 0, 0, (0, 0))


@pytest.mark.parametrize("prompt", [1, 2, 7, 40])
@pytest.mark.parametrize(
    "policy", ["int8,page=4", "int4,window=9,page=3", "h2o=7,page=3", "pyramidkv=7,page=4"]
)
def test_bytes_are_predicted_for_prompts_of_any_length(policy: str, prompt: int):
    texts = Texts(LATENT if "int4" in policy else AS_MANY)
    cache = texts.cache(policy)
    for count in (prompt, *[1] * 19):
        texts.step(cache, (count, count))
        assert cache.nbytes == cache.predict_nbytes(cache.length, prompt)


def test_bytes_are_predicted_with_the_models_own_windows_once_they_are_known():
    texts = Texts(GROUPED)
    for policy in ("page=3", "int4,page=4", "window=7,sinks=2,heads=10,page=3"):
        cache = texts.cache(policy)
        for count in (20, *[1] * 9):
            texts.step(cache, (count, count), window=5)
            assert cache.nbytes == cache.predict_nbytes(cache.length)


@pytest.mark.parametrize("policy", ["", "int4", "window=64,sinks=4", "int8,h2o=64", "pyramidkv=64"])
def test_bytes_are_those_that_the_system_gives(policy: str):
    """All else that lives on with a cache is small beside its pages, and goes with them."""
    sizes = Sizes(L=2, G=2, H=2, D=64, D_v=64)
    texts = Texts(sizes, B=1, S=513)
    warm = texts.cache(policy)
    for count in (300, 1):
        texts.step(warm, (count,))
    tracemalloc.start()
    try:
        cache = texts.cache(policy, PagePool())
        texts.step(cache, (512,))
        texts.step(cache, (1,))
        held = tracemalloc.get_traced_memory()[0]
        assert cache.nbytes <= held <= 1.1 * cache.nbytes + 60_000
        cache.free()
        assert tracemalloc.get_traced_memory()[0] <= held - cache.nbytes + 60_000
    finally:
        tracemalloc.stop()


# K10: groups without a spread, outliers, and what no number can hold


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_and_constants_come_back_from_every_element(element: str, backend: Any):
    """Every key is 0, so each query gets the mean of the values before it: 0 or 5."""
    for number in (0.0, 5.0):
        texts = Texts(GROUPED)
        texts.k[:], texts.v[:] = 0.0, number
        with use_backend(backend):
            outputs = texts.step(texts.cache(f"{element},page=4"), (9, 7))[:, 1, :, :7]
        np.testing.assert_allclose(outputs, number, atol=0.005)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_large_numbers_stay_finite_in_every_element(element: str, backend: Any):
    texts = Texts(GROUPED)
    texts.k[..., 0], texts.v[..., 3] = 500.0, 1e4
    with use_backend(backend):
        outputs = texts.step(texts.cache(f"{element},page=4"), (9, 9))
    held = {"fp8-e4m3": 448, "fp8-e5m2": 10240}.get(element, 1e4)
    np.testing.assert_allclose(outputs[..., 3], held, rtol=0.005)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_short_group_is_not_dragged_to_zero_by_its_padding(backend: Any):
    """48 values from 10 to 11 are a group of 32 and one of 16: steps of at most 1/15 and no larger error."""
    sizes = Sizes(L=1, G=1, H=1, D=48, D_v=48)
    texts = Texts(sizes, B=1)
    texts.v[:] = np.linspace(10, 11, 48)
    with use_backend(backend):
        cache = texts.cache("int4,page=4")
        texts.step(cache, (4,))
        outputs = texts.step(cache, (1,))
    assert np.abs(outputs - np.linspace(10, 11, 48)).max() <= 0.0334
