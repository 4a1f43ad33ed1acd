"""Looking on changes nothing; what is changed changes what follows."""

from pathlib import Path

import numpy as np
import pytest

import tiny_deepseek
from qkv.errors import PromptError, ShapeError
from qkv.models import Model, load
from qkv.models.watching import watch
from tiny_models import FAMILIES, write_model

IDS = np.array([5, 3, 8, 1, 8, 2, 7, 11, 4])
KINDS = (*FAMILIES, "deepseek_v3")


def model_of(kind: str, folder: Path) -> Model:
    return load(
        tiny_deepseek.write_model(folder) if kind.startswith("deepseek") else write_model(folder, kind)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_looking_on_leaves_the_logits_as_they_are(kind: str, tmp_path: Path):
    model = model_of(kind, tmp_path)
    watched, shape = watch(model, IDS), model.cache_shape
    np.testing.assert_allclose(watched.logits, model.logits(IDS), atol=2e-5)
    T, L = len(IDS), shape.num_layers
    assert watched.weights.shape[0] == L and watched.weights.shape[2:] == (T, T)
    assert watched.k.shape == (L, shape.num_kv_heads, T, shape.head_dim)
    assert watched.v.shape == (L, shape.num_kv_heads, T, shape.value_size)
    assert watched.q.shape == (*watched.weights.shape[:3], shape.head_dim)
    np.testing.assert_allclose(watched.weights.sum(axis=-1), 1, atol=1e-5)
    assert np.triu(watched.weights, 1).max() == 0


def test_weights_are_those_of_queries_and_keys(tmp_path: Path):
    """One by one: the second head of the group that the second key head serves."""
    watched = watch(model_of("llama", tmp_path), IDS)
    q, k = watched.q[1, 4].astype(np.float64), watched.k[1, 1].astype(np.float64)
    for t in range(len(IDS)):
        scores = np.array([q[t] @ k[s] for s in range(t + 1)]) / np.sqrt(14)
        expected = np.exp(scores - scores.max())
        np.testing.assert_allclose(watched.weights[1, 4, t, : t + 1], expected / expected.sum(), atol=1e-6)


def test_a_models_window_is_seen(tmp_path: Path):
    weights = watch(model_of("mistral", tmp_path), IDS).weights
    assert np.tril(weights, -5).max() == 0
    assert np.diagonal(weights, -4, axis1=-2, axis2=-1).min() > 0


def test_the_same_weights_put_back_change_nothing(tmp_path: Path):
    model = model_of("llama", tmp_path)
    same = watch(model, IDS, lambda layer, weights: weights)
    np.testing.assert_allclose(same.logits, model.logits(IDS), atol=2e-5)


def test_a_head_left_out_changes_what_is_said_and_later_layers_but_not_earlier_ones(tmp_path: Path):
    model = model_of("llama", tmp_path)

    def without_head_2(layer: int, weights: np.ndarray) -> np.ndarray:
        if layer == 1:
            weights[:, 2] = 0
        return weights

    whole, without = watch(model, IDS), watch(model, IDS, without_head_2)
    assert np.array_equal(whole.weights[:2], without.weights[:2])  # what it was before the change
    assert np.abs(whole.weights[2] - without.weights[2]).max() > 1e-4
    assert np.abs(whole.logits - without.logits).max() > 1e-3


def test_a_token_looked_at_alone_is_all_that_is_known_of_the_others(tmp_path: Path):
    """All weight on the first token: what stands between it and the last changes nothing of what is said."""
    model = model_of("llama", tmp_path)
    ids, other = np.array([3, 5, 7, 4]), np.array([3, 6, 8, 4])

    def first_token(layer: int, weights: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.eye(len(ids))[0], weights.shape).astype(weights.dtype)

    alone, beside = watch(model, ids, first_token), watch(model, other, first_token)
    np.testing.assert_array_equal(alone.logits[-1], beside.logits[-1])
    assert np.abs(watch(model, ids).logits[-1] - watch(model, other).logits[-1]).max() > 1e-3


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [(np.zeros((2, 3), int), ShapeError, "one text"), (np.zeros(0, int), PromptError, "no token")],
    ids=["a batch", "nothing"],
)
def test_what_cannot_be_watched_is_refused(ids: np.ndarray, error: type, message: str, tmp_path: Path):
    with pytest.raises(error, match=message):
        watch(model_of("llama", tmp_path), ids)


def test_a_change_of_another_shape_is_refused(tmp_path: Path):
    with pytest.raises(ShapeError, match="must return weights of shape"):
        watch(model_of("llama", tmp_path), IDS, lambda layer, weights: weights[:, :1])
