"""Log-probabilities of the raw logits: by hand, in order, and always numbers that JSON has words for."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from logit_rows import FLOATS, rows
from qkv.errors import NumericError, ShapeError
from qkv.ops.logprobs import LEAST_LOGPROB, log_softmax, text_logprobs, token_logprobs
from qkv.ops.sampling import Sampling, sample

LOGITS = np.array([2.0, 1.0, 0.0])
RAW = [-0.407606, -1.407606, -2.407606]
"""``log(1 + e^-1 + e^-2)`` is .407606."""


def rounded(top: tuple[tuple[int, float], ...]) -> list[tuple[int, float]]:
    return [(token_id, round(logprob, 6)) for token_id, logprob in top]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_they_are_the_logits_less_the_log_of_their_sum(dtype: Any):
    assert log_softmax(LOGITS.astype(dtype)).round(6).tolist() == RAW


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5),
        Sampling(temperature=0.0),
        Sampling(temperature=1.0, top_k=1),
        Sampling(temperature=1.0, logit_bias={2: 9.0}, bad_words=[[0]]),
    ],
    ids=str,
)
def test_they_do_not_depend_on_how_the_token_was_chosen(sampling: Sampling):
    token_id = sample(LOGITS, sampling, np.random.default_rng(0))
    found = token_logprobs(LOGITS, token_id, num_top=3)
    assert round(found.logprob, 6) == RAW[token_id]
    assert rounded(found.top) == list(enumerate(RAW))


def test_no_alternatives_still_leave_the_token_itself():
    found = token_logprobs(LOGITS, 1, num_top=0)
    assert (found.token_id, round(found.logprob, 6), found.top) == (1, RAW[1], ())


def test_the_likeliest_come_first_and_of_equals_the_lower_id():
    logits = np.array([0.0, 3.0, 1.0, 3.0, 1.0])
    assert [token_id for token_id, _ in token_logprobs(logits, 0, 3).top] == [1, 3, 2]
    assert [token_id for token_id, _ in token_logprobs(logits, 0, 99).top] == [1, 3, 2, 4, 0]


def test_what_has_no_probability_is_written_as_the_least_there_is():
    logits = np.array([-np.inf, 0.0, -3e4, -2e4], np.float32)
    found = token_logprobs(logits, 0, num_top=4)
    assert found.logprob == LEAST_LOGPROB == -9999
    assert found.top == ((1, 0.0), (3, LEAST_LOGPROB), (2, LEAST_LOGPROB), (0, LEAST_LOGPROB))
    text = json.dumps(asdict(found), allow_nan=False)
    assert json.loads(text)["top"][3] == [0, -9999]


@given(logits=rows)
def test_their_probabilities_sum_to_one(logits: np.ndarray):
    found = token_logprobs(logits, 0, num_top=len(logits))
    assert math.fsum(math.exp(logprob) for _, logprob in found.top) == pytest.approx(1, abs=1e-12)
    assert dict(found.top)[0] == found.logprob <= 0


def test_large_logits_of_half_precision_do_not_overflow():
    logits = np.array([6e4, 6e4, -6e4], np.float16)
    assert log_softmax(logits)[:2] == pytest.approx([math.log(0.5)] * 2)


def test_each_token_of_a_text_has_the_row_before_it():
    logits = np.log([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [0.5, 0.5, 1e-9]])
    found = text_logprobs(logits, [1, 2, 0], num_top=1)
    assert [one.token_id for one in found] == [1, 2, 0]
    assert [round(math.exp(one.logprob), 6) for one in found] == [0.25, 0.75, 0.5]
    assert [[token_id for token_id, _ in one.top] for one in found] == [[0], [2], [0]]


def test_a_text_may_be_empty():
    assert text_logprobs(np.zeros((0, 3)), []) == ()


def test_a_row_has_the_same_bits_in_every_text():
    logits = np.random.default_rng(0).normal(size=(7, 1009)).astype(np.float32)
    ids = [3, 1, 4, 1, 5, 9, 2]
    whole = text_logprobs(logits, ids, num_top=2)
    assert whole == tuple(token_logprobs(row.copy(), one, 2) for row, one in zip(logits, ids, strict=True))
    assert whole == tuple(
        token_logprobs(row, one, 2) for row, one in zip(logits.T.copy().T, ids, strict=True)
    )


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match=r"for T = 2 tokens, got \(1, 3\)"):
        text_logprobs(np.zeros((1, 3)), [0, 1])
    for token_id in (3, -1):
        with pytest.raises(ShapeError, match=f"from 0 to 2, not {token_id}"):
            token_logprobs(LOGITS, token_id)


@pytest.mark.parametrize("wrong", [[0, np.nan], [0, np.inf], [-np.inf, -np.inf]])
def test_logits_that_are_no_numbers_are_an_error(wrong: list[float]):
    with pytest.raises(NumericError, match="weights"):
        token_logprobs(np.array(wrong), 0)
