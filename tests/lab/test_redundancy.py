"""(n) with a model that looks up exactly, a tokenizer of two letters, and trims that cut wrongly."""

from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, NotTestable, Number, Verdict, Words
from qkv.lab.board import Row
from qkv.lab.own_texts import log_softmax, write_texts
from qkv.lab.planned import planned_nbytes
from qkv.lab.redundancy import (
    REDUNDANCY,
    Redundancy,
    answers,
    divergence,
    measure,
    near_numbers,
    pair_numbers,
)
from qkv.lab.repeats import (
    also_changed,
    any_of_them,
    asking,
    first_of_each,
    last_with_key,
    pairs_of,
    said_again,
)
from qkv.lab.told import told
from qkv.training.recall import FIRST_VALUE, NUM_KEYS, draw_questions

SETTINGS = Redundancy(texts=2, T=25, passage=13, N=5, rows_each=7, times=(2, 3))
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
RULE, BYTES, SCORES, ANSWERS, TEXT, NEAR = range(6)


class TwoLetters:
    """A token is two letters; the last may be one."""

    def decode(self, ids):
        return "ab" * len(ids)

    def encode(self, text):
        return [7] * -(-len(text) // 2)


class Lookup(LookupModel):
    """One that is more or less sure of what it finds, and with a tokenizer or without."""

    def __init__(self, sureness: float, tokenizer: Any = None) -> None:
        super().__init__()
        self.sureness, self.tokenizer = sureness, tokenizer

    def unembed(self, x):
        return self.sureness * x


def sure():
    """Return a model that answers with what stood behind the key."""
    return Lookup(20)


def writer(tokenizer: Any = TwoLetters):
    """Return one that writes anything, now and then what followed before."""
    return Lookup(3, tokenizer())


def missing():
    raise NotTestable(Words("missing", "缺"))


def tried(recall_model: Any = sure, text_model: Any = writer, seed=0, **broken):
    instruments = Instruments(seed, text_model=text_model, recall_model=recall_model)
    measured = measure(SETTINGS, instruments, **broken)
    return measured, Row.of(REDUNDANCY, as_result(REDUNDANCY, SETTINGS, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_exact_repeats_can_go_and_nothing_else_can(found):
    assert verdicts(found[1])[BYTES : ANSWERS + 1] == [H, H, H]
    assert verdicts(found[1])[RULE] is F and verdicts(found[1])[NEAR] is F
    assert found[1].verdict is Verdict.HOLDS_ONLY_IF
    assert found[0].value("exact_accuracy") == found[0].value("accuracy") == 1.0
    assert found[0].value("random_agreement") < 1.0


def test_tokens_and_scores_by_hand(found):
    """A mark, 5 pairs, and a question: 13 tokens; with all said twice 23, three times 33."""
    assert found[0].series["tokens"] == [23, 33]
    assert found[0].series["tokens_saved"] == pytest.approx([10 / 23, 20 / 33])
    # 13 * 14 / 2 = 91 of 23 * 24 / 2 = 276 and of 33 * 34 / 2 = 561.
    assert found[0].series["cells_saved"] == pytest.approx([1 - 91 / 276, 1 - 91 / 561])
    assert found[0].value("cells_saved_twice") == pytest.approx(1 - 91 / 276)
    assert found[0].value("tokens_saved_most") == pytest.approx(20 / 33)


def test_prompts_are_told_to_the_token_and_to_the_byte(found):
    # 50 letters each; of the first text 25, which are 13 tokens, and the whole of the second.
    assert found[0].value("prompt_tokens") == 13 + 25
    # One page of 16 tokens and two, of a key and a value of 130 numbers, of 4 bytes.
    assert found[0].value("prompt_bytes") == 3 * 16 * 2 * 130 * 4
    assert found[0].value("tokens_off") == found[0].value("bytes_off") == 0
    off = [1 - 25 / 4 / 13, 1 - 50 / 4 / 25]
    assert found[0].value("rule_off") == pytest.approx(np.median(off))


def test_the_worst_of_a_trim_and_the_best_of_chance_count(found):
    columns = {name: [0.25, 0.75, 0.5] for name in found[0].series if name != "times"}
    numbers = pair_numbers(columns)
    worst = [numbers[name] for name in ("accuracy", "exact_accuracy", "exact_agreement")]
    best = [numbers[name] for name in ("random_accuracy", "random_agreement", "pair_kl")]
    assert (worst, best) == ([0.25] * 3, [0.75] * 3)
    assert (numbers["tokens_saved_twice"], numbers["cells_saved_most"]) == (0.25, 0.5)


def test_a_plan_that_is_off_by_a_byte_is_found_out():
    def one_more(shape, num_tokens):
        return planned_nbytes(shape, num_tokens) + 1

    assert verdicts(tried(planned=one_more)[1])[BYTES] is F


def test_four_letters_a_token_is_right_where_they_are_four():
    class FourLetters(TwoLetters):
        def encode(self, text):
            return [7] * -(-len(text) // 4)

    numbers = told(writer(FourLetters), np.zeros((2, 40), np.int64), planned_nbytes)
    assert (numbers["rule"], numbers["rule_off"]) == (Number(1.0, 1.0, 1.0), Number(0.0, 0.0, 0.0))


def test_without_a_tokenizer_nothing_is_told():
    measured, ruling = tried(text_model=lambda: Lookup(3))
    assert "rule_off" not in measured.numbers and verdicts(ruling)[:2] == [OPEN, OPEN]


def test_without_a_model_that_looks_things_up_those_parts_are_open():
    ruling = tried(missing)[1]
    assert [verdicts(ruling)[one] for one in (SCORES, ANSWERS, NEAR)] == [OPEN] * 3


def test_a_trim_that_cuts_what_is_needed_is_found_out():
    def blunt(pieces):
        return pieces[: len(np.unique(pieces, axis=0))]  # as many as there should be, repeats among them

    measured, ruling = tried(trim=blunt)
    assert verdicts(ruling)[ANSWERS] is F and measured.value("exact_accuracy") < 0.95


def test_a_trim_that_cuts_nothing_proves_nothing():
    measured, ruling = tried(trim=lambda pieces: pieces)
    assert verdicts(ruling)[SCORES] is F and measured.value("cells_saved_twice") == 0
    assert ruling.verdict is OPEN  # then the control takes nothing out either


def test_text_without_its_repeats_is_that_text_read_anew(found):
    """The loss of the first number of times, from logits without a cache."""
    model, draw = writer(), Instruments(0).generator("redundancy")
    texts = write_texts(model, 2, 25, draw)
    kls = []
    for text in texts:
        passage, rest = text[1:14], text[14:]
        long, short = ([text[0], *passage, *again, *rest] for again in (passage, []))
        p, q = (log_softmax(model.logits(np.array(one)))[-len(rest) :] for one in (long, short))
        kls.append(sum((np.exp(a) * (a - b)).sum() for a, b in zip(p, q, strict=True)) / len(rest))
    assert found[0].series["text_exact_kl"][0] == pytest.approx(np.median(kls), rel=1e-3)


def test_of_two_values_of_one_key_the_model_says_its_own():
    """Both weigh as much in the lookup, so the answer is the value of the lower id, whichever came first."""
    questions = draw_questions(np.random.default_rng(1), 5, 7)
    numbers = near_numbers(LookupModel(), questions, np.random.default_rng(3))
    first_is_lower = []
    for rows, key in zip(
        also_changed(questions, np.random.default_rng(3)), questions.ids[:, -1], strict=True
    ):
        first, last = (value for k, value in rows.tolist() if k == key)
        first_is_lower.append(first < last)
    share = float(np.mean(first_is_lower))
    assert numbers == pytest.approx(
        {"near_first": share, "near_last": 1 - share, "near_agreement": min(share, 1 - share)}
    )


def test_what_is_said_again_is_the_same_in_any_order():
    pairs = np.array([[5, 1], [3, 2], [7, 9]])
    again = said_again(pairs, 4, np.random.default_rng(0))
    assert len(again) == 12 and sorted(map(tuple, again.tolist())) == sorted([(5, 1), (3, 2), (7, 9)] * 4)
    assert again[:3].tolist() != pairs.tolist() or again[3:6].tolist() != pairs.tolist()
    assert sorted(map(tuple, first_of_each(again).tolist())) == [(3, 2), (5, 1), (7, 9)]


def test_any_of_them_keeps_their_order_and_each_as_often():
    numbers = np.arange(7)[:, None]
    kept = [any_of_them(numbers, 3, np.random.default_rng(seed)).ravel() for seed in range(700)]
    assert all(len(one) == 3 and (np.diff(one) > 0).all() for one in kept)
    assert np.bincount(np.concatenate(kept)).min() > 230  # 300 on average, deviation 13


def test_changed_pairs_have_the_same_keys_and_no_value_of_the_row():
    questions = draw_questions(np.random.default_rng(0), 11, 1)
    for pairs, both in zip(
        pairs_of(questions), also_changed(questions, np.random.default_rng(5)), strict=True
    ):
        told_once = set(map(tuple, pairs.tolist()))
        others = [pair for pair in map(tuple, both.tolist()) if pair not in told_once]
        assert sorted(key for key, _ in others) == sorted(pairs[:, 0])
        assert not {value for _, value in others} & set(pairs[:, 1].tolist())
        assert len(last_with_key(both)) == len(pairs)


def test_only_values_are_answers():
    questions = draw_questions(np.random.default_rng(0), 3, 2)
    found = answers(LookupModel(), asking(questions, list(pairs_of(questions))))
    assert found.shape == (6, NUM_KEYS)
    assert (found.argmax(axis=-1) + FIRST_VALUE == questions.answers).all()
    np.testing.assert_allclose(np.exp(found).sum(axis=-1), 1)


def test_divergence_by_hand():
    # Rows (1/2, 1/2) against (1/4, 3/4), and equal ones: ln(4/3) / 2 and 0.
    p, q = np.log([[0.5, 0.5], [0.5, 0.5]]), np.log([[0.25, 0.75], [0.5, 0.5]])
    assert divergence(p, q) == pytest.approx(np.log(4 / 3) / 4)


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
    assert tried(seed=1)[0].series["text_random_kl"] != found[0].series["text_random_kl"]
