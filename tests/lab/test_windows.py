"""(j) with a model that looks up exactly, and with windows that keep everything or pages that stay."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, NotTestable, Verdict, Words
from qkv.lab.board import Row
from qkv.lab.own_texts import log_softmax, read
from qkv.lab.random_models import random_llama
from qkv.lab.windows import WINDOWS, Windows, measure
from qkv.models.watching import watch

SETTINGS = Windows(
    texts=2, T=128, sizes=(3, 7, 17), W=7, sinks=2, N=11, rows_each=1, recall_sizes=(7, 25), recall_window=7
)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
BOUNDED, TEXT, NO_SINKS, RECALLS, IN_SIGHT = range(5)


def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=SETTINGS.T)


def missing():
    raise NotTestable(Words("missing", "缺"))


def tried(recall_model: Any = LookupModel, seed=0, **broken):
    instruments = Instruments(seed, text_model=small, recall_model=recall_model)
    measured = measure(SETTINGS, instruments, **broken)
    return measured, Row.of(WINDOWS, as_result(WINDOWS, SETTINGS, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_bytes_stop_growing_with_a_window_and_double_without(found):
    assert found[0].value("full_growth") == 2.0
    assert found[0].value("full_bytes") == 128 * 2 * 2 * 2 * 6 * 4  # T L G, k and v, D, float32
    assert found[0].value("window_growth") == 1.0
    # Six tokens back and one more to go back to, of pages of 16: all within the last page.
    assert found[0].value("window_bytes") == found[0].value("full_bytes") * 16 / 128
    assert verdicts(found[1])[BOUNDED] is H


def test_a_pair_out_of_the_window_is_lost_and_one_inside_is_found(found):
    # Of 11 pairs, the 7 last tokens hold a mark, a key and three values.
    assert found[0].value("recall") == found[0].value("kept") == 3 / 11
    assert found[0].series["kept"] == [3 / 11, 1.0] and found[0].series["window_recall"] == [3 / 11, 1.0]
    assert verdicts(found[1])[RECALLS:] == [F, H]
    assert found[1].verdict is Verdict.HOLDS_ONLY_IF


def test_sinks_take_the_place_of_pairs(found):
    # The first two tokens, a mark and a key, stand where two tokens of pairs stood: one value less.
    assert found[0].series["sinks_recall"][0] == 2 / 11


def test_without_a_model_that_looks_things_up_those_parts_are_open():
    assert verdicts(tried(missing)[1])[RECALLS:] == [OPEN, OPEN]


def test_a_window_is_attention_with_the_rest_taken_away(found):
    """The loss of the smallest, computed without a cache: weights behind it are set to 0."""
    model, W = small(), 3

    def narrow(layer, weights):
        kept = np.triu(weights, 1 - W)
        return kept / kept.sum(axis=-1, keepdims=True)

    text = np.random.default_rng(0).integers(0, 97, 53)
    np.testing.assert_allclose(
        read(model, text, f"window={W}").log_probs, log_softmax(watch(model, text, narrow).logits), atol=1e-4
    )


def test_pages_that_are_not_given_back_are_seen():
    def hoarding(model, text, policy):
        return replace(read(model, text, policy), nbytes=read(model, text, "").nbytes)

    assert verdicts(tried(read=hoarding)[1])[BOUNDED] is F


def test_a_model_that_leans_on_its_first_tokens_needs_them():
    def leaning(model, text, policy):
        return read(model, text, "" if "sinks" in policy else policy)

    measured, ruling = tried(read=leaning)
    assert measured.value("sinks_save") == 1.0 and verdicts(ruling)[NO_SINKS] is F


def test_a_window_that_forgets_nothing_decides_nothing():
    assert tried(read=lambda model, text, policy: read(model, text))[1].verdict is OPEN


def test_the_smaller_the_window_the_more_is_lost(found):
    costs = found[0].series["window_kl"]
    assert costs == sorted(costs, reverse=True) and costs[-1] > 0


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
    assert tried(seed=1)[0].value("window_kl") != found[0].value("window_kl")
