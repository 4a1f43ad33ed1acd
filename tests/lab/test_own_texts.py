"""What is drawn, what a reading costs, and that pages at a time drop what single tokens would."""

from typing import Any

import numpy as np
import pytest

from qkv.engine.comparison import compare
from qkv.lab.own_texts import Reading, log_softmax, loss, read, write_texts
from qkv.lab.random_models import random_llama
from qkv.ops.backend import is_compiled
from toy_model import ToyModel

T = 53


@pytest.fixture(scope="module")
def model():
    return random_llama(np.random.default_rng(3), E=24, L=2, H=4, G=2, context_length=64)


@pytest.fixture(scope="module")
def text(model):
    return write_texts(model, 2, T, np.random.default_rng(5))[1]


class Loaded(ToyModel):
    """Says 1 and 2 with a quarter each and 0 with a half, whatever it reads."""

    def unembed(self, x):
        return np.broadcast_to(np.log([2.0, 1.0, 1.0], dtype=np.float32), (*x.shape[:-1], 3))


SAME = 1e-9 if is_compiled() else 1e-5
"""Whole texts and single steps have the same bits with the kernels only."""


def test_tokens_are_drawn_as_often_as_they_are_likely():
    texts = write_texts(Loaded(V=3), 40, 100, np.random.default_rng(0))
    assert texts.shape == (40, 100) and not texts[:, 0].any()
    shares = np.bincount(texts[:, 1:].ravel()) / texts[:, 1:].size
    assert np.abs(shares - [0.5, 0.25, 0.25]).max() < 4 * np.sqrt(0.25 / texts[:, 1:].size)


def test_a_text_is_written_with_what_came_before_in_mind(model, text):
    """Its own tokens are likelier to the model in their order than with their beginnings exchanged."""
    said = read(model, text).log_probs[:-1]
    likely = said[np.arange(T - 1), text[1:]].mean()
    other = read(model, write_texts(model, 2, T, np.random.default_rng(6))[0]).log_probs[:-1]
    assert likely > other[np.arange(T - 1), text[1:]].mean() + 0.5


def test_the_loss_is_what_a_comparison_in_step_finds(model, text):
    """Token by token, by the engine's own figures."""
    policies = ["int8", "int8-kivi", "int4", "window=5"]
    found = compare(model, text[:1].tolist(), policies, text=text[1:].tolist())
    full = read(model, text)
    assert [str(row.policy) for row in found.compared] == policies
    for row in found.compared:
        ours = loss(full, read(model, text, row.policy), text)
        assert ours.kl == pytest.approx(row.mean_kl, rel=SAME, abs=SAME)
        assert ours.agreement == row.agreement
        assert ours.nats == pytest.approx(
            np.mean(found.full.log_probs) - np.mean(row.log_probs), rel=SAME, abs=SAME
        )
        assert read(model, text[:-1], row.policy).nbytes == row.nbytes


def test_a_loss_by_hand_begins_where_it_is_told():
    # Behind token 1: 1/2 against 1/4 for the token that comes, and 1/2 against 3/4 for the other.
    p, q = np.log([[0.5, 0.5]] * 3), np.log([[0.9, 0.1], [0.25, 0.75], [0.9, 0.1]])
    found = loss(Reading(p, 0), Reading(q, 0), np.array([1, 1, 0]), start=1)
    assert found.nats == pytest.approx(np.log(2))
    assert found.kl == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert found.agreement == 0.0


def test_nothing_is_lost_against_oneself(model, text):
    full = read(model, text)
    again = loss(full, full, text)
    assert (again.kl, again.nats, again.agreement) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "policy", ["streaming=16", "h2o=16", "h2o=16:sum", "tova=16", "knorm=16", "window=9"]
)
def test_a_page_at_a_time_drops_what_token_by_token_would(model, text, policy):
    by_page, by_token = (read(model, text, policy, chunk=chunk) for chunk in (16, 1))
    np.testing.assert_allclose(by_page.log_probs, by_token.log_probs, atol=1e-5)
    assert by_page.nbytes == by_token.nbytes


def test_probabilities_add_up_to_one():
    logits: Any = np.array([[1000.0, 0.0], [-3.0, -3.0]], np.float32)
    np.testing.assert_allclose(np.exp(log_softmax(logits)).sum(axis=-1), 1)
