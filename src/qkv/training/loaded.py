"""A model that was loaded, as one that can learn: what `qkv.training.export` wrote, taken up again."""

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.models import Llama
from qkv.ops.projection import is_packed
from qkv.training.llama import EMBEDDING, FINAL_NORM, Block, TrainableLlama, check_learnable, shapes_of
from qkv.training.parameters import Parameters


def make_trainable(model: Llama) -> TrainableLlama:
    """Return a model that learns, with a loaded model's weights copied as float32.

    Parameters
    ----------
    model : Llama

    Returns
    -------
    TrainableLlama

    Raises
    ------
    OptionError
        If a part of the model has no backward pass here.

    Examples
    --------
    >>> from qkv.models import load
    >>> model = load("siblings/mqa")
    >>> ids = np.array([[0, 5, 3, 8]])
    >>> nats = make_trainable(model).nats(ids[:, :-1], ids[:, 1:])
    >>> logits = model.logits(ids[:, :-1])[0]
    >>> expected = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(3), ids[0, 1:]]
    >>> bool(np.allclose(nats[0], expected, atol=1e-3))
    True
    """
    check_learnable(model.config)
    parameters = Parameters(shapes_of(model.config))
    parameters[EMBEDDING][:], parameters[FINAL_NORM][:] = _numbers(model.embedding), model.final_norm
    for index, layer in enumerate(model.layers):
        block = Block.of(parameters, index)
        for field in fields(Block):
            getattr(block, field.name)[:] = _numbers(getattr(layer, field.name))
    return TrainableLlama(model.config, parameters)


def _numbers(weight: Any) -> NDArray[np.float32]:
    return weight.unpack() if is_packed(weight) else weight
