"""Each way of telling importance against plain loops, and gradients against small steps."""

from dataclasses import replace

import numpy as np
import pytest

from lookup_model import LookupModel
from qkv.lab.attribution import attention_scores, gradient_scores, learnable, occlusion, rollout, scores_of
from qkv.lab.own_texts import log_softmax
from qkv.lab.random_models import random_llama
from qkv.models import Llama
from qkv.ops.projection import is_packed, prepare


def small():
    return random_llama(np.random.default_rng(2), E=24, L=2, H=4, G=2, context_length=23)


@pytest.mark.parametrize("replacements", [3, 17])
def test_occlusion_is_the_divergence_a_loop_finds(replacements):
    text, others = np.random.default_rng(1).integers(0, 97, (2, 11))
    measured = occlusion(small(), text, others, replacements, np.random.default_rng(7))
    draw = np.random.default_rng(7)
    p = np.exp(log_softmax(small().logits(text)[-1]))
    for at in range(1, 10):
        total = 0.0
        for other in draw.choice(others[others != text[at]], replacements):
            changed = [*text[:at], other, *text[at + 1 :]]
            total += sum(p * (np.log(p) - log_softmax(small().logits(changed)[-1])))
        assert measured[at - 1] == pytest.approx(total / replacements, rel=1e-3, abs=1e-6)
    assert len(measured) == 9


def test_rollout_is_the_product_of_layers_that_half_pass_by():
    weights = np.tril(np.random.default_rng(3).random((3, 5, 5)))
    weights /= weights.sum(axis=-1, keepdims=True)
    first, second, third = (0.5 * (one + np.eye(5)) for one in weights)
    np.testing.assert_allclose(rollout(weights), third @ second @ first)


def test_scores_belong_to_the_tokens_between_the_first_and_the_last():
    weights = np.random.default_rng(4).random((2, 3, 7, 7))
    found = attention_scores(weights, np.random.default_rng(0))
    last = [np.mean([weights[1, head, 6, s] for head in range(3)]) for s in range(1, 6)]
    mean = [
        np.mean([weights[layer, head, 6, s] for layer in range(2) for head in range(3)]) for s in range(1, 6)
    ]
    np.testing.assert_allclose(found["last"], last)
    np.testing.assert_allclose(found["mean"], mean)
    assert found["recency"].tolist() == [1, 2, 3, 4, 5] and len(found["random"]) == 5


def log_probability(model: Llama, text, said: int, at: int, factor: float) -> float:
    """Of what is said after a text whose vector at one place is some times as long: an id of its own."""
    table = model.embedding.unpack() if is_packed(model.embedding) else model.embedding
    longer = np.concatenate([table, np.float32(factor) * table[text[at], None]])
    ids = text.copy()
    ids[at] = len(table)
    return log_softmax(replace(model, embedding=prepare(longer)).logits(ids)[-1])[said]


def test_gradient_scores_are_what_a_small_change_of_length_does():
    model, text = small(), np.random.default_rng(5).integers(0, 97, 11)
    text[5] = text[2]  # a place has its own gradient, not that of its id
    said = int(model.logits(text)[-1].argmax())
    way_back, step = learnable(model), 1e-2
    assert way_back is not None
    found = gradient_scores(way_back, text, said)
    for at in range(1, 10):
        ends = [log_probability(model, text, said, at, 1 + sign * step) for sign in (1, -1)]
        assert found[at - 1] == pytest.approx(abs(ends[0] - ends[1]) / (2 * step), rel=0.01, abs=2e-4)
    assert len(found) == 9 and np.ptp(found) > 0.05


def test_gradients_are_left_out_where_a_model_has_no_way_back():
    biased = replace(small(), config=replace(small().config, qkv_bias=True))
    assert learnable(biased) is None and learnable(LookupModel()) is None
    text, weights = np.arange(7), np.random.default_rng(4).random((2, 3, 7, 7))
    random = np.random.default_rng(0)
    assert "gradient" not in scores_of(small(), text, weights, None, random)
    assert "gradient" in scores_of(small(), text, weights, learnable(small()), random)
