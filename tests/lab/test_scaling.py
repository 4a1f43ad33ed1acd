"""(a) against loops and finite differences, and with the scale taken away."""

import numpy as np
import pytest

from lab_results import as_result
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.lookup import Lesson, Pupil, draw_table, draw_texts, loss_and_gradients, steps_to_learn
from qkv.lab.scaling import SCALING, Scaling, dead_share, derivative_norm, measure

SETTINGS = Scaling(D=64, sizes=(16, 64, 256), rows=61, seeds=2, most_steps=100)
H, F = Verdict.HOLDS, Verdict.FAILS


@pytest.fixture(scope="module")
def measured():
    return measure(SETTINGS, Instruments())


def ruling_of(measured):
    return Row.of(SCALING, as_result(SCALING, SETTINGS, measured)).ruling


def test_variance_and_saturation_hold_and_vanishing_gradients_do_in_part(measured):
    ruling = ruling_of(measured)
    assert [one.verdict for one in ruling.parts] == [H, H, H, H, H, F, H, F]
    assert ruling.verdict is Verdict.HOLDS_ONLY_IF
    assert "d_k ≥ 256" in ruling.condition("en", measured.numbers)


def test_scores_have_the_variance_that_loops_find(measured):
    draw = Instruments().generator("scaling", 64, 128)
    raw = []
    for _ in range(SETTINGS.rows):
        keys, query = draw.standard_normal((128, 64)), draw.standard_normal(64)
        raw += [sum(float(a) * float(b) for a, b in zip(query, key, strict=True)) for key in keys]
    mean = sum(raw) / len(raw)
    variance = sum((one - mean) ** 2 for one in raw) / len(raw)
    assert measured.numbers["raw_variance"] == pytest.approx(variance)
    assert measured.numbers["scaled_variance"] == pytest.approx(variance / 64)


def test_without_the_scale_what_it_repairs_stays_broken():
    broken = measure(SETTINGS, Instruments(), scale=lambda D: 1.0)
    ruling = ruling_of(broken)
    assert ruling.parts[1].verdict is F  # variance 1
    assert ruling.parts[6].verdict is F  # the lesson takes as long with as without
    assert ruling.verdict is Verdict.NOT_TESTABLE  # the control is saturated too


def test_the_norm_of_softmaxs_derivative_is_that_of_the_matrix():
    p = np.random.default_rng(0).dirichlet(np.ones(5), size=3)
    by_hand = [np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in p]
    assert derivative_norm(p) == pytest.approx(np.array(by_hand))
    assert derivative_norm(np.array([[0.5, 0.5]]))[0] == pytest.approx(0.5)  # four entries of 1/4


def test_a_weight_of_one_leaves_every_gradient_dead():
    assert dead_share(np.array([[1.0, 0.0, 0.0]]), np.array([[1.0, 2.0, 3.0]])) == 1.0
    assert dead_share(np.array([[0.5, 0.5]]), np.array([[1.0, 2.0]])) == 0.0


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_lessons_gradients_are_those_of_finite_differences(scale):
    lesson = Lesson(V=11, S=5, E=7, D=3, B=2)
    random = np.random.default_rng(3)
    keys, values = draw_table(lesson, random), draw_table(lesson, random)
    texts = draw_texts(lesson, keys, values, random)
    pupil = Pupil.begin(lesson, random, 0.4, scale)
    _, *gradients = loss_and_gradients(pupil, texts, values)
    step = np.float32(1e-2)
    for weight, gradient in zip((pupil.w_q, pupil.w_k), gradients, strict=True):
        for place in [(0, 0), (2, 6), (1, 3)]:
            kept = weight[place]
            losses = []
            for side in (step, -step):
                weight[place] = kept + side
                losses.append(loss_and_gradients(pupil, texts, values)[0])
            weight[place] = kept
            assert gradient[place] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=0.03, abs=2e-4)


def test_a_text_is_pairs_of_different_keys_and_its_answer_is_the_value_of_the_key_asked_for():
    lesson = Lesson(V=13, S=7, E=5, B=3)
    random = np.random.default_rng(4)
    keys, values = draw_table(lesson, random), draw_table(lesson, random)
    texts = draw_texts(lesson, keys, values, random)
    assert texts.keys.shape == texts.values.shape == (3, 7, 5)
    for row in range(3):
        assert len(np.unique(texts.keys[row], axis=0)) == 7
        assert (texts.values[row, texts.asked[row]] == values[texts.answers[row]]).all()


def test_a_lesson_that_is_never_learned_takes_all_its_steps():
    lesson = Lesson(V=11, S=5, E=7, D=3, B=2, learning_rate=0.0)
    random = np.random.default_rng(0)
    assert steps_to_learn(lesson, random, std=0.1, scale=1.0, below=0.0, most=7) == 7
    assert steps_to_learn(lesson, random, std=0.1, scale=1.0, below=99.0, most=7) == 1


def test_the_same_seed_gives_the_same_numbers(measured):
    assert measure(SETTINGS, Instruments()).numbers == measured.numbers
