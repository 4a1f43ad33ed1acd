"""(m) with a model that looks up exactly, with one that forgets, and with the wrong chunk chosen."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, NotTestable, Verdict, Words
from qkv.lab.board import Row
from qkv.lab.chunking import CHUNKING, Chunking, found_alone, found_in_rounds, measure, score_cells
from qkv.lab.documents import draw_documents, surest

SETTINGS = Chunking(
    fits=8, N=16, tellings=2, size=8, sizes=(2, 4, 8, 16), long_sizes=(8, 16, 32), rows=16, long_rows=16
)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
LONG, FITS, SMALL, MEMORY, WORK, TWO = range(6)


class Forgetful(LookupModel):
    """Sees the last 19 tokens: eight facts and a question."""

    def next_logits(self, ids, cache=None, mask=None):
        return super().next_logits(ids if cache else ids[:, -19:], cache, mask)


def tried(model: Any = LookupModel, settings=SETTINGS, seed=0, **broken):
    measured = measure(settings, Instruments(seed, recall_model=model), **broken)
    return measured, Row.of(CHUNKING, as_result(CHUNKING, settings, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_a_model_that_finds_everything_gains_nothing_but_room(found):
    measured, ruling = found
    assert measured.series["longest_found"] == [1.0, 1.0, 1.0] and measured.series["long_found"] == [1.0] * 4
    assert verdicts(ruling) == [F, F, H, H, H, F]


def test_a_model_that_reads_only_so_far_finds_more_in_chunks():
    measured, ruling = tried(Forgetful)
    # Each document tells its 16 facts twice; the last 8 that are told hold half of them.
    assert 0.2 < measured.value("longest_whole") < 0.8 and measured.value("longest_chunks") == 1.0
    # Of 16 facts, all asked in turn, it sees the last 8.
    assert measured.value("long_whole") == 0.5
    assert measured.value("two_whole") < 0.5 and measured.value("two_rounds") == 1.0
    assert verdicts(ruling)[LONG] is H and verdicts(ruling)[FITS] is F
    assert ruling.verdict is Verdict.HOLDS_ONLY_IF


def test_a_document_that_fits_gains_in_chunks_where_the_model_loses_half_of_it():
    measured, ruling = tried(Forgetful, replace(SETTINGS, fits=16))
    assert measured.value("fits_gain") == 0.5 and verdicts(ruling)[FITS] is H


def test_what_is_lost_among_many_chunks_is_seen(found):
    def lost_among_many(sure):
        return surest(sure) if sure.shape[1] < 8 else np.zeros(len(sure), int)

    measured, ruling = tried(choose=lost_among_many)
    assert measured.value("long_smallest") == 1 / 8  # the first chunk of 2, of 16
    assert verdicts(ruling)[SMALL] is F and verdicts(found[1])[SMALL] is H


@pytest.mark.parametrize("choose", [lambda sure: sure.argmin(axis=1), lambda sure: np.zeros(len(sure), int)])
def test_a_choice_no_better_than_any_decides_nothing(choose):
    assert tried(choose=choose)[1].verdict is OPEN


def test_bytes_are_those_of_pages_that_were_taken(found):
    # 67 tokens of the whole take 5 pages of 16, and 19 of a chunk take 2; k and v, D = 130, float32.
    page = 16 * 2 * 130 * 4
    assert [found[0].value(f"{one}_bytes") for one in ("whole", "chunk")] == [5 * page, 2 * page]
    assert [found[0].value(f"{one}_T") for one in ("whole", "chunk")] == [67, 19]


@pytest.mark.parametrize("size", [3, 5, 15])
def test_scores_are_the_cells_of_each_chunks_triangle(size):
    cells = sum(np.tril(np.ones((T, T))).sum() for T in [3 + 2 * size] * (15 // size))
    assert score_cells(15, size) == cells


def test_chunks_as_long_as_the_document_save_nothing():
    settings = replace(SETTINGS, size=16, tellings=1, long_sizes=(16,))
    assert verdicts(tried(settings=settings)[1])[MEMORY : WORK + 1] == [F, F]


def test_a_chunk_by_itself_answers_only_what_it_holds():
    documents = draw_documents(np.random.default_rng(0), 16, 64)
    place = [{int(key): at for at, key in enumerate(facts[:, 0])} for facts in documents.facts]
    together = [
        at[int(asked)] // 4 == at[int(answer)] // 4
        for at, asked, answer in zip(place, documents.asked, documents.answers, strict=True)
    ]
    model = LookupModel()
    assert found_in_rounds(model, documents, 4, surest) == found_in_rounds(model, documents, 16, surest) == 1
    # Some guesses of the others come out right.
    assert np.mean(together) <= found_alone(model, documents, 4, surest) < np.mean(together) + 0.15
    assert found_alone(model, documents, 16, surest) == 1


def test_in_one_chunk_two_steps_are_as_good_as_of_the_whole():
    settings = replace(SETTINGS, size=16, long_sizes=(16, 32))
    assert verdicts(tried(settings=settings)[1])[TWO] is H


def test_without_the_model_it_cannot_be_tried():
    def missing():
        raise NotTestable(Words("missing", "缺"))

    with pytest.raises(NotTestable):
        tried(missing)


def test_a_model_that_finds_nothing_decides_nothing():
    class Blank(LookupModel):
        def next_logits(self, ids, cache=None, mask=None):
            return 0 * super().next_logits(ids, cache, mask)

    assert tried(Blank)[1].verdict is OPEN


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0] == found[0]
    assert tried(seed=1)[0].value("two_alone") != found[0].value("two_alone")
