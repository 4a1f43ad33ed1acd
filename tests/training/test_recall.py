import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from qkv.errors import ShapeError
from qkv.training.cross_entropy import IGNORED
from qkv.training.recall import (
    ASK,
    BOS,
    CURRICULUM,
    FIRST_KEY,
    FIRST_VALUE,
    NUM_KEYS,
    VOCAB_SIZE,
    RecallData,
    Stage,
    accuracy_by_position,
    ages_of,
    draw_questions,
    mixed,
    recent,
    words,
)


def draw(B=2000, T=23, num_pairs=range(2, 8), seed=0, **options):
    return mixed(np.random.default_rng(seed), B, T, num_pairs, **options)


def told(row):
    """A row's pairs and questions as dictionaries, and where the questions' keys stand."""
    at = (row == ASK).nonzero()[0]
    pairs = dict(row[1 : at[0]].reshape(-1, 2).tolist())
    return pairs, {int(row[n + 1]): int(row[n + 2]) for n in at}, at + 1


@dataclass
class LooksBack:
    """Answers with what followed the last id when it last stood in the row, if not too far back."""

    reach: int = 10**6

    def logits(self, ids):
        logits = np.zeros((*ids.shape, VOCAB_SIZE))
        for n, row in enumerate(ids):
            before = (row[:-1] == row[-1]).nonzero()[0]
            if len(row) - before[-1] <= self.reach:
                logits[n, -1, row[before[-1] + 1]] = 1
        return logits


def test_every_id_is_written_in_its_own_way():
    assert len(set(words())) == len(words()) == VOCAB_SIZE == 130
    assert [words()[n] for n in (BOS, ASK, FIRST_KEY, FIRST_VALUE, VOCAB_SIZE - 1)] == [
        "<s>",
        "?",
        "k0",
        "v0",
        "v63",
    ]


def test_half_of_the_rows_ask_for_pairs_and_half_repeat_a_block():
    ids, targets = draw()
    assert ids.shape == targets.shape == (2000, 23)
    assert (ids[:, 0] == BOS).all()
    assert ((ids == ASK).any(axis=1).tolist()) == [True, False] * 1000


def block_of(row):
    """The symbols before the first that returns."""
    returns = next(n for n in range(2, len(row)) if row[n] in row[1:n])
    return row[1:returns].tolist()


def test_a_repeat_asks_for_what_followed_the_same_symbol_before():
    ids, targets = draw()
    lengths = set()
    for row, wanted in zip(ids[1::2], targets[1::2], strict=True):
        block = block_of(row)
        lengths.add(len(block))
        assert row[0] == BOS and min(block) >= FIRST_KEY and set(row[1:]) == set(block)
        followed = dict(pairwise(block))
        asked = (wanted != IGNORED).nonzero()[0]
        assert [followed[symbol] for symbol in row[asked]] == wanted[asked].tolist()
        follows = [row[n + 1] == followed.get(row[n]) for n in range(22)]
        assert asked[asked < 22].tolist() == [n for n in range(len(block) + 1, 22) if follows[n]]
    assert lengths == set(range(4, 12))


def test_each_doubling_of_a_blocks_length_is_as_likely():
    blocks = np.array([len(block_of(row)) for row in draw(2000, T=67)[0][1::2]])  # 4 .. 33
    shares = [(blocks < limit).mean() for limit in (8, 16, 32)]
    np.testing.assert_allclose(shares, np.log([2, 4, 8]) / np.log(34 / 4), atol=0.05)


def test_the_longest_block_has_every_symbol_once():
    assert 64 < max(len(block_of(row)) for row in draw(64, 400)[0][1::2]) <= 2 * NUM_KEYS


