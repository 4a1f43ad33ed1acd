"""How long a text may be: what is said to fit does, and one token more does not."""

import pickle

import numpy as np
import pytest

import tiny_models
from qkv import Engine, load, new_cache
from qkv.cache import CacheShape, PagedCache, PagePool
from qkv.engine.fitting import learn_windows, longest_text
from qkv.errors import CacheFull
from toy_model import ToyModel

SHAPE = CacheShape(num_layers=2, num_kv_heads=3, head_dim=14)
POLICIES = (
    *("", "int8", "int4", "int8-kivi,page=5", "window=7,sinks=3,page=4", "window=9"),
    *("snapkv=12,page=4", "int4,snapkv=12,page=8", "streaming=9,page=4", "h2o=13"),
)


def empty(policy, budget, shape=SHAPE):
    return PagedCache(shape, policy, pool=PagePool(budget))


def held(policy, prompt, total):
    """The bytes of each length on the way, one by one."""
    cache = empty(policy, None)
    return [cache.predict_nbytes(length, prompt) for length in range(prompt, total)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [1, 5, 23])
def test_every_length_on_the_way_fits_and_one_more_would_not(policy, prompt):
    """The slow twin goes through all lengths."""
    budgets = sorted({size + more for size in held(policy, prompt, 70) for more in (-1, 0)})
    for budget in budgets:
        longest = longest_text(empty(policy, budget), prompt, most=70)
        steps = held(policy, prompt, 70)
        over = next((step for step, size in enumerate(steps) if size > budget), len(steps))
        if over:
            assert longest == min(70, prompt + over), (policy, prompt, budget)
        else:
            assert longest <= prompt


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
