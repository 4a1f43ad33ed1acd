"""Maps of every head: pooled without loss of attention, named by what heads do, in bounded memory."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

import tiny_deepseek
from lookup_model import LookupModel
from qkv.errors import OptionError, PromptError
from qkv.lab import maps as maps_module
from qkv.lab.head_labels import LEAST_TOKENS
from qkv.lab.maps import block_starts, pool, read_heads, read_maps
from qkv.lab.patterns import even_attention, patterns, scores
from qkv.lab.random_models import random_llama
from qkv.models import load
from qkv.models.watching import PassingStep, watch
from qkv.ops import attend
from tiny_models import FAMILIES, write_model

T, L, H, G = 23, 3, 6, 2


@pytest.fixture(scope="module")
def model():
    return random_llama(np.random.default_rng(5), E=36, L=L, H=H, G=G, context_length=211, V=13)


def text(length=T):
    return np.random.default_rng(6).integers(0, 13, length)


def no_delimiters(model):
    return ()


# Pooling


def slow_pool(weights, rows, columns):
    T, S = weights.shape
    ends, far = [*rows[1:], T], [*columns[1:], S]
    return [
        [
            np.mean([sum(weights[t, s] for s in range(left, right)) for t in range(top, bottom)])
            for left, right in zip(columns, far, strict=True)
        ]
        for top, bottom in zip(rows, ends, strict=True)
    ]


def test_blocks_are_summed_over_keys_and_averaged_over_queries():
    weights = np.random.default_rng(1).random((13, 17))
    rows, columns = np.array([0, 5, 10]), np.array([0, 3, 4, 11])
    np.testing.assert_allclose(pool(weights, rows, columns), slow_pool(weights, rows, columns))


def test_by_hand_two_rows_and_two_keys_become_one_cell():
    weights = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.125, 0.375]])
    starts = block_starts(3, 2)
    assert starts.tolist() == [0, 2]
    assert pool(weights, starts, starts).tolist() == [[1.0, 0.0], [0.625, 0.375]]


@pytest.mark.parametrize(("length", "most"), [(1, 64), (64, 64), (65, 64), (127, 64), (1009, 64), (23, 7)])
def test_rows_of_a_pooled_map_sum_to_what_they_did(length, most):
    starts = block_starts(length, most)
    assert starts[0] == 0 and len(starts) <= most and len(set(np.diff(starts))) <= 1
    pooled = pool(even_attention(length), starts, starts)
    np.testing.assert_allclose(pooled.sum(axis=-1), 1)
    assert np.triu(pooled, 1).max(initial=0) == 0


# Reading


def test_a_text_of_few_tokens_is_kept_whole(model):
    read = read_maps(model, text(), delimiters=no_delimiters)
    assert read.weights.shape == (L, H, T, T) and read.num_kv_heads == G and read.shape == (L, H)
    np.testing.assert_array_equal(read.weights, watch(model, text()).weights)
    assert read.block == 1


def test_a_long_text_is_kept_in_blocks_of_equally_many_tokens(model):
    ids = text(211)
    read = read_maps(model, ids, delimiters=no_delimiters)
    whole = watch(model, ids).weights
    assert read.block == 4 and read.weights.shape == (L, H, 53, 53)
    np.testing.assert_allclose(read.weights[2, 5], pool(whole[2, 5], read.starts, read.starts), atol=1e-6)
    np.testing.assert_allclose(read.weights.sum(axis=-1), 1, atol=1e-5)


def test_shares_are_the_scores_of_the_patterns(model):
    ids = text(37)
    read = read_maps(model, ids, delimiters=lambda model: (2, 5))
    weights, named = watch(model, ids).weights, patterns(ids, (2, 5))
    for name in ("previous", "first", "local", "delimiter"):
        np.testing.assert_allclose(read.shares[name], scores(weights, named[name]), atol=1e-6)
        assert read.even[name] == pytest.approx(scores(even_attention(37), named[name]))


def test_copying_is_read_off_the_text_said_twice(model):
    ids = np.arange(12)  # nothing comes twice
    twice = np.array([0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5])
    read = read_maps(model, ids, delimiters=no_delimiters)
    weights = watch(model, twice).weights
    by_hand = {"duplicate": 6, "induction": 5}  # tokens from a query back to what it copies by
    for name, back in by_hand.items():
        expected = np.mean([weights[..., t, t - back] for t in range(7, 12)], axis=0)
        np.testing.assert_allclose(read.shares[name], expected, atol=1e-6)


def test_peaks_and_entropies_are_means_over_the_queries(model):
    read = read_maps(model, text(), delimiters=no_delimiters)
    weights = watch(model, text()).weights[1, 4].astype(np.float64)
    peaks = np.mean([0.0, *(weights[t, 1 : t + 1].max() for t in range(1, T))])
    bits = -np.mean([sum(p * np.log2(p) for p in weights[t, : t + 1]) for t in range(T)])
    even = np.mean([np.log2(t + 1) for t in range(T)])
    assert read.peaks[1, 4] == pytest.approx(peaks, abs=1e-6)
    assert read.entropy[1, 4] == pytest.approx(bits / even, abs=1e-6)


def test_a_head_that_copies_is_found_even_in_a_text_that_repeats_nothing():
    model = LookupModel()
    read = read_maps(model, np.arange(2, 18), delimiters=no_delimiters)
    assert read.label(0, 0).name == "induction" and read.label(0, 0).share > 0.99


def test_patterns_that_concern_few_queries_are_left_out(model):
    ids = np.arange(12)  # said twice in a third of it
    read = read_maps(model, ids, delimiters=lambda model: (9,))  # queries 9, 10 and 11 may see it
    assert "delimiter" not in read.shares and "delimiter" not in read.even
    assert "delimiter" in read_maps(model, ids, delimiters=lambda model: (8,)).shares


def test_in_a_very_short_text_heads_have_no_names(model):
    read = read_maps(model, text(LEAST_TOKENS - 1), delimiters=no_delimiters)
    assert read.is_short and {read.label(*at).name for at in read.heads} == {"too short"}
    assert not read_maps(model, text(LEAST_TOKENS), delimiters=no_delimiters).is_short
    one = read_maps(model, text(1), delimiters=no_delimiters)
    assert one.weights.ravel().tolist() == [1.0] * (L * H) and sorted(one.telling()) == one.heads


def test_heads_with_a_pattern_are_told_before_those_that_rest_on_the_first_token(model):
    read = read_maps(model, text(), delimiters=no_delimiters)
    table = {name: np.full((L, H), share) for name, share in read.even.items()}
    table["first"][0, 1] = table["previous"][2, 3] = table["previous"][1, 1] = 0.875
    peaks = np.zeros((L, H))
    peaks[0, 1], peaks[1, 1], peaks[2, 3] = 1.0, 0.25, 0.5
    told = replace(read, shares=table, peaks=peaks)
    assert told.telling()[:3] == [(2, 3), (1, 1), (0, 1)]


def test_layers_are_let_go_of_once_they_have_been_looked_at(model):
    looked, alive = [], []

    def look(layer, q, k, v, rules):
        looked.append((layer, q.shape, k.shape, v.shape))
        alive.append(sum(one() is not None for one in held))
        held.append(weakref.ref(k if k.base is None else k.base))
        return attend(q, k, v, causal=True, **rules)

    held = []
    model.hidden(text(), PassingStep(model.cache_shape, look))
    assert looked == [(layer, (1, H, T, 6), (1, G, T, 6), (1, G, T, 6)) for layer in range(L)]
    assert alive == [0] * L


# One head


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_heads_numbers_give_its_weights(kind, tmp_path):
    model = load(write_model(tmp_path / kind, kind))
    ids = np.array([5, 3, 8, 1, 8, 2, 7, 11, 4])
    watched = watch(model, ids)
    heads = [(2, 2), (0, 1), (2, 0)]
    for (layer, head), numbers in zip(heads, read_heads(model, ids, heads), strict=True):
        np.testing.assert_allclose(numbers.weights(), watched.weights[layer, head], atol=1e-5)
        np.testing.assert_allclose(numbers.q, watched.q[layer, head], atol=1e-5)
        assert numbers.scale == pytest.approx(numbers.q.shape[-1] ** -0.5)


def test_the_scale_of_a_model_is_kept(tmp_path):
    model = load(tiny_deepseek.write_model(tmp_path))
    ids = np.arange(11)
    [numbers] = read_heads(model, ids, [(1, 2)])
    assert numbers.scale == pytest.approx(numbers.rules.get("scale")) != numbers.q.shape[-1] ** -0.5
    np.testing.assert_allclose(numbers.weights(), watch(model, ids).weights[1, 2], atol=1e-5)


def test_query_heads_take_the_keys_of_their_group(model):
    watched = watch(model, text())
    read = read_heads(model, text(), [(1, head) for head in range(H)])
    for head, numbers in enumerate(read):
        np.testing.assert_allclose(numbers.k, watched.k[1, head // 3], atol=1e-5)
        np.testing.assert_allclose(numbers.v, watched.v[1, head // 3], atol=1e-5)


# What cannot be looked at


def test_heads_and_layers_that_are_not_there_are_refused(model):
    for at, message in (((3, 0), "layer must be from 0 to 2"), ((0, 6), "head must be from 0 to 5")):
        with pytest.raises(OptionError, match=message):
            read_heads(model, text(), [at])
    with pytest.raises(OptionError, match="not -1"):
        read_heads(model, text(), [(0, -1)])


def test_texts_without_a_token_or_beyond_the_context_are_refused(model):
    with pytest.raises(PromptError, match="no token"):
        read_maps(model, text(0), delimiters=no_delimiters)
    with pytest.raises(PromptError, match="212 tokens, the model's context holds 211"):
        read_maps(model, text(212), delimiters=no_delimiters)


def test_weights_that_would_not_fit_are_refused_before_they_are_computed(model, monkeypatch):
    monkeypatch.setattr(maps_module, "MOST_LAYER_BYTES", 4 * H * 22**2)
    with pytest.raises(PromptError, match="23 tokens; a layer of 6 heads can be looked at over 22"):
        read_maps(model, text(), delimiters=no_delimiters)
    read_maps(model, text(22), delimiters=no_delimiters)
