"""How long a text may be: what is said to fit does, and one token more does not."""

import functools
import pickle

import numpy as np
import pytest

import tiny_models
from qkv import Engine, load, new_cache
from qkv.cache import CacheShape, PagedCache, PagePool
from qkv.engine.fitting import learn_windows, longest_text, most_nbytes
from qkv.errors import CacheFull
from toy_model import ToyModel

SHAPE = CacheShape(num_layers=2, num_kv_heads=3, head_dim=14)
POLICIES = (
    *("", "int8", "int4", "int8-kivi,page=5", "window=7,sinks=3,page=4", "window=9"),
    *("snapkv=12,page=4", "int4,snapkv=12,page=8", "streaming=9,page=4", "h2o=13"),
    *("int8,streaming=13,page=4", "pyramidkv=16,page=4", "int4,window=10,page=4"),
)


def empty(policy, budget, shape=SHAPE):
    return PagedCache(shape, policy, pool=PagePool(budget))


def step(cache, num_tokens):
    rng = np.random.default_rng(num_tokens)
    x = rng.normal(size=(1, SHAPE.num_kv_heads, num_tokens, SHAPE.head_dim)).astype(np.float32)
    for layer in range(SHAPE.num_layers):
        cache.append(layer, x, x)
        cache.attend(layer, x)


@functools.cache
def heights(policy, prompt, total):
    """The slow twin: bytes at the height of the step to each length, from the steps themselves.

    A prompt under an eviction comes in one; all else comes token by token.
    """
    cache = empty(policy, None)
    at = {}
    while cache.length < total:
        new = prompt if cache.policy.eviction and not at else 1
        height = cache.nbytes + cache.step_nbytes(new)
        cache.pool.peak_nbytes = 0
        step(cache, new)
        assert cache.pool.peak_nbytes <= height
        at[cache.length] = height
    return at


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [1, 5, 23])
def test_every_length_on_the_way_fits_and_one_more_would_not(policy, prompt):
    at = heights(policy, prompt, 69)
    for budget in sorted({size + more for size in at.values() for more in (-1, 0)}):
        longest = longest_text(empty(policy, budget), prompt, most=70)
        over = next((length for length, size in at.items() if size > budget), 70)
        if over > prompt:
            assert longest == over, (policy, prompt, budget)
        else:
            assert longest <= prompt


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [1, 5, 23])
def test_the_most_on_the_way_is_the_height_of_the_steps(policy, prompt):
    at = heights(policy, prompt, 69)
    for length in range(prompt, 70):
        most = max(size for step_to, size in at.items() if step_to <= length)
        assert most_nbytes(empty(policy, None), length, prompt) == most, (policy, prompt, length)


@pytest.mark.parametrize("policy", ["streaming=13", "h2o=13", "snapkv=13", "pyramidkv=16", "tova=14"])
@pytest.mark.parametrize("prompt", [1, 11, 38])
def test_an_eviction_goes_through_in_a_pool_of_the_size_that_was_said_and_in_none_smaller(
    policy, prompt, tmp_path
):
    """Each of three layers holds the whole prompt until it evicts, when those before it have done so."""
    model = load(tiny_models.write_model(tmp_path, "qwen2"))
    policy = f"{policy},page=4"
    most = most_nbytes(new_cache(model, policy), 51, prompt)
    for budget in (most, most - 1):
        engine = Engine(model, pool_bytes=budget, policy=policy)
        stream = engine.submit([1] * prompt, max_tokens=52 - prompt, ignore_eos=True)
        assert (stream.error is None) == (budget == most)
        engine.run()
        assert stream.finish_reason == ("length" if budget == most else "error")
        if isinstance(stream.error, CacheFull) and (longest := stream.error.longest_tokens or 0) > prompt:
            shorter = engine.submit([1] * prompt, max_tokens=longest - prompt, ignore_eos=True)
            engine.run()
            assert shorter.finish_reason == "length"
            assert engine.submit([1] * prompt, max_tokens=longest + 1 - prompt).error is not None


def test_a_prompt_that_is_said_to_fit_does(tmp_path):
    """A pool for two layers that have come down to 12 tokens, and a third of 60: one token more is a page."""
    model = load(tiny_models.write_model(tmp_path, "qwen2"))
    page = new_cache(model, "snapkv=12,page=4").layout.nbytes * model.cache_shape.num_kv_heads
    engine = Engine(model, pool_bytes=(3 + 3 + 15) * page, policy="snapkv=12,page=4")
    too_long = engine.submit([1] * 80, max_tokens=1).error
    assert isinstance(too_long, CacheFull) and too_long.longest_tokens == 61
    stream = engine.submit([1] * 60, max_tokens=1, ignore_eos=True)
    engine.run()
    assert stream.finish_reason == "length" and engine.pool.peak_nbytes == 21 * page
    assert engine.submit([1] * 61, max_tokens=1).error is not None


def test_a_text_that_fits_is_not_asked_about_page_by_page():
    # 2 layers x 3 heads x pages of 16 tokens of 2 x 14 float32: two of each hold 32 tokens.
    page = 6 * 16 * 2 * 14 * 4
    assert longest_text(empty("", 2 * page), 20, most=33) == 33
    assert longest_text(empty("", 2 * page), 20, most=1000) == 33
    assert (
        longest_text(empty("", 2 * page - 1), 20, most=33) == 17
    )  # the longest prompt, and a token behind it
    assert longest_text(empty("", page - 1), 20, most=33) == 0
    assert longest_text(empty("", None), 20, most=33) == 33


def test_a_models_own_window_counts_once_it_is_known(tmp_path):
    model = load(tiny_models.write_model(tmp_path, "mistral", sliding_window=8))
    cache = new_cache(model, "page=4", pool=PagePool(3 * 3 * 2 * 4 * 2 * 14 * 4))  # 3 pages of each key head
    assert longest_text(cache, 5, most=80) == 13
    learn_windows(model, cache)
    assert longest_text(cache, 5, most=80) == 80
    assert cache.nbytes == cache.pool.nbytes == 0
    model.next_logits(np.arange(5), cache)
    for token in range(74):
        model.next_logits([token], cache)


def test_an_engine_says_how_long_a_text_may_be():
    """Two pages of 16 tokens, and the last token, which is chosen but not run."""
    page = new_cache(ToyModel()).predict_nbytes(16)
    engine = Engine(ToyModel(), pool_bytes=2 * page)
    error = engine.submit([1] * 20, max_tokens=14).error
    assert isinstance(error, CacheFull) and error.longest_tokens == 33
    assert str(error).endswith("; the longest text that fits has 33 tokens, new ones included")
    assert engine.submit([1] * 20, max_tokens=13).finish_reason is None
    too_long = engine.submit([1] * 40, max_tokens=1).error
    assert isinstance(too_long, CacheFull) and too_long.longest_tokens == 33


def test_the_error_survives_another_process():
    error = CacheFull(7, 100, 250, 300, 1000, 16)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.longest_tokens) == (str(error), 16)
