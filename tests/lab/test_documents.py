"""Documents against plain loops, and an exact model asked in chunks."""

import math

import numpy as np
import pytest

from lookup_model import LookupModel
from qkv.errors import ShapeError
from qkv.lab.documents import Answers, ask, draw_documents, questions, surest
from qkv.training.recall import ASK, BOS, FIRST_KEY, FIRST_VALUE

N, ROWS, TELLINGS = 6, 13, 3


@pytest.fixture(scope="module")
def documents():
    return draw_documents(np.random.default_rng(3), N, ROWS, TELLINGS)


def test_every_value_names_another_key_and_all_lie_on_one_circle(documents):
    for facts in documents.facts:
        value_of = {int(key): int(value) for key, value in facts}
        assert len(value_of) == len(set(value_of.values())) == N
        seen, key = set(), next(iter(value_of))
        while key not in seen:
            seen.add(key)
            key = value_of[key]
        assert seen == set(value_of)


def test_each_telling_has_all_facts_in_an_order_of_its_own(documents):
    tellings = documents.facts.reshape(ROWS, TELLINGS, N, 2)
    for first, *others in tellings.tolist():
        assert all(sorted(other) == sorted(first) for other in others)
    assert not (tellings[:, 0] == tellings[:, 1]).all()


def test_answers_are_the_value_and_the_value_of_the_key_it_names(documents):
    for row, facts in enumerate(documents.facts):
        value_of = {int(key): int(value) for key, value in facts}
        assert value_of[int(documents.asked[row])] == documents.answers[row]
        assert value_of[int(documents.answers[row])] == documents.second_answers[row]


def test_places_are_asked_in_turn():
    documents = draw_documents(np.random.default_rng(0), 5, 10)
    places = [
        facts[:, 0].tolist().index(key) for facts, key in zip(documents.facts, documents.asked, strict=True)
    ]
    assert places == [0, 1, 2, 3, 4] * 2


def test_chunks_are_the_facts_in_their_order(documents):
    chunks = documents.chunks(9)
    assert chunks.shape == (ROWS, 2, 9, 2)
    np.testing.assert_array_equal(chunks[4, 1], documents.facts[4, 9:])
    with pytest.raises(ShapeError, match="divide a document of 18 facts, not of 5"):
        documents.chunks(5)


def test_a_question_stands_behind_its_chunk(documents):
    chunk = documents.chunks(2)[7, 4]
    ids = questions(chunk[None], np.array([chunk[1, 0]]))[0].tolist()
    told = [x for key, value in chunk.tolist() for x in (FIRST_KEY + key, FIRST_VALUE + value)]
    assert ids == [BOS, *told, ASK, told[2]]


def test_the_surest_chunk_counts():
    answers = Answers(np.array([[3, 5], [7, 11]]), np.array([[0.25, 0.75], [0.5, 0.125]]))
    assert answers.reduce(surest).tolist() == [5, 7]
    assert answers.reduce(lambda sure: sure.argmin(axis=1)).tolist() == [3, 11]


def test_the_chunk_that_holds_the_fact_says_it_and_is_the_surest():
    documents = draw_documents(np.random.default_rng(1), N, ROWS)
    chunks = documents.chunks(2)
    said = ask(LookupModel(), chunks, documents.asked)
    holds = (chunks[..., 0] == documents.asked[:, None, None]).any(axis=-1)  # B chunks
    np.testing.assert_array_equal(said.values[holds], documents.answers)
    np.testing.assert_array_equal(surest(said.sure), holds.argmax(axis=1))
    assert ((said.sure > 0) & (said.sure < 1)).all()


def test_a_chunk_is_as_sure_as_its_answer_is_probable_among_all_symbols():
    documents = draw_documents(np.random.default_rng(5), N, 1)
    said = ask(LookupModel(), documents.chunks(3), documents.asked)
    for at, chunk in enumerate(documents.chunks(3)[0]):
        logits = LookupModel().logits(questions(chunk[None], documents.asked))[0, -1]
        p = np.exp(logits.astype(float)) / sum(math.exp(x) for x in logits.tolist())
        assert said.sure[0, at] == pytest.approx(p[FIRST_VALUE + said.values[0, at]])


def test_each_chunk_may_be_asked_for_a_key_of_its_own():
    chunks = draw_documents(np.random.default_rng(2), N, ROWS).chunks(3)
    said = ask(LookupModel(), chunks, chunks[:, :, 1, 0])
    np.testing.assert_array_equal(said.values, chunks[:, :, 1, 1])
