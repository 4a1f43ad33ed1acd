"""The smallest thing that learns: a table of what follows what, its gradient written out by hand."""

from typing import Any

import numpy as np

from qkv.training.batches import Windows
from qkv.training.cross_entropy import IGNORED
from qkv.training.dropout import Dropout
from qkv.training.parameters import Parameters
from qkv.training.presets import Settings, preset

V, T, B = 11, 7, 3
BEGIN, LINE_END = 0, 10


class Bigram:
    """Each token's logits are a row of a table, times a scale."""

    def __init__(self) -> None:
        self.parameters = Parameters({"table": (V, V), "scale": (V,)})
        self.parameters["scale"][:] = 1

    def loss(self, ids: Any, targets: Any) -> float:
        return self.loss_and_gradients(ids, targets, self.parameters.zeros())

    def loss_and_gradients(
        self, ids: Any, targets: Any, gradients: Parameters, dropout: Dropout | None = None
    ) -> float:
        table, scale = self.parameters["table"], self.parameters["scale"]
        keep = 1 if dropout is None else dropout.draw((*ids.shape, V))
        rows = table[ids] * keep
        logits = (rows * scale).astype(np.float64)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        counted = targets != IGNORED
        told = np.eye(V)[np.where(counted, targets, 0)]
        d_logits = (shares - told) * counted[..., None] / counted.sum()
        gradients.vector[:] = 0
        np.add.at(gradients["table"], ids, d_logits * scale * keep)
        gradients["scale"][:] = (d_logits * rows).sum((0, 1))
        return float(-np.log((shares * told).sum(-1))[counted].mean())


def windows(seed: int = 5) -> Windows:
    """A text of 211 tokens in lines, after each token likely the next number, and 53 held out."""
    generator = np.random.default_rng(2)
    steps = generator.choice([1, 1, 1, 2, 5], 264)
    text = 1 + np.cumsum(steps) % 10
    text[-1] = BEGIN
    return Windows(text[:211], text[211:], 101, B, T, seed, BEGIN, LINE_END)


def settings(**changes: Any) -> Settings:
    chosen = {"steps": 13, "seed": 5, "dropout": 0.2, "learning_rate": 0.1} | changes
    return preset("tiny", V=V, T=T, B=B, **chosen)
