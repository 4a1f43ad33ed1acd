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
from qkv.lab.head_drops import drop_heads, read_short, read_without
from qkv.lab.own_texts import log_softmax, read, write_texts
from qkv.lab.random_drops import logits_at_random, random_sight
from qkv.lab.random_models import random_llama
from qkv.lab.token_drops import BY_SCORE, POLICIES, found_pairs
from qkv.models import load
from qkv.models.watching import watch
from qkv.training.recall import draw_questions
from tiny_models import config_of, random_tensors, write_folder

SETTINGS = Dropping(
    texts=3, T=128, budgets=(8, 16), budget=16, N=29, rows_each=1, recall_budgets=(8, 16), recall_budget=8
)
H, F, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_TESTABLE
ENOUGH, BEATS_RANDOM, BEATS_LATEST, BLIND, AWARE, GONE, SHORT, WHICH = range(8)


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
    # Of 1 + 58 tokens the last 8 hold four values of 29.
    assert found[0].value("latest_blind") == 4 / 29
    assert found[0].series["latest_blind"] == [4 / 29, 8 / 29]
    assert found[0].value("random_blind") <= 9 / 29
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
    assert verdicts(ruling)[ENOUGH : BEATS_LATEST + 1] == [F, F, F]


def test_a_score_that_keeps_all_loses_nothing():
    ruling = tried(policies={**POLICIES, **dict.fromkeys(BY_SCORE, "fp16")})[1]
    assert verdicts(ruling)[: AWARE + 1] == [H] * 5


def test_without_a_model_that_looks_things_up_those_parts_are_open():
    assert verdicts(tried(missing)[1])[BLIND : AWARE + 1] == [OPEN, OPEN]


@pytest.mark.parametrize("sees_question", [False, True])
def test_at_random_with_room_for_all_every_pair_is_found(sees_question):
    draw = np.random.default_rng(4)
    questions = draw_questions(draw, 29, rows_each=1)
    assert found_pairs(LookupModel(), questions, 100, None, draw, sees_question) == 1.0
    assert 0 < found_pairs(LookupModel(), questions, 20, None, draw, sees_question) < 0.7


class KnowsMostKeys(LookupModel):
    """Looks at everything alike for every tenth key."""

    def _codes(self, ids):
        return super()._codes(ids) * (ids % 10 > 0)[:, None, :, None]


def test_what_a_model_never_finds_is_not_the_caches_fault():
    measured, ruling = tried(KnowsMostKeys)
    best, full = measured.value("best_aware"), measured.value("full_aware")
    assert best < 0.95 and full < 0.95
    assert measured.value("best_aware_kept") == best / full and verdicts(ruling)[AWARE] is H


class TakesTheLatest:
    """Draws no lots: the last of what there is."""

    def choice(self, kept, count, replace):
        return kept[len(kept) - count :]


def test_dropping_all_but_the_latest_without_a_cache_is_what_the_cache_does():
    model, text, draw = small(), np.random.default_rng(0).integers(0, 97, 128), TakesTheLatest()
    by_hand = log_softmax(logits_at_random(model, text, 8, [32] * 4, draw))  # pyright: ignore[reportArgumentType]
    cached = read(model, text, "streaming=8,sinks=0,page=32", chunk=32)
    np.testing.assert_allclose(cached.log_probs, by_hand, atol=1e-4)


def test_what_is_dropped_at_random_stays_dropped():
    sight = random_sight(8, [32] * 5, np.random.default_rng(3))
    assert not np.triu(sight, 1).any() and np.diagonal(sight).all()
    assert sight[32, :32].sum() == 32  # no page more than the budget yet
    for end in (64, 96, 128):
        assert sight[end, :end].sum() == 8
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
    assert [found.value(name) for name in ("heads", "gone_count", "short_count")] == [6, 1, 2]
    assert max(found.value("gone_least_kl"), found.value("gone_least_to_most")) < 1e-9
    assert found.value("gone_most_kl") > 0.01


def test_where_all_heads_go_it_does_not_matter_which():
    _, ruling = tried(settings=replace(SETTINGS, share=1.0))
    assert verdicts(ruling)[WHICH] is F
    assert drops_of(small(), 1.0).value("gone_least_to_most") == 1


def test_a_head_cut_short_gives_its_pages_back(with_a_mute_head):
    text = write_texts(with_a_mute_head, 1, 64, np.random.default_rng(0))[0]
    whole, short = (read_short(with_a_mute_head, text, heads).nbytes for heads in ([], [(1, 1)]))
    assert short * 24 == whole * 22  # six heads of four pages each; one of them keeps its last two


def test_a_head_cut_short_sees_the_latest_tokens_alone(with_a_mute_head):
    """Computed without a cache: what its queries gave to others is taken away."""
    text = write_texts(with_a_mute_head, 1, 61, np.random.default_rng(0))[0]

    def latest(layer, weights):
        if layer == 2:
            kept = np.triu(weights[:, :3], 1 - 32)
            weights[:, :3] = kept / kept.sum(axis=-1, keepdims=True)
        return weights

    by_hand = log_softmax(watch(with_a_mute_head, text, latest).logits)
    np.testing.assert_allclose(read_short(with_a_mute_head, text, [(2, 0)]).log_probs, by_hand, atol=1e-4)


def test_a_head_that_is_gone_adds_nothing(tmp_path):
    """The same as with its part of the output map set to 0."""
    config = config_of("llama")
    tensors = random_tensors(config)
    model = load(write_folder(tmp_path / "whole", config, tensors))
    tensors["model.layers.1.self_attn.o_proj.weight"][:, 3 * 14 :] = 0
    text = np.random.default_rng(0).integers(0, 101, 31)
    mute = read(load(write_folder(tmp_path / "mute", config, tensors)), text)
    np.testing.assert_allclose(read_without(model, text, [(1, 1)]).log_probs, mute.log_probs, atol=1e-4)


def test_the_same_seed_gives_the_same_numbers(found):
    assert tried()[0].numbers == found[0].numbers
    assert tried(seed=1)[0].value("random_kl") != found[0].value("random_kl")
