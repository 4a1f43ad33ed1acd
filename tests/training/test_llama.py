"""A Llama that learns: its gradients by central differences, its loss beside the model that runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.errors import OptionError
from qkv.models.checkpoint import Checkpoint
from qkv.models.llama import Llama, LlamaConfig
from qkv.training.adamw import AdamW
from qkv.training.cross_entropy import IGNORED
from qkv.training.dropout import Dropout
from qkv.training.llama import EMBEDDING, TrainableLlama, shapes_of
from qkv.training.parameters import Parameters
from tiny_models import config_of

SIZES = config_of(
    "llama", vocab_size=43, hidden_size=20, intermediate_size=29, head_dim=6, tie_word_embeddings=True
)


def model_of(dtype: type = np.float64, seed: int = 0, **changes: object) -> TrainableLlama:
    config = LlamaConfig.from_dict(SIZES | changes)
    begun = TrainableLlama.begin(config, seed).parameters
    spread = begun.vector + 0.2 * np.random.default_rng(seed + 1).normal(size=begun.vector.size)
    return TrainableLlama(config, Parameters(begun.shapes, spread.astype(dtype)))


def text(V: int = 43, B: int = 2, T: int = 11) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(3).integers(0, V, (B, T + 1))
    targets = ids[:, 1:].copy()
    targets[0, :3] = IGNORED
    return ids[:, :-1], targets


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("rate", [0, 0.4])
def test_gradients_are_central_differences(window: int | None, rate: float):
    """Along a random direction of each parameter: the loss a little further, less the loss a little back."""
    changes = {} if window is None else {"model_type": "mistral", "sliding_window": window}
    model, (ids, targets) = model_of(**changes), text()
    gradients, ignored = model.parameters.zeros(), model.parameters.zeros()

    def loss(into: Parameters) -> float:
        dropout = Dropout(rate, np.random.default_rng(7)) if rate else None
        return model.loss_and_gradients(ids, targets, into, dropout)

    loss(gradients)
    generator, step = np.random.default_rng(11), 1e-5
    for name, array in model.parameters.items():
        direction, before = generator.normal(size=array.shape), array.copy()
        ends = []
        for sign in (1, -1):
            array[:] = before + sign * step * direction
            ends.append(loss(ignored))
        array[:] = before
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope == pytest.approx((gradients[name] * direction).sum(), rel=1e-5, abs=1e-8), name


def test_gradients_at_the_embedded_ids_are_central_differences(monkeypatch: pytest.MonkeyPatch):
    """Each place's vector is moved by itself, also where an id stands twice."""
    model, (ids, targets) = model_of(), text()
    ids[0, 4] = ids[0, 1]
    found, embedded = model.input_gradients(ids, targets), model._embedded
    direction, step = np.random.default_rng(13).normal(size=found.shape), 1e-5

    def loss(at: tuple[int, int], sign: int) -> float:
        moved = np.zeros_like(found)
        moved[at] = sign * step * direction[at]
        monkeypatch.setattr(
            model, "_embedded", lambda *inputs: (embedded(*inputs)[0] + moved, *embedded(*inputs)[1:])
        )
        return model.loss(ids, targets)

    for at in np.ndindex(*ids.shape):
        slope = (loss(at, 1) - loss(at, -1)) / (2 * step)
        assert slope == pytest.approx(found[at] @ direction[at], rel=1e-5, abs=1e-8), at


def test_gradients_at_the_embedded_ids_leave_the_parameters_alone():
    model, (ids, targets) = model_of(np.float32), text()
    before = model.parameters.vector.copy()
    model.input_gradients(ids, targets)
    assert np.array_equal(model.parameters.vector, before)


def test_the_way_there_is_that_of_the_model_that_runs(tmp_path: Path):
    model, (ids, targets) = model_of(np.float32), text()
    save_file(
        {name: array.copy() for name, array in model.parameters.items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    logits = Llama.from_checkpoint(Checkpoint.open(tmp_path)).logits(ids)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(logprobs, np.maximum(targets, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(model.nats(ids, targets), np.where(targets == IGNORED, 0, expected), atol=3e-5)
    assert model.loss(ids, targets) == pytest.approx(expected[targets != IGNORED].mean(), abs=1e-5)


def test_loss_is_the_same_with_and_without_gradients():
    model, (ids, targets) = model_of(np.float32), text()
    loss = model.loss_and_gradients(ids, targets, model.parameters.zeros())
    assert loss == pytest.approx(model.loss(ids, targets), rel=1e-6)


def test_one_batch_is_learned_by_heart():
    model, (ids, targets) = model_of(np.float32), text()
    gradients, optimiser = model.parameters.zeros(), AdamW(model.parameters, weight_decay=0)
    loss = np.inf
    for _ in range(150):
        loss = model.loss_and_gradients(ids, targets, gradients)
        optimiser.step(gradients, 1e-2)
    assert loss < 0.01


def test_gradients_are_overwritten_and_not_added_to():
    model, (ids, targets) = model_of(np.float32), text()
    once, twice = model.parameters.zeros(), model.parameters.zeros()
    model.loss_and_gradients(ids, targets, once)
    for _ in range(2):
        model.loss_and_gradients(ids, targets, twice)
    assert np.array_equal(once.vector, twice.vector)


def test_matrices_of_one_product_lie_one_below_the_other():
    model = model_of()
    at = "model.layers.1.self_attn"
    names = [f"{at}.{name}_proj.weight" for name in "qkv"]
    rows = np.concatenate([model.parameters[name] for name in names])
    assert np.array_equal(model.parameters.joined(*names), rows)
    model.parameters.joined(*names)[-1, -1] = 5
    assert model.parameters[names[2]][-1, -1] == 5


def test_a_model_begins_the_same_from_the_same_seed():
    config = LlamaConfig.from_dict(SIZES)
    first, same, other = (TrainableLlama.begin(config, seed).parameters for seed in (1, 1, 2))
    assert np.array_equal(first.vector, same.vector)
    assert not np.array_equal(first[EMBEDDING], other[EMBEDDING])
    writes = first["model.layers.0.mlp.down_proj.weight"].std()
    assert writes == pytest.approx(0.02 / np.sqrt(2 * config.L), rel=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"model_type": "qwen3"},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    ],
    ids=str,
)
def test_what_is_not_learned_is_refused(changes: dict):
    config = LlamaConfig.from_dict(SIZES | changes)
    with pytest.raises(OptionError, match="expected"):
        TrainableLlama(config, Parameters(shapes_of(config)))


def test_parameters_of_another_config_are_refused():
    config = LlamaConfig.from_dict(SIZES)
    with pytest.raises(OptionError, match="shapes_of"):
        TrainableLlama(config, Parameters({"w": (3,)}))
