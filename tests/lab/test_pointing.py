"""Which token of a pair comes first, with models that look up exactly and attention that is put elsewhere."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lookup_model import LookupModel
from qkv.lab import Instruments
from qkv.lab.attribution import occlusion
from qkv.lab.pointing import best_head, first_place, pointing_numbers, shares, value_place
from qkv.lab.random_models import random_llama
from qkv.models.watching import watch
from qkv.training.recall import VOCAB_SIZE, draw_questions

N = 5


def pointing(recall_model: Any = LookupModel, importance_of=occlusion, watch=watch, seed=0):
    return pointing_numbers(Instruments(seed, recall_model=recall_model), N, 2, 2, importance_of, watch)


def put_on(place):
    """Attention that lies on one token of every row."""

    def put(model, text):
        watched = watch(model, text)
        weights = np.zeros_like(watched.weights)
        weights[..., place(len(text))] = 1
        return replace(watched, weights=weights)

    return put


def test_a_model_that_looks_up_attends_to_the_value_and_misses_it_most():
    found = pointing()
    assert found["recall_N"] == N and found["recall_rows"] == 2 * N and found["recall_right"] == 1
    for way in ("last", "mean", "rollout", "head"):
        assert found[f"recall_{way}"] == found[f"recall_{way}_value"] == 1
    assert found["recall_occlusion"] == 1
    assert "recall_gradient" not in found  # it has no way back


def test_the_nearest_token_is_right_as_often_as_its_pair_is_asked_for():
    assert pointing()["recall_recency"] == pointing()["recall_recency_value"] == 1 / N


@pytest.mark.parametrize(
    ("place", "expected"),
    [(lambda T: 3, (1 / N, 0)), (lambda T: T - 3, (1 / N, 1 / N)), (lambda T: 2, (1 / N, 1 / N))],
    ids=["a key", "the last value", "the first value"],
)
def test_attention_that_always_lies_on_one_token_is_right_by_chance(place, expected):
    found = pointing(watch=put_on(place))
    assert (found["recall_last"], found["recall_last_value"]) == expected
    assert found["recall_head"] == expected[0]


def test_what_is_said_of_the_mark_of_the_question_does_not_count():
    found = pointing(importance_of=lambda model, row, *rest: np.arange(len(row) - 2))
    assert found["recall_occlusion_value"] == 1 / N


def test_the_best_head_attends_to_values_of_rows_of_its_own():
    questions = draw_questions(np.random.default_rng(0), N, 1)

    def three_heads(model, row):
        watched = watch(model, row)
        at = value_place(questions.asked[(questions.ids == row).all(axis=1).argmax()])
        weights = np.full((2, 3, len(row), len(row)), 0.01)
        weights[1, 2, -1, at], weights[0, 1, -1, at], weights[1, 0, -1, at - 1] = 0.4, 0.9, 0.9
        return replace(watched, weights=weights)

    assert best_head(LookupModel(), questions, three_heads) == 2


def test_a_model_that_cannot_answer_says_nothing():
    untrained = random_llama(np.random.default_rng(0), E=24, L=1, H=2, G=1, context_length=64, V=VOCAB_SIZE)
    assert pointing(lambda: untrained) == {}


def test_shares_count_the_pair_asked_for_and_its_value():
    questions = draw_questions(np.random.default_rng(0), N, 2)
    values = np.argmax(questions.ids == questions.answers[:, None], axis=1)
    places = values.copy()
    places[:3] -= 1  # three keys
    places[3] += 1  # of the next pair, or the mark
    assert shares("way", places, questions) == {"way": 0.9, "way_value": 0.6}
    assert first_place(np.array([0.0, 0.5, 0.0, 0.2, 9.0])) == 2


def test_the_same_seed_gives_the_same_numbers():
    assert pointing() == pointing()
    assert len({pointing(seed=seed)["recall_random"] for seed in range(4)}) > 1
