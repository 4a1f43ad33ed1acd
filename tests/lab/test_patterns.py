"""Patterns, scores and divergences against plain loops and by hand."""

from math import log2

import numpy as np

from qkv.lab.patterns import FIRST_SCORED, delimiter_ids, divergences, even_attention, patterns, scores
from qkv.lab.random_models import random_llama

T = 23


def text():
    return np.random.default_rng(3).integers(0, 7, T)


def some_weights(*lead):
    weights = np.tril(np.random.default_rng(4).random((*lead, T, T)))
    return weights / weights.sum(axis=-1, keepdims=True)


RULES = {
    "previous": lambda ids, t, s: s == t - 1,
    "first": lambda ids, t, s: s == 0,
    "local": lambda ids, t, s: t - 4 < s <= t,
    "duplicate": lambda ids, t, s: s < t and ids[s] == ids[t],
    "induction": lambda ids, t, s: 0 < s < t and ids[s - 1] == ids[t],
    "delimiter": lambda ids, t, s: s <= t and ids[s] in (2, 5),
}


def test_patterns_name_the_keys_that_their_rules_do():
    ids = text()
    found = patterns(ids, [2, 5])
    assert list(found) == list(RULES)
    for name, rule in RULES.items():
        expected = [[rule(ids, t, s) for s in range(T)] for t in range(T)]
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_a_score_is_the_mean_over_queries_that_have_such_keys():
    weights, pattern = some_weights(2, 3), patterns(text(), [])["induction"]
    rows = [t for t in range(FIRST_SCORED, T) if pattern[t].any()]
    assert 0 < len(rows) < T - FIRST_SCORED
    expected = [
        [sum(weights[one, other, t, pattern[t]].sum() for t in rows) / len(rows) for other in range(3)]
        for one in range(2)
    ]
    np.testing.assert_allclose(scores(weights, pattern), expected)


def test_a_pattern_without_keys_scores_nothing():
    assert scores(some_weights(2), patterns(text(), [])["delimiter"]).tolist() == [0, 0]


def test_even_attention_scores_by_chance():
    # The token before is one of t + 1 that query t may see.
    expected = np.mean([1 / (t + 1) for t in range(FIRST_SCORED, T)])
    np.testing.assert_allclose(scores(even_attention(T), patterns(text(), [])["previous"]), expected)


def test_divergences_against_a_loop():
    weights = some_weights(3)

    def js(p, q):
        middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        return sum(
            0.5 * sum(a * log2(a / m) for a, m in zip(x, middle, strict=True) if a > 0) for x in (p, q)
        )

    expected = [
        [np.mean([js(one[t], other[t]) for t in range(FIRST_SCORED, T)]) for other in weights]
        for one in weights
    ]
    np.testing.assert_allclose(divergences(weights), expected, atol=1e-12)


def test_heads_that_share_no_key_differ_by_one_bit():
    on_first, on_own = np.zeros((T, T)), np.eye(T)
    on_first[:, 0] = 1
    assert divergences(np.stack([on_first, on_own])).tolist() == [[0, 1], [1, 0]]


def test_a_model_without_a_tokenizer_has_no_delimiters():
    model = random_llama(np.random.default_rng(0), E=8, L=1, H=2, G=1, context_length=8)
    assert not delimiter_ids(model)
