"""(h) with bytes counted by hand, and with codes that save nothing or say something else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, NotTestable, Verdict, Words
from qkv.lab.board import Row
from qkv.lab.codes import CODES, CODES_IN_CACHE, Codes, measure
from qkv.lab.own_texts import read
from qkv.lab.random_models import random_llama

SETTINGS = Codes(texts=2, T=64, N=5, rows_each=1)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
L, G, D = 2, 2, 6
SAVES_INT8, SAVES_FP8, LOSES_INT8, LOSES_FP8, SAME, RECALLS = range(6)


def small():
    """D is so small that scales weigh much: 4 bytes beside 6."""
    return random_llama(np.random.default_rng(1), E=4 * D, L=L, H=4, G=G, context_length=64)


def missing():
    raise NotTestable(Words("missing", "缺"))


def tried(recall_model: Any = LookupModel, seed=0, **broken):
    instruments = Instruments(seed, text_model=small, recall_model=recall_model)
    measured = measure(SETTINGS, instruments, **broken)
    return measured, Row.of(CODES_IN_CACHE, as_result(CODES_IN_CACHE, SETTINGS, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_bytes_are_those_of_codes_and_scales(found):
    """Of a key and a value of 6 numbers each, in two layers of two heads."""
    per_token = {
        "fp16": 2 * 2 * D,
        "int8": 2 * D + 2 * 4,
        "int8_kivi": 2 * D + 4 + 4 * D / 32,
        "e4m3": 2 * D,
        "e5m2": 2 * D,
        "int4": D + 4 + 4 * D / 32,
    }
    for name, nbytes in per_token.items():
        assert found[0].value(f"{name}_bytes") == SETTINGS.T * L * G * nbytes, name
        assert found[0].value(f"{name}_saving") == pytest.approx(24 / nbytes)


def test_scales_keep_int8_from_half_and_fp8_has_none(found):
    assert verdicts(found[1])[:2] == [F, H]
    assert found[1].verdict is Verdict.HOLDS_ONLY_IF
    assert found[1].conditions[0].say("en", found[0].numbers).startswith("heads are larger than D = 6")


def test_fewer_bits_cost_more_and_forgetting_costs_most(found):
    costs = [found[0].value(f"{name}_kl") for name in ("fp16", "int8", "e4m3", "e5m2", "forgetful")]
    assert costs == sorted(costs) and costs[0] < 1e-5
    assert verdicts(found[1])[LOSES_INT8] is H


def test_pairs_are_found_in_any_code_by_a_model_that_looks_up_exactly(found):
    assert [found[0].value(f"{name}_recall") for name in CODES] == [1.0] * len(CODES)
    assert verdicts(found[1])[RECALLS] is H


def test_without_a_model_that_looks_things_up_that_part_is_open():
    measured, ruling = tried(missing)
    assert verdicts(ruling)[RECALLS] is OPEN
    assert "int8_recall" not in measured.numbers


def test_codes_that_are_only_pretended_save_nothing():
    def pretended(model, text, policy):
        reading = read(model, text, policy)
        return replace(reading, nbytes=read(model, text, "fp16").nbytes)

    ruling = tried(read=pretended)[1]
    assert verdicts(ruling)[:2] == [F, F]


def test_codes_that_say_something_else_lose():
    def mixed_up(model, text, policy):
        reading = read(model, text, policy)
        shift = 1 if policy in ("int8", "fp8-e4m3") else 0
        return replace(reading, log_probs=np.roll(reading.log_probs, shift, axis=0))

    ruling = tried(read=mixed_up)[1]
    assert verdicts(ruling)[LOSES_INT8 : SAME + 1] == [F, F, F]


def test_texts_that_need_no_memory_decide_nothing():
    ruling = tried(read=lambda model, text, policy: read(model, text, "int8"))[1]
    assert ruling.verdict is OPEN


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
    assert tried(seed=1)[0].value("int8_kl") != found[0].value("int8_kl")
