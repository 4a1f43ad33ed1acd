"""(b) against plain loops, and with its mask, its model or its cache broken."""

from typing import Any

import numpy as np
import pytest

import reference
from lab_results import as_result
from qkv import scaled_dot_product_attention
from qkv.lab import Instruments, Verdict
from qkv.lab.board import Row
from qkv.lab.causality import CAUSALITY, Causality, article_run, future_mass, leak, measure, small_llama

TINY = Causality(T=13, seeds=3, chunk=5)


def ruling_of(**broken):
    return Row.of(CAUSALITY, as_result(CAUSALITY, TINY, measure(TINY, Instruments(), **broken))).ruling


def verdicts(ruling):
    return [one.verdict for one in ruling.parts]


H, F = Verdict.HOLDS, Verdict.FAILS


def test_the_mask_holds_and_the_articles_class_does_not():
    assert verdicts(ruling_of()) == [H, H, H, H, F, F, F]
    # What the article wrote down stands beside the claim; the mask itself does what is said of it.
    assert ruling_of().verdict is Verdict.HOLDS and len(ruling_of().minded) == 3


def test_future_mass_by_hand():
    # Rows (1/2, 1/2) and (1/4, 3/4): of a weight of 2 in all, 1/2 lies above the diagonal.
    assert future_mass(np.array([[0.5, 0.5], [0.25, 0.75]])) == 0.25


def test_without_a_mask_weight_lies_on_the_future():
    def forgetful(q, k, v, causal):
        return scaled_dot_product_attention(q, k, v)

    ruling = ruling_of(attention=forgetful)
    assert verdicts(ruling)[0] is F and verdicts(ruling)[2] is H


def test_a_mask_put_on_after_the_softmax_loses_weight():
    def late(q, k, v, causal):
        output, weights = scaled_dot_product_attention(q, k, v)
        return output, np.tril(weights) if causal else weights

    assert verdicts(ruling_of(attention=late))[:2] == [H, F]


class SeesItsFuture:
    """A model that adds to every logit how many tokens there are of each."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.cache_shape, self.rotation, self.fingerprint = (
            model.cache_shape,
            model.rotation,
            model.fingerprint,
        )

    def logits(self, ids, cache=None):
        return self._model.logits(ids, cache) + np.bincount(ids, minlength=97)[None, :].astype(np.float32)


def broken(kind):
    """Make random models of a kind that does something wrong."""
    return lambda random, T: kind(small_llama(random, T))


class SeesTheNext(SeesItsFuture):
    """A model whose logits after a token tell the one that follows it."""

    def logits(self, ids, cache=None):
        ahead = np.zeros((len(ids), 97), np.float32)
        ahead[np.arange(len(ids) - 1), ids[1:]] = 1
        return self._model.logits(ids, cache) + ahead


def test_a_model_that_looks_one_token_ahead_is_found_out():
    assert verdicts(ruling_of(make_model=broken(SeesTheNext)))[2] is F


def test_a_model_that_looks_ahead_is_found_out():
    ruling = ruling_of(make_model=broken(SeesItsFuture))
    assert verdicts(ruling)[2:4] == [F, F]


class SeesNothing(SeesItsFuture):
    """A model whose logits never change."""

    def logits(self, ids, cache=None):
        return np.zeros((len(ids), 97), np.float32)


def test_a_model_that_sees_nothing_at_all_proves_nothing():
    ruling = ruling_of(make_model=broken(SeesNothing))
    assert ruling.verdict is Verdict.NOT_TESTABLE


def test_a_leak_is_the_largest_change_before_the_replaced_tokens():
    text = np.array([5, 7, 11, 13])
    model: Any = SeesItsFuture(small_llama(np.random.default_rng(0), 13))
    assert leak(model, text, np.random.default_rng(1)) == pytest.approx(1.0, abs=1e-5)


def test_the_articles_class_is_attention_without_a_mask_and_its_batch_is_values_alone():
    tokens = np.random.default_rng(2).normal(size=(7, 1, 128))
    found = article_run(np.random.default_rng(1), tokens)
    draws = np.random.default_rng(1)
    w_q, w_k, w_v, w_o = (draws.normal(scale=(2 / 128) ** 0.5, size=(128, 128)) for _ in range(4))
    q, k, v = ((tokens[:, 0] @ w.T).reshape(7, 8, 16).swapaxes(0, 1)[None] for w in (w_q, w_k, w_v))
    weights = reference.attend(q, k, v)[1]
    assert found.future_mass == pytest.approx(np.triu(weights, 1).sum() / weights.sum())
    causal = reference.attend(q, k, v, causal=True)[0]
    apart = (v - causal)[0].swapaxes(0, 1).reshape(7, 128) @ w_o.T
    assert found.layout_error == pytest.approx(np.abs(apart).max())


def test_the_same_seed_gives_the_same_numbers():
    assert measure(TINY, Instruments(seed=5)).numbers == measure(TINY, Instruments(seed=5)).numbers
    assert measure(TINY, Instruments(seed=5)).numbers != measure(TINY, Instruments(seed=6)).numbers
