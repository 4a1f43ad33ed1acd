"""What makes a token more or less likely by itself: by hand, and never in the row that was given."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logit_rows import kept, rows
from qkv.errors import OptionError
from qkv.ops.penalties import (
    add_bias,
    completing_ids,
    penalise_presence_and_frequency,
    penalise_repetition,
    rule_out,
)

LOGITS = np.array([2.0, -1.0, 0.5, 0.0])

# Repetition


def test_a_seen_token_becomes_less_likely_whatever_its_sign_and_once():
    got = penalise_repetition(np.array([2, -1, 0.5]), [0, 1, 1], 1.5)
    np.testing.assert_allclose(got, [4 / 3, -1.5, 0.5])
    assert penalise_repetition(np.array([0.0, 4.0]), [0, 1], 2.0).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("penalty", [0.5, 1.5])
@given(logits=rows, seen=st.lists(st.integers(0, 12)))
def test_a_penalty_beyond_one_only_lowers_and_one_below_only_raises(
    penalty: float, logits: np.ndarray, seen: list[int]
):
    seen = [token_id for token_id in seen if token_id < len(logits)]
    before = logits.copy()
    change = penalise_repetition(logits, seen, penalty) - logits
    assert (change * (1 if penalty > 1 else -1) <= 0).all()
    assert not change[[token_id for token_id in range(len(logits)) if token_id not in seen]].any()
    np.testing.assert_array_equal(logits, before)


@given(logits=rows, seen=st.lists(st.integers(0, 12)))
def test_a_penalty_of_one_changes_no_bit(logits: np.ndarray, seen: list[int]):
    seen = [token_id for token_id in seen if token_id < len(logits)]
    assert penalise_repetition(logits, seen, 1.0).tobytes() == logits.tobytes()


# Presence and frequency


def test_presence_counts_once_and_frequency_each_time():
    """Token 1 came three times: -1 - .5 - 3 x .25."""
    new_ids = [1, 3, 1, 1]
    assert penalise_presence_and_frequency(LOGITS, new_ids, 0.5, 0.25).tolist() == [2, -2.25, 0.5, -0.75]
    assert penalise_presence_and_frequency(LOGITS, new_ids, 0.5, 0.0).tolist() == [2, -1.5, 0.5, -0.5]
    assert penalise_presence_and_frequency(LOGITS, new_ids, 0.0, -0.25).tolist() == [2, -0.25, 0.5, 0.25]


def test_what_was_not_generated_is_not_penalised():
    assert penalise_presence_and_frequency(LOGITS, [], 2.0, 2.0).tolist() == LOGITS.tolist()


# Bias


def test_a_bias_is_added_to_its_token_alone():
    assert add_bias(LOGITS, {3: 1.5, 0: -4.0}).tolist() == [-2, -1, 0.5, 1.5]


def test_no_bias_lifts_a_token_that_the_model_rules_out():
    assert add_bias(np.array([0.0, -np.inf]), {1: 1e9}).tolist() == [0, -np.inf]


# What is ruled out


def test_what_is_ruled_out_is_gone_and_the_others_stay():
    assert rule_out(LOGITS, {3, 0}).tolist() == [-np.inf, -1, 0.5, -np.inf]


def test_an_id_beyond_the_vocabulary_has_no_logit_to_lose():
    assert rule_out(LOGITS, [4, 3, 1009]).tolist() == [2, -1, 0.5, -np.inf]


def test_the_last_token_cannot_be_ruled_out():
    assert kept(rule_out(LOGITS, [0, 1, 2])) == {3}
    with pytest.raises(OptionError, match="no token is left to choose; rule out fewer"):
        rule_out(LOGITS, [0, 1, 2, 3])
    with pytest.raises(OptionError, match="no token is left"):
        rule_out(np.array([0.0, -np.inf]), [0])


# Bad words

WORDS = [[3], [5, 7], [5, 5, 8], [1, 5, 9]]


@pytest.mark.parametrize(
    ("ids", "completing"),
    [
        ([], {3}),
        ([5], {3, 7}),
        ([5, 5], {3, 7, 8}),
        ([1, 5], {3, 7, 9}),
        ([5, 1], {3}),
        ([1, 5, 5], {3, 7, 8}),
        ([1, 5, 2], {3}),
        ([7], {3}),
    ],
    ids=str,
)
def test_the_last_token_of_a_word_is_out_where_the_others_stand_before_it(
    ids: list[int], completing: set[int]
):
    assert completing_ids(WORDS, ids) == completing


few = st.integers(0, 3)


@given(words=st.lists(st.lists(few, min_size=1, max_size=4), max_size=5), choices=st.lists(few, max_size=30))
def test_a_text_without_completing_tokens_holds_no_bad_word(words: list[list[int]], choices: list[int]):
    """And every token that is left out would have completed one."""
    text: list[int] = []
    for token_id in choices:
        ends_in_one = any([*text, token_id][-len(word) :] == word for word in words)
        assert (token_id in completing_ids(words, text)) == ends_in_one
        if not ends_in_one:
            text.append(token_id)


# All of them


@pytest.mark.parametrize(
    "change",
    [
        lambda row: penalise_repetition(row, [0], 1.5),
        lambda row: penalise_presence_and_frequency(row, [0], 1.0, 1.0),
        lambda row: add_bias(row, {0: 1.0}),
        lambda row: rule_out(row, [0]),
    ],
)
def test_the_row_that_was_given_stays_as_it_is(change: Callable[[np.ndarray], np.ndarray]):
    row = LOGITS.copy()
    row.flags.writeable = False
    assert change(row)[0] != row[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: penalise_repetition(row, [0, 1], 1.0),
        lambda row: penalise_presence_and_frequency(row, [0, 1], 0.0, 0.0),
        lambda row: add_bias(row, {}),
        lambda row: rule_out(row, []),
    ],
)
def test_what_asks_for_nothing_changes_no_bit(change: Callable[[np.ndarray], np.ndarray]):
    assert change(LOGITS).tobytes() == LOGITS.tobytes()
