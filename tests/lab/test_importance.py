"""(e) against plain loops, and with importance that is the attention itself, or nothing."""

from functools import cache

import numpy as np
import pytest

from lab_results import as_result
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.importance import (
    IMPORTANCE,
    Importance,
    attention_scores,
    dealt_anew,
    measure,
    occlusion,
    rollout,
    total_variation,
)
from qkv.lab.own_texts import log_softmax
from qkv.lab.random_models import random_llama
from qkv.models.watching import watch

TINY = Importance(texts=3, T=23, replacements=2)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
BEYOND_RECENCY, GIVEN_DISTANCE, ROLLED_OUT, SHUFFLED = range(4)


@cache
def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=TINY.T)


def tried(seed=0, **broken):
    measured = measure(TINY, Instruments(seed, text_model=small), **broken)
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


def test_occlusion_is_the_divergence_a_loop_finds():
    text, others = np.random.default_rng(1).integers(0, 97, (2, 11))
    measured = occlusion(small(), text, others, 3, np.random.default_rng(7))
    draw = np.random.default_rng(7)
    p = np.exp(log_softmax(small().logits(text)[-1]))
    for at in range(1, 10):
        total = 0.0
        for other in draw.choice(others[others != text[at]], 3):
            changed = [*text[:at], other, *text[at + 1 :]]
            total += sum(p * (np.log(p) - log_softmax(small().logits(changed)[-1])))
        assert measured[at - 1] == pytest.approx(total / 3, rel=1e-3, abs=1e-6)
    assert len(measured) == 9


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


def test_rollout_is_the_product_of_layers_that_half_pass_by():
    weights = np.tril(np.random.default_rng(3).random((3, 5, 5)))
    weights /= weights.sum(axis=-1, keepdims=True)
    first, second, third = (0.5 * (one + np.eye(5)) for one in weights)
    np.testing.assert_allclose(rollout(weights), third @ second @ first)


def test_scores_belong_to_the_tokens_between_the_first_and_the_last():
    weights = np.random.default_rng(4).random((2, 3, 7, 7))
    found = attention_scores(weights, np.random.default_rng(0))
    last = [np.mean([weights[1, head, 6, s] for head in range(3)]) for s in range(1, 6)]
    mean = [
        np.mean([weights[layer, head, 6, s] for layer in range(2) for head in range(3)]) for s in range(1, 6)
    ]
    np.testing.assert_allclose(found["last"], last)
    np.testing.assert_allclose(found["mean"], mean)
    assert found["recency"].tolist() == [1, 2, 3, 4, 5] and len(found["random"]) == 5


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
