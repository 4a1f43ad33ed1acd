"""(f) with models that look up exactly or forget, and with attention that lies where it is put."""

from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, Measured, NotTestable, Verdict, Words
from qkv.lab.board import Row
from qkv.lab.positions import (
    POSITIONS,
    Positions,
    gains,
    late_attention,
    mass_by_place,
    measure,
    parts_of,
    share_by_place,
)
from qkv.lab.random_models import random_llama
from qkv.models.watching import watch

SETTINGS = Positions(N=16, rows_each=1, beyond=24, beyond_rows_each=1, texts=2, T=53)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
EVEN, RECENT, BEYOND, AT_END, AT_START = range(5)


class Recent(LookupModel):
    """Sees the last 10 tokens: the question and four pairs."""

    def next_logits(self, ids, cache=None, mask=None):
        told = cache is not None and ids.shape[1] > 2
        return super().next_logits(ids[:, -8:] if told else ids, cache, mask)


def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=SETTINGS.T)


def tried(recall_model: Any = LookupModel, recent: Any = Recent, seed: int = 0, **broken: Any):
    tools = Instruments(seed, text_model=small, recall_model=recall_model, recent_recall_model=recent)
    measured = measure(SETTINGS, tools, **broken)
    return measured, Row.of(POSITIONS, as_result(POSITIONS, SETTINGS, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_a_model_that_looks_up_anywhere_is_flat_and_one_that_forgets_keeps_the_end(found):
    measured, ruling = found
    assert measured.series["even"] == measured.series["beyond"] == [1.0] * 8
    assert measured.series["recent_beyond"] == [0.0] * 6 + [1 / 3, 1.0]  # 4 of 24, three to an eighth
    assert measured.series["recent"] == [0.0] * 6 + [1.0] * 2  # 4 of 16 pairs, the last quarter
    assert verdicts(ruling) == [F, H, F, F, F] and ruling.verdict is Verdict.FAILS
    assert measured.value("untrained_right") < 0.1


def test_longer_rows_are_asked_of_either_model():
    def up_to_16(model, questions):
        return (questions.asked < 16) & (
            len(questions.ids) == 24 if isinstance(model, LookupModel) else False
        )

    measured, _ = tried(ask=up_to_16)
    assert measured.series["beyond"] == measured.series["recent_beyond"] == [1.0] * 5 + [1 / 3, 0.0, 0.0]
    assert measured.value("even_right") == 0.0


def test_a_model_that_finds_only_the_outside_has_the_shape_of_a_u():
    def outside(model, questions):
        N = questions.asked.max() + 1
        middle = (questions.asked * 8 // N >= 3) & (questions.asked * 8 // N < 5)
        return ~middle if isinstance(model, LookupModel) else np.zeros(len(middle), bool)

    assert verdicts(tried(ask=outside)[1])[: BEYOND + 1] == [H] * 3


@pytest.mark.parametrize(
    ("place", "expected"),
    [(lambda t: t, [H, F]), (lambda t: 0, [F, H]), (lambda t: t // 2, [F, F])],
)
def test_attention_is_seen_where_it_lies(place, expected):
    trained = small().fingerprint

    def put(model, text):
        def change(layer, weights):
            weights[:] = 0
            for t in range(weights.shape[-1]):
                weights[..., t, place(t)] = 1
            return weights

        watched = watch(model, text)
        if model.fingerprint == trained:
            change(0, watched.weights)
        return watched

    measured, ruling = tried(watch=put)
    assert verdicts(ruling)[AT_END:] == expected
    # Untrained attention is left as it is: even.
    assert 0.8 < measured.value("blank_end_times") < 1.2 and 0.8 < measured.value("blank_first_times") < 1.2


def test_attention_that_gathers_untrained_decides_nothing():
    def at_end(model, text):
        watched = watch(model, text)
        watched.weights[:] = np.eye(len(text))
        return watched

    assert tried(watch=at_end)[1].verdict is OPEN


def test_answers_that_give_themselves_away_or_are_never_found_decide_nothing():
    assert tried(ask=lambda model, questions: np.ones(len(questions.ids), bool))[1].verdict is OPEN
    assert tried(ask=lambda model, questions: np.zeros(len(questions.ids), bool))[1].verdict is OPEN


def test_shares_by_place_are_those_of_a_loop():
    draw = np.random.default_rng(0)
    places, right = draw.permutation(np.tile(np.arange(24), 5)), draw.random(120) < 0.5
    expected = [
        np.mean([one for at, one in zip(places, right, strict=True) if at // 3 == e]) for e in range(8)
    ]
    np.testing.assert_allclose(share_by_place(places, right, 8), expected)


def test_the_middle_is_lost_only_if_both_ends_are_found_more_often():
    shares = np.array([0.75, 0.0, 0.0, 0.25, 0.5, 0.0, 0.0, 0.5])
    parts = parts_of(shares)
    assert parts == {"start": 0.75, "middle": 0.375, "end": 0.5, "right": 0.25}
    names = ("even", "recent", "beyond", "recent_beyond")
    numbers = Measured({f"{name}_{part}": one for name in names for part, one in parts.items()})
    assert [gains(numbers)[f"recent_{of}"] for of in ("start_gain", "end_gain", "depth")] == [
        0.375,
        0.125,
        0.125,
    ]


@pytest.mark.parametrize("T", [1, 7, 10, 53])
def test_even_attention_comes_out_even(T):
    np.testing.assert_allclose(mass_by_place(np.full(T, 1 / T), 10), np.full(10, 0.1))


def test_no_attention_is_lost_between_the_parts():
    weights = np.random.default_rng(0).random(37)
    assert mass_by_place(weights, 10).sum() == pytest.approx(weights.sum())
    # 37 keys: the first tenth is the first three and seven tenths of the fourth.
    assert mass_by_place(weights, 10)[0] == pytest.approx(weights[:3].sum() + 0.7 * weights[3])


def test_late_attention_of_a_head_that_rests_on_the_first_token():
    T = 13
    weights = np.tile(np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None], (2, 3, 1, 1))
    weights[1, 2] = np.eye(T)[0]
    mass, first, most = late_attention(weights)
    # The last quarter of 13 queries: those that see 11, 12 and 13 keys. One head of six rests.
    assert most == 1.0
    assert first == pytest.approx((5 * 1 + 12) / 6)
    # The first key lies wholly within the first tenth.
    assert mass[0] == pytest.approx((5 * 0.1 + 1) / 6)


def test_without_one_of_the_models_it_cannot_be_tried():
    def missing():
        raise NotTestable(Words("missing", "缺"))

    with pytest.raises(NotTestable):
        tried(recall_model=missing)
    with pytest.raises(NotTestable):
        tried(recent=missing)


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0] == found[0]
    assert tried(seed=1)[0].value("text_end_mass") != found[0].value("text_end_mass")
