"""Tokens a second in training, beside the same model in PyTorch: `python -m benchmarks.training [--pairs N]`.

The text model that comes with qkv, float32, dropout 0, two threads each; a step is the way there, the way
back, clipping and AdamW (PyTorch's fused one). Needs the peers.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from qkv.models.llama import LlamaConfig
from qkv.training.adamw import AdamW, clip
from qkv.training.freed_memory import keep_freed_memory
from qkv.training.llama import TrainableLlama
from qkv.training.presets import preset

sys.path.append(str(Path(__file__).parents[1] / "tests" / "peers"))
from torch_llama import TorchLlama


def main(pairs: int) -> None:
    keep_freed_memory()
    settings = preset("small")
    model = TrainableLlama.begin(LlamaConfig.from_dict(settings.config()), seed=0)
    gradients, optimiser = model.parameters.zeros(), AdamW(model.parameters)
    twin = TorchLlama(
        {name: torch.tensor(array, requires_grad=True) for name, array in model.parameters.items()},
        H=settings.H,
        G=settings.G,
    )
    theirs = torch.optim.AdamW(list(twin.parameters.values()), lr=1e-4, fused=True)
    text = np.random.default_rng(0).integers(0, settings.V, (settings.B, settings.T + 1))
    ids, targets = text[:, :-1], text[:, 1:]

    def step() -> float:
        loss = model.loss_and_gradients(ids, targets, gradients)
        clip(gradients, 1.0)
        optimiser.step(gradients, 1e-4)
        return loss

    def their_step() -> float:
        theirs.zero_grad()
        loss = twin.loss(torch.tensor(ids), torch.tensor(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters.values(), 1.0)
        theirs.step()
        return loss.item()

    assert abs(step() - their_step()) < 1e-3, "the two compute the same"
    seconds = [(timed(step), timed(their_step)) for _ in range(pairs)]
    tokens = settings.B * settings.T
    ours, peer = (tokens / statistics.median(side) for side in zip(*seconds, strict=True))
    ratios = [their / own for own, their in seconds]
    print(f"qkv {ours:,.0f} tokens/s, PyTorch {torch.__version__} {peer:,.0f} tokens/s")
    print(f"times as fast: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def timed(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    main(parser.parse_args().pairs)
