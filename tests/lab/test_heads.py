"""(c) with heads whose patterns are put in by hand, and with those heads mixed up between texts."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lab_results import as_result
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.heads import HEADS, Heads, ablation_costs, measure, without
from qkv.lab.own_texts import log_softmax, write_texts
from qkv.lab.patterns import even_attention, patterns
from qkv.lab.random_models import random_llama, untrained_like
from qkv.models.watching import watch

TINY = Heads(texts=3, T=31, ablated_texts=1)
DELIMITERS = tuple(range(0, 97, 5))
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
DIFFERENT, PREVIOUS, LOCAL, INDUCTION, DELIMITER, EACH, CLEAR = range(7)
PUT_IN = ("previous", "induction", "delimiter", "first")
"""What heads 0 to 3 of the first layer look at."""


@cache
def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=TINY.T)


def tried(seed=0, **broken):
    instruments = Instruments(seed, text_model=small)
    measured = measure(TINY, instruments, delimiters=lambda model: DELIMITERS, **broken)
    return measured, Row.of(HEADS, as_result(HEADS, TINY, measured)).ruling


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def as_pattern(ids, name):
    """Attention on one pattern alone, even among its keys; on all where it has none."""
    pattern = patterns(ids, DELIMITERS)[name].astype(float)
    rows = np.where(pattern.any(axis=-1, keepdims=True), pattern, even_attention(len(ids)))
    return rows / rows.sum(axis=-1, keepdims=True)


def put_in(shift=lambda ids: 0):
    """Watch the small model, and say of its first layer's heads that they follow one pattern each."""

    def see(model, ids, change=None):
        seen = watch(model, ids, change)
        if model is small():
            weights = seen.weights.copy()
            weights[0] = np.roll([as_pattern(ids, name) for name in PUT_IN], shift(ids), axis=0)
            seen = replace(seen, weights=weights)
        return seen

    return see


@pytest.fixture(scope="module")
def random_heads():
    return tried()


@pytest.fixture(scope="module")
def clear_heads():
    return tried(watch=put_in())


def test_random_heads_follow_no_pattern(random_heads):
    assert verdicts(random_heads[1])[DIFFERENT : DELIMITER + 1] == [F, F, F, F, F]


def test_patterns_that_are_there_are_found(clear_heads):
    measured, ruling = clear_heads
    assert [measured.value(name) for name in PUT_IN] == pytest.approx([1, 1, 1, 1])
    assert verdicts(ruling)[: DELIMITER + 1] == [H, H, H, H, H]
    assert measured.series["heads"][:5] == ["0.0", "0.1", "0.2", "0.3", "1.0"]
    assert np.array(measured.series["scores"])[0, 0] == pytest.approx(1)


def test_heads_that_change_places_from_text_to_text_have_no_pattern_of_their_own():
    order = {}

    def shuffled(ids):
        return order.setdefault(tuple(ids[:9]), len(order))

    assert verdicts(tried(watch=put_in(shuffled))[1])[PREVIOUS : DELIMITER + 1] == [F, F, F, F]


def test_copying_is_read_off_a_text_that_is_said_twice():
    def copies_what_is_said_twice(model, ids, change=None):
        half = len(ids) // 2
        twice = np.array_equal(ids[1 : half + 1], ids[half + 1 :])
        return (put_in() if twice else watch)(model, ids, change)

    measured, ruling = tried(watch=copies_what_is_said_twice)
    assert measured.value("induction") == pytest.approx(1) and measured.value("delimiter") < 0.5
    assert verdicts(ruling)[PREVIOUS : DELIMITER + 1] == [F, F, H, F]


def test_the_untrained_control_has_the_same_heads(random_heads):
    text = np.arange(7)
    other = untrained_like(small(), text, np.random.default_rng(5))
    assert watch(other, text).weights.shape == watch(small(), text).weights.shape
    assert other.hidden(text).shape == (7, 24)
    assert not np.allclose(other.logits(text), small().logits(text))


def test_taking_a_head_away_costs_what_a_loop_over_tokens_says():
    model = small()
    (text,) = write_texts(model, 1, 19, np.random.default_rng(0))
    full = log_softmax(watch(model, text).logits)
    bare = log_softmax(watch(model, text, without(1, 2)).logits)
    by_token = [sum(np.exp(p) * (p - q)) for p, q in zip(full[:-1], bare[:-1], strict=True)]
    assert ablation_costs(model, text[None], watch)[0, 1 * 4 + 2] == pytest.approx(np.mean(by_token))


def test_a_change_silences_its_own_head_alone():
    weights = np.ones((1, 4, 3, 3))
    assert without(1, 2)(0, weights.copy()).all()
    assert without(1, 2)(1, weights.copy()).any(axis=(0, 2, 3)).tolist() == [True, True, False, True]


def test_heads_that_change_nothing_decide_nothing():
    measured, ruling = tried(watch=lambda model, ids, change=None: watch(model, ids))
    assert measured.value("most_cost") == 0 and ruling.verdict is OPEN


def test_the_same_seed_gives_the_same_numbers(random_heads):
    assert tried()[0].numbers == random_heads[0].numbers
    assert tried(seed=1)[0].numbers != random_heads[0].numbers
