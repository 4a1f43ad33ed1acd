"""Learning step by step beside a twin in PyTorch: gradients by autograd, losses over twenty steps."""

import numpy as np
import pytest
import torch

from qkv.models.llama import LlamaConfig
from qkv.training.adamw import AdamW, clip
from qkv.training.cross_entropy import IGNORED
from qkv.training.dropout import Dropout
from qkv.training.llama import TrainableLlama
from qkv.training.parameters import Parameters
from torch_llama import TorchLlama

SIZES = {
    "vocab_size": 53,
    "hidden_size": 30,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
CONFIG = LlamaConfig.from_dict(SIZES)
RATE = 3e-3


def model_of(seed: int, dtype: type = np.float32) -> TrainableLlama:
    begun = TrainableLlama.begin(CONFIG, seed).parameters
    spread = begun.vector + 0.1 * np.random.default_rng(seed + 1).normal(size=begun.vector.size)
    return TrainableLlama(CONFIG, Parameters(begun.shapes, spread.astype(dtype)))


def twin_of(model: TrainableLlama) -> TorchLlama:
    named = {name: torch.tensor(array, requires_grad=True) for name, array in model.parameters.items()}
    return TorchLlama(named, H=CONFIG.H, G=CONFIG.G)


def texts(seed: int, B: int = 3, T: int = 19) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(seed).integers(0, CONFIG.V, (B, T + 1))
    targets = np.where(np.random.default_rng(seed + 1).random((B, T)) < 0.2, IGNORED, ids[:, 1:])
    return ids[:, :-1], targets


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-7), (np.float32, 2e-5)])
@pytest.mark.parametrize("rate", [0, 0.3])
def test_gradients_are_those_of_autograd(dtype: type, error: float, rate: float):
    """In float64 to the precision of our rotary tables, which are float32."""
    model, (ids, targets) = model_of(0, dtype), texts(1)
    twin, gradients = twin_of(model), model.parameters.zeros()
    dropout = Dropout(rate, np.random.default_rng(5)) if rate else None
    same = Dropout(rate, np.random.default_rng(5))

    def drop(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(same.draw(tuple(x.shape))) if rate else x

    loss = model.loss_and_gradients(ids, targets, gradients, dropout)
    expected = twin.loss(torch.tensor(ids), torch.tensor(targets), drop)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=error)
    for name, array in gradients.items():
        wanted = twin.parameters[name].grad
        assert wanted is not None
        largest = wanted.abs().max().item()
        np.testing.assert_allclose(array, wanted.numpy(), rtol=0, atol=error * largest, err_msg=name)


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-7), (np.float32, 2e-5)])
def test_gradients_at_the_embedded_ids_are_those_of_autograd(dtype: type, error: float):
    model, (ids, targets) = model_of(0, dtype), texts(1)
    seen: list[torch.Tensor] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)  # the embedded ids come first
        x.retain_grad()
        return x

    twin_of(model).loss(torch.tensor(ids), torch.tensor(targets), look).backward()
    wanted = seen[0].grad
    assert wanted is not None
    found = model.input_gradients(ids, targets)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=error * wanted.abs().max().item())


def test_losses_of_twenty_steps_are_those_of_the_twin():
    model = model_of(2)
    twin, gradients = twin_of(model), model.parameters.zeros()
    matrices = [name for name, array in model.parameters.items() if array.ndim == 2]
    ours = AdamW(model.parameters, betas=(0.9, 0.95), weight_decay=0.1, decayed=matrices)
    decayed = [twin.parameters[name] for name in matrices]
    others = [array for name, array in twin.parameters.items() if name not in matrices]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses, expected = [], []
    for step in range(20):
        ids, targets = texts(step % 3, B=4)
        losses.append(model.loss_and_gradients(ids, targets, gradients))
        clip(gradients, 1.0)
        ours.step(gradients, RATE)
        theirs.zero_grad()
        loss = twin.loss(torch.tensor(ids), torch.tensor(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters.values(), 1.0)
        theirs.step()
        expected.append(loss.item())
    assert losses[0] - losses[-1] > 0.5
    np.testing.assert_allclose(losses, expected, atol=1e-4)
