"""(e) with importance that is the attention itself, or the gradient, or nothing, and rows to look up in."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, Measured, NotTestable, Verdict, Words
from qkv.lab.attribution import attention_scores, gradient_scores, learnable
from qkv.lab.board import Row
from qkv.lab.importance import (
    IMPORTANCE,
    Importance,
    comparisons,
    dealt_anew,
    measure,
    text_numbers,
    total_variation,
)
from qkv.lab.random_models import random_llama
from qkv.models.watching import watch

TINY = Importance(texts=3, T=23, replacements=2, N=5, rows_each=1)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
BEYOND_RECENCY, GIVEN_DISTANCE, ROLLED_OUT, GRADIENT, SHUFFLED, POINTING = range(6)


@cache
def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=TINY.T)


def tried(seed=0, text_model=small, recall_model: Any = LookupModel, **broken):
    tools = Instruments(seed, text_model=text_model, recall_model=recall_model)
    measured = measure(TINY, tools, **broken)
    return measured, Row.of(IMPORTANCE, as_result(IMPORTANCE, TINY, measured)).ruling


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def attended(way):
    """Importance that is what one way of reading attention says."""

    def importance(model, text, others, replacements, random):
        return attention_scores(watch(model, text).weights, np.random.default_rng(0))[way]

    return importance


@pytest.fixture(scope="module")
def found():
    return tried()


def test_a_model_whose_attention_is_importance_refutes_the_claim():
    ruling = tried(importance_of=attended("last"))[1]
    assert verdicts(ruling)[:2] == [F, F]


def test_importance_that_goes_through_all_layers_is_found_by_rollout():
    measured, ruling = tried(importance_of=attended("rollout"))
    assert measured.value("rollout_tau") == pytest.approx(1) and verdicts(ruling)[ROLLED_OUT] is F


def test_importance_that_is_only_nearness_bears_the_claim_out():
    measured, ruling = tried(importance_of=attended("recency"))
    assert measured.value("recency_tau") == pytest.approx(1)
    assert verdicts(ruling)[:3] == [H, H, H]


def test_tokens_that_change_nothing_decide_nothing():
    ruling = tried(importance_of=lambda model, text, *rest: np.zeros(len(text) - 2))[1]
    assert ruling.verdict is OPEN


def test_importance_that_is_the_gradient_is_told_by_gradients():
    def gradients(model, text, *rest):
        way_back = learnable(model)
        return (
            np.ones(len(text) - 2) if way_back is None else gradient_scores(way_back, text, said(model, text))
        )

    def said(model, text):
        return int(model.next_logits(text).argmax())

    measured, ruling = tried(importance_of=gradients)
    assert measured.value("gradient_tau") == pytest.approx(1) and measured.value("gradient_first") == 1
    assert verdicts(ruling)[GRADIENT] is H


def test_of_a_text_model_without_a_way_back_all_else_is_told():
    biased = replace(small(), config=replace(small().config, qkv_bias=True))
    measured, ruling = tried(text_model=lambda: biased)
    assert verdicts(ruling)[GRADIENT] is OPEN and "gradient" not in measured.series
    assert OPEN not in verdicts(ruling)[:GRADIENT]


def test_where_a_pair_is_asked_for_attention_that_looks_it_up_refutes_the_claim(found):
    measured, ruling = found
    assert measured.value("recall_last") == 1 and verdicts(ruling)[POINTING] is F
    for language, words in (("en", "nothing is looked up"), ("zh", "不是查找任务")):
        assert words in ruling.condition(language, measured.numbers)


def test_attention_that_rests_on_the_first_token_bears_it_out(found):
    def rests(model, text):
        watched = watch(model, text)
        weights = np.zeros_like(watched.weights)
        weights[..., 0] = 1
        return replace(watched, weights=weights)

    measured, ruling = tried(watch=rests)
    assert measured.value("recall_last") == 1 / TINY.N and verdicts(ruling)[POINTING] is H
    assert "nothing is looked up" not in ruling.condition("en", measured.numbers)


def test_without_a_model_that_looks_up_only_that_part_is_open():
    def missing():
        raise NotTestable(Words("missing", "缺"))

    ruling = tried(recall_model=missing)[1]
    assert verdicts(ruling)[POINTING] is OPEN and OPEN not in verdicts(ruling)[:POINTING]


def test_gradients_are_held_against_the_best_reading_of_attention():
    given = {"last": [0.1, 0.9, 0.2], "mean": [0.3, 0.3, 0.4], "rollout": [0.0, 0.0, 0.9]}
    found = {f"{name}_given_distance": values for name, values in given.items()}
    taus = {f"{name}_tau": [0.0, 0.5, 0.25] for name in ("last", "recency", "random", "gradient")}
    found |= taus | {"gradient_given_distance": [0.5, 0.4, 0.8], "last_first": [1, 0, 1]}
    measured = Measured(text_numbers(found))
    # The mean has the highest median, .3: gradients are .2, .1 and .4 beyond it.
    assert measured.value("gradient_beyond_attention") == pytest.approx(0.2)
    assert measured.value("last_first") == pytest.approx(2 / 3)
    assert measured.value("random_size") == 0.25


def test_the_first_place_is_that_of_the_highest_score():
    nearness, true = np.arange(3.0), np.array([0.0, 2.0, 1.0])
    ways = {"last": np.array([0.2, 0.9, 0.1]), "mean": np.array([0.1, 0.2, 0.9]), "recency": nearness}
    found = comparisons(ways, true)
    assert [found[f"{name}_first"] for name in ways] == [1, 0, 0]
    assert found["most_kl"] == 2 and found["last_tau"] == pytest.approx(1 / 3)


class Unshuffled:
    """Random numbers whose every order is the one there was."""

    def permutation(self, count):
        return np.arange(count)


def test_weights_dealt_back_to_their_own_tokens_change_nothing():
    text = np.arange(17)
    moved = dealt_anew(small(), text, Unshuffled())  # pyright: ignore[reportArgumentType]
    assert moved["shuffled_tvd"] == pytest.approx(0, abs=1e-6) and moved["even_tvd"] > 1e-3


def test_total_variation_by_hand():
    assert total_variation(np.array([0.5, 0.5, 0]), np.array([0.25, 0.25, 0.5])) == 0.5


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
    assert tried(seed=1)[0].numbers != found[0].numbers
