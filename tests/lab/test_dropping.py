"""(k) with a model that looks up exactly, heads that say nothing, and scores that know nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lab_results import as_result
from lookup_model import LookupModel
from qkv.lab import Instruments, Measured, NotTestable, Verdict, Words
from qkv.lab.board import Row
from qkv.lab.dropping import DROPPING, Dropping, measure
from qkv.lab.head_drops import drop_heads, policy_without
from qkv.lab.own_texts import log_softmax, read, write_texts
from qkv.lab.random_drops import logits_at_random, random_sight
from qkv.lab.random_models import random_llama
from qkv.lab.token_drops import BY_SCORE, POLICIES
from qkv.models import load
from qkv.models.watching import watch
from tiny_models import config_of, random_tensors, write_folder

SETTINGS = Dropping(
    texts=3, T=64, budgets=(8, 16), budget=16, N=17, rows_each=1, recall_budgets=(8, 16), recall_budget=8
)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
SMALL, BEATS_RANDOM, BEATS_LATEST, BLIND, AWARE, HEADS, WHICH = range(7)


def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=SETTINGS.T)


def missing():
    raise NotTestable(Words("missing", "缺"))


def tried(recall_model: Any = LookupModel, seed=0, settings=SETTINGS, **broken):
    instruments = Instruments(seed, text_model=small, recall_model=recall_model)
    measured = measure(settings, instruments, **broken)
    return measured, Row.of(DROPPING, as_result(DROPPING, settings, measured)).ruling


@pytest.fixture(scope="module")
def found():
    return tried()


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


def test_a_question_that_comes_later_finds_the_share_that_was_kept(found):
    # Of 1 + 34 tokens the last 8 hold four values of 17.
    assert found[0].value("latest_blind") == 4 / 17
    assert found[0].series["latest_blind"] == [4 / 17, 8 / 17]
    assert found[0].value("random_blind") <= 9 / 17
    assert verdicts(found[1])[BLIND] is F


def test_a_score_that_has_seen_the_question_keeps_its_answer(found):
    assert found[0].value("tova_aware") == found[0].value("snapkv_aware") == 1.0
    assert found[0].value("random_aware") < 0.9
    assert verdicts(found[1])[AWARE] is H


def test_scores_that_know_nothing_of_the_question_find_no_more_with_it():
    ruling = tried(policies=dict.fromkeys(POLICIES, "streaming={}"))[1]
    assert verdicts(ruling)[AWARE] is F


def test_scores_that_keep_nothing_are_worse_than_chance():
    ruling = tried(policies={**POLICIES, **dict.fromkeys(BY_SCORE, "window=1")})[1]
    assert verdicts(ruling)[SMALL : BEATS_LATEST + 1] == [F, F, F]


def test_a_score_that_keeps_all_loses_nothing():
    ruling = tried(policies={**POLICIES, **dict.fromkeys(BY_SCORE, "fp16")})[1]
    assert verdicts(ruling)[: AWARE + 1] == [H] * 5


def test_without_a_model_that_looks_things_up_those_parts_are_open():
    assert verdicts(tried(missing)[1])[BLIND : AWARE + 1] == [OPEN, OPEN]


class TakesTheLatest:
    """Draws no lots: the last of what there is."""

    def choice(self, kept, count, replace):
        return kept[len(kept) - count :]


def test_dropping_all_but_the_latest_without_a_cache_is_what_the_cache_does():
    model, text, draw = small(), np.random.default_rng(0).integers(0, 97, 64), TakesTheLatest()
    by_hand = log_softmax(logits_at_random(model, text, 8, [16] * 4, draw))  # pyright: ignore[reportArgumentType]
    cached = read(model, text, "streaming=8,sinks=0", chunk=16)
    np.testing.assert_allclose(cached.log_probs, by_hand, atol=1e-4)


def test_what_is_dropped_at_random_stays_dropped():
    sight = random_sight(8, [16] * 5, np.random.default_rng(3))
    assert not np.triu(sight, 1).any() and np.diagonal(sight).all()
    for end in (32, 48, 64):
        assert sight[end, :end].sum() == (8 if end > 16 else 16)
        gone = ~sight[end - 1, : end - 1] & np.tri(1, end - 1, end - 1, dtype=bool)[0]
        assert not sight[end:, : end - 1][:, gone].any()


@pytest.fixture(scope="module")
def with_a_mute_head(tmp_path_factory):
    """Of three layers of two key heads, what the second finds in the middle layer is not used."""
    config = config_of("llama")
    tensors = random_tensors(config)
    tensors["model.layers.1.self_attn.o_proj.weight"][:, 3 * 14 :] = 0
    return load(write_folder(tmp_path_factory.mktemp("mute"), config, tensors))


def drops_of(model, share):
    texts = write_texts(model, 3, 31, np.random.default_rng(0))
    full = [read(model, text) for text in texts]
    return Measured(drop_heads(model, texts, full, share, np.random.default_rng(1)))


def test_the_head_that_is_not_used_is_found_and_costs_nothing(with_a_mute_head):
    found = drops_of(with_a_mute_head, share=1 / 6)
    assert (found.value("heads"), found.value("heads_gone")) == (6, 1)
    assert found.value("least_heads_kl") == found.value("least_to_most") == 0
    assert found.value("most_heads_kl") > 0.01
    assert policy_without([(1, 1)], with_a_mute_head) == "window=1,heads=11/10/11"


def test_where_all_heads_go_it_does_not_matter_which():
    _, ruling = tried(settings=replace(SETTINGS, share=1.0))
    assert verdicts(ruling)[WHICH] is F
    assert drops_of(small(), 1.0).value("least_to_most") == 1


def test_a_head_that_is_dropped_gives_its_pages_back(with_a_mute_head):
    text = write_texts(with_a_mute_head, 1, 64, np.random.default_rng(0))[0]
    nbytes = [read(with_a_mute_head, text, policy).nbytes for policy in ("", "window=1,heads=11/10/11")]
    assert nbytes[1] * 24 == nbytes[0] * 21  # six heads of four pages each; one of them keeps its last page


def test_a_dropped_head_sees_its_own_token_alone(with_a_mute_head):
    """Computed without a cache, by weights of 1 on the diagonal."""
    text = write_texts(with_a_mute_head, 1, 31, np.random.default_rng(0))[0]

    def alone(layer, weights):
        if layer == 2:
            weights[:, :3] = np.eye(31)
        return weights

    policy = policy_without([(2, 0)], with_a_mute_head)
    by_hand = log_softmax(watch(with_a_mute_head, text, alone).logits)
    np.testing.assert_allclose(read(with_a_mute_head, text, policy).log_probs, by_hand, atol=1e-4)


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
    assert tried(seed=1)[0].value("random_kl") != found[0].value("random_kl")
