"""Questions to a model that looks up exactly: what is found is what is there."""

import numpy as np
import pytest

from lookup_model import LookupModel
from qkv.lab import Instruments, NotTestable, Words
from qkv.lab.random_models import random_llama
from qkv.lab.recalling import able_recall_model, answers_right
from qkv.lab.windows import in_sight
from qkv.training.recall import VOCAB_SIZE, draw_questions

N = 13


@pytest.fixture(scope="module")
def questions():
    return draw_questions(np.random.default_rng(0), N, rows_each=2)


@pytest.mark.parametrize("sees_question", [False, True])
def test_with_everything_kept_every_pair_is_found(questions, sees_question):
    assert answers_right(LookupModel(), questions, sees_question=sees_question).all()


@pytest.mark.parametrize("W", [3, 8, 15])
def test_through_a_window_exactly_the_pairs_in_sight_are_found(questions, W):
    right = answers_right(LookupModel(), questions, f"window={W}")
    np.testing.assert_array_equal(right, in_sight(questions, W))
    # W tokens end with the mark and the key: W - 2 are pairs, and every second of these is a value.
    assert right.mean() == (W - 2 + 1) // 2 / N


def test_a_drop_before_the_question_and_one_behind_it_are_two_things(questions):
    blind, aware = (
        answers_right(LookupModel(), questions, "tova=4", sees_question=sees) for sees in (False, True)
    )
    assert blind.mean() <= 4 / N and aware.mean() == 1


def no_model():
    raise NotTestable(Words("missing", "缺"))


def test_a_model_that_is_missing_or_finds_nothing_is_none(questions):
    able, missing = Instruments(recall_model=LookupModel), Instruments(recall_model=no_model)
    assert isinstance(able_recall_model(able, questions), LookupModel)
    assert able_recall_model(missing, questions) is None
    untrained = random_llama(np.random.default_rng(0), E=24, L=1, H=2, G=1, context_length=64, V=VOCAB_SIZE)
    assert able_recall_model(Instruments(recall_model=lambda: untrained), questions) is None