def test_pieces_begin_anywhere_and_have_2_to_8_symbols():
    ids, targets = draw(400, 401, range(2, 3))
    begun, asked_at_once = set(), []
    for row, wanted in zip(ids[1::2], targets[1::2], strict=True):
        block = block_of(row)
        if len(block) < 30:
            continue
        starts = [n for n in range(len(block) + 1, 401) if wanted[n - 1] == IGNORED]
        begun |= {round(9 * block.index(row[n]) / (len(block) - 2)) for n in starts}
        asked_at_once += np.diff(starts).tolist()
    assert begun == set(range(10))
    counts = np.bincount(asked_at_once)
    assert counts[:2].tolist() == [0, 0] and (counts[2:9] > 0.08 * counts.sum()).all()
    assert counts[9:].sum() < 0.1 * counts.sum()  # a piece that goes on where the last one ended


def test_questions_ask_for_values_of_the_rows_own_pairs_and_never_twice():
    ids, targets = draw()
    counts = set()
    for row, wanted in zip(ids[::2], targets[::2], strict=True):
        pairs, questions, at = told(row)
        counts.add(len(pairs))
        assert all(FIRST_KEY <= key < FIRST_VALUE <= value for key, value in pairs.items())
        assert len(set(pairs.values())) == len(pairs)
        assert questions.items() <= pairs.items()
        assert len(questions) == len(at) == min(len(pairs), (22 - 2 * len(pairs)) // 3)
        assert wanted[at].tolist() == list(questions.values())
        assert (wanted != IGNORED).sum() == len(at)
        assert (row[at[-1] + 2 :] == BOS).all()
    assert counts == set(range(2, 8))


def test_an_answers_age_is_counted_from_where_the_row_last_told_it():
    x = IGNORED
    #                 4 5 again, one later: two back.   4 6: asked for after 4 5 too, five back.
    ids = np.array([[4, 5, 4, 5, 7, 4], [4, 6, 7, 4, 5, 4]])
    targets = np.array([[5, x, 5, x, x, 5], [x, x, x, x, x, 6]])
    assert ages_of(ids, targets).tolist() == [
        [np.inf, np.inf, 2, np.inf, np.inf, 3],
        [np.inf] * 5 + [5],
    ]


def test_ages_are_those_of_a_loop_and_every_answer_has_one():
    ids, targets = draw(60)
    for row, wanted, ages in zip(ids, targets, ages_of(ids, targets), strict=True):
        for t, target in enumerate(wanted):
            told = [n for n in range(t) if (row[n], row[n + 1]) == (row[t], target)]
            assert ages[t] == (t - told[-1] if told else np.inf)
            assert bool(told) == (target != IGNORED)


def test_uniform_demand_asks_for_every_answer_of_the_same_rows_and_recent_demand_for_the_young():
    ids, every = draw(1000, T=47, num_pairs=range(9, 17))
    same, some = draw(1000, T=47, num_pairs=range(9, 17), demand=recent)
    np.testing.assert_array_equal(ids, same)
    is_asked = some != IGNORED
    np.testing.assert_array_equal(every[is_asked], some[is_asked])
    ages = ages_of(ids, every)
    for kind in (0, 1):  # pairs, repeats
        shares = [is_asked[kind::2][ages[kind::2] == age].mean() for age in (15, 16, 18, 20, 24)]
        np.testing.assert_allclose(shares, [1, 1, 1 / 2, 1 / 4, 1 / 16], atol=0.1)


def test_the_rows_that_the_shipped_recall_model_was_trained_on_stay_as_they_are():
    data = RecallData(B=2, seed=0)
    shas = [hashlib.sha256(b"".join(part.tobytes() for part in data.batch(step))) for step in (0, 1500)]
    assert [sha.hexdigest()[:16] for sha in shas] == ["6f155c915a2642c6", "b1396344b1ecc48c"]


def test_the_same_generator_gives_the_same_rows():
    for one, other, third in zip(draw(7), draw(7), draw(7, seed=1), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one != third).any()


@pytest.mark.parametrize(("T", "num_pairs"), [(17, range(2, 8)), (400, range(2, NUM_KEYS + 2))])
def test_rows_that_cannot_hold_the_pairs_are_refused(T, num_pairs):
    draw(2, 18, range(2, 8))
    with pytest.raises(ShapeError, match=r"expected T of at least 4 \+ 2 \* pairs and at most 64 pairs"):
        draw(2, T, num_pairs)


def test_each_pair_is_asked_for_equally_often_in_an_examination():
    questions = draw_questions(np.random.default_rng(0), N=5, rows_each=3)
    assert questions.ids.shape == (15, 13)
    assert np.bincount(questions.asked).tolist() == [3] * 5
    assert len({tuple(keys) for keys in questions.ids[:, 1:-2:2].tolist()}) == 15
    for row, asked, answer in zip(questions.ids, questions.asked, questions.answers, strict=True):
        assert (row[0], row[-2]) == (BOS, ASK)
        assert row[1:-2].reshape(-1, 2)[asked].tolist() == [row[-1], answer]
    with pytest.raises(ShapeError, match=r"expected 1 to 64 pairs.*not 65"):
        draw_questions(np.random.default_rng(0), N=65, rows_each=1)


def test_accuracy_is_counted_by_the_place_of_the_pair_that_is_asked_for():
    questions = draw_questions(np.random.default_rng(0), N=5, rows_each=7)
    assert accuracy_by_position(LooksBack(), questions).tolist() == [1] * 5
    # The last pair's key stands 4 ids before the row's end, the one before it 6.
    assert accuracy_by_position(LooksBack(reach=6), questions, B=4).tolist() == [0, 0, 0, 1, 1]
    wrong = questions.answers.copy()
    wrong[4] += 1  # the first question for the last pair
    spoilt = type(questions)(questions.ids, questions.asked, wrong)
    assert accuracy_by_position(LooksBack(), spoilt).tolist() == [1, 1, 1, 1, pytest.approx(6 / 7)]


STAGES = (Stage(0, 6), Stage(7, 14))


def test_few_keys_and_short_rows_come_first():
    data = RecallData(B=50, seed=3, stages=STAGES)
    for step, num_keys in ((0, 6), (6, 6), (7, 14), (99, 14)):
        ids, _ = data.batch(step)
        assert ids.shape == (50, num_keys + 10)
        in_use = {
            ASK,
            BOS,
            *range(FIRST_KEY, FIRST_KEY + num_keys),
            *range(FIRST_VALUE, FIRST_VALUE + num_keys),
        }
        assert set(np.unique(ids)) == in_use
    [(held_out, _)] = data.held_out()
    assert held_out.shape == (50, 24)


def test_the_shipped_curriculum_ends_with_every_key_and_32_pairs():
    assert (CURRICULUM[-1].num_keys, max(CURRICULUM[-1].num_pairs)) == (NUM_KEYS, 32)


def test_data_gives_a_step_its_rows_in_any_order_and_holds_others_out():
    data = RecallData(B=4, seed=3, stages=STAGES)
    fifth = data.batch(5)
    data.batch(6)
    np.testing.assert_array_equal(data.batch(5), fifth)
    [held_out] = data.held_out()
    other_seed = RecallData(B=4, seed=4, stages=STAGES)
    assert all((rows[0] != fifth[0]).any() for rows in (data.batch(6), other_seed.batch(5)))
    assert all((data.batch(step)[0] != held_out[0]).any() for step in range(7, 17))  # of the last stage
    np.testing.assert_array_equal(next(data.held_out()), held_out)


def test_data_that_differs_in_anything_has_another_fingerprint():
    changes = [{}, {"B": 5}, {"seed": 4}, {"stages": STAGES[:1]}, {"demand": recent}]
    start = {"B": 4, "seed": 3, "stages": STAGES}
    assert len({RecallData(**{**start, **change}).fingerprint for change in changes}) == len(changes)
