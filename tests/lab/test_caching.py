"""(d) with a clock that stands still until work is done, and with a cache that forgets."""

import numpy as np
import pytest

from clocks import Clock
from lab_results import as_result
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.caching import CACHING, Caching, all_anew, last_output, measure, through_a_cache
from qkv.models import CachedMultiHeadAttention, new_cache

SETTINGS = Caching(widths=(24, 40), lengths=(7, 100), pairs=2, layer_pairs=2)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE


def tried(anew_seconds, cached=through_a_cache):
    """Seconds without a cache as a function of n; with one, one a token."""
    clock = Clock()

    def with_cache(model, text):
        clock.now += len(text)
        return cached(model, text)

    def without(model, text):
        clock.now += anew_seconds(len(text))
        return all_anew(model, text)

    instruments = Instruments(stopwatch=clock.stopwatch(pairs=2))

    def reads():
        clock.now += 0.02  # what else there is takes a moment too, and is not repeated to fill one
        return clock.now

    instruments = Instruments(stopwatch=type(instruments.stopwatch)(2, clock=reads, rest=clock.rest))
    measured = measure(SETTINGS, instruments, cached=with_cache, plain=without)
    return measured, Row.of(CACHING, as_result(CACHING, SETTINGS, measured)).ruling


def test_what_grows_with_n_squared_is_saved_more_and_more():
    measured, ruling = tried(lambda n: n**2 / 10)
    assert measured.value("small_speedup") == pytest.approx(10, rel=1e-3)
    assert measured.value("large_growth") == pytest.approx(100 / 7, rel=1e-2)
    assert [one.verdict for one in ruling.parts[:2]] == [H, H]
    assert measured.value("apart") < 1e-5


def test_what_grows_as_the_cache_does_saves_the_same_at_any_length():
    measured, ruling = tried(lambda n: 3 * n)
    assert measured.value("small_speedup") == pytest.approx(3, rel=1e-3)
    assert [one.verdict for one in ruling.parts[:2]] == [F, F]


def test_the_articles_loop_computes_something_else():
    measured, ruling = tried(lambda n: 1)
    assert measured.value("article_apart") > 0.1
    assert ruling.parts[3].verdict is F


def test_a_cache_that_forgets_decides_nothing():
    def forgetful(model, text):
        return model.next_logits(text[-1:], new_cache(model))

    _, ruling = tried(lambda n: n**2, cached=forgetful)
    assert ruling.verdict is Verdict.NOT_TESTABLE


def test_the_last_output_alone_is_that_of_the_whole():
    layer = CachedMultiHeadAttention(24, 4, rng=np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((1, 13, 24))
    whole, _ = layer(x, use_cache=False)
    np.testing.assert_allclose(last_output(layer, x), whole[:, -1:])


def test_parameters_are_counted():
    measured, _ = tried(lambda n: 1)
    E = 24
    assert measured.value("small_parameters") == 4 * (4 * E * E + 3 * E * 3 * E) + 97 * E
