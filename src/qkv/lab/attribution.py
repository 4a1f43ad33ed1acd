"""What each token of a text is worth for what a model says next: found by trying, or read off cheaply.

=============  ==========================================================================================
way            a token's score
=============  ==========================================================================================
`occlusion`    how far what is said moves when the token is replaced: the measure of the others
``last``       attention of the last query in the last layer, mean of its heads
``mean``       the same, mean of all layers
``rollout``    the same, multiplied through the layers with the stream that passes by them
``gradient``   gradient x input: how what is said would change if the token's embedding faded, to first
               order; it takes one way back through the model and no attention
``recency``    how near it stands: a rival
``random``     nothing: a control
=============  ==========================================================================================

All leave out the token that begins the text and the last one, which asks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.errors import OptionError
from qkv.lab.own_texts import Ids, log_softmax
from qkv.models import Llama, Model
from qkv.models.watching import Watched
from qkv.ops.embedding import embed
from qkv.training.cross_entropy import IGNORED
from qkv.training.llama import EMBEDDING, TrainableLlama
from qkv.training.loaded import make_trainable

Floats = NDArray[Any]
Occlude = Callable[[Model, Ids, Ids, int, np.random.Generator], Floats]
"""A model, a text, ids to replace tokens with, how often, random numbers; to each token's importance."""
Watch = Callable[[Model, Ids], Watched]
"""A model and a text, to what its heads did."""

ROWS_AT_ONCE = 64
"""Texts that are read together: more need memory and save no time."""


def occlusion(model: Model, text: Ids, others: Ids, replacements: int, random: np.random.Generator) -> Floats:
    """Return how far what a model says after a text moves when each token is replaced, in nats.

    Parameters
    ----------
    model : Model
    text : (T,) integers
    others : (N,) integers
        Where replacements are drawn from: what is as common there is as likely.
    replacements : int
        Over which the divergence is a mean.
    random : numpy.random.Generator

    Returns
    -------
    (T - 2,) float64
        For all tokens but the one that begins the text and the last.
    """
    changed = np.repeat(text[None], (len(text) - 2) * replacements, axis=0)
    for at in range(1, len(text) - 1):
        rows = slice((at - 1) * replacements, at * replacements)
        changed[rows, at] = random.choice(others[others != text[at]], replacements)
    starts = range(0, len(changed), ROWS_AT_ONCE)
    logits = [model.next_logits(changed[start : start + ROWS_AT_ONCE]) for start in starts]
    said, then = log_softmax(model.next_logits(text)), log_softmax(np.concatenate(logits))
    moved = (np.exp(said) * (said - then)).sum(axis=-1)
    return moved.reshape(-1, replacements).mean(axis=1)


def attention_scores(weights: Floats, random: np.random.Generator) -> dict[str, Floats]:
    """Return what each way of reading the weights ``(L, H, T, T)`` says of each token, and the controls."""
    T = weights.shape[-1]
    by_layer = weights.mean(axis=1)
    last_query = {
        "last": by_layer[-1, -1],
        "mean": by_layer.mean(axis=0)[-1],
        "rollout": rollout(by_layer)[-1],
    }
    return {name: row[1:-1] for name, row in last_query.items()} | {
        "recency": np.arange(1, T - 1, dtype=float),
        "random": random.random(T - 2),
    }


def rollout(by_layer: Floats) -> Floats:
    """Return attention through all layers ``(T, T)``, half of each going past it in the residual stream.

    Abnar and Zuidema 2020, section 3.

    Examples
    --------
    Two layers that each look at the first token: a quarter of the second token goes past both.

    >>> rollout(np.array([[[1.0, 0.0], [1.0, 0.0]]] * 2)).tolist()
    [[1.0, 0.0], [0.75, 0.25]]
    """
    own = np.eye(by_layer.shape[-1])
    through = own
    for weights in by_layer:
        through = (weights + own) / 2 @ through
    return through


def gradient_scores(model: TrainableLlama, text: Ids, said: int) -> Floats:
    """Return gradient x input of each token ``(T - 2,)`` for what is said next.

    The gradient of the log-probability of ``said`` by the vector at a place (Simonyan et al. 2014), times
    that vector (Shrikumar et al. 2016), added up over E; its size counts.

    Parameters
    ----------
    model : TrainableLlama
        From `learnable`.
    text : (T,) integers
    said : int
        The id that the model finds most likely after the text.
    """
    ids, targets = text[None], np.full((1, len(text)), IGNORED)
    targets[0, -1] = said
    embedded = embed(ids, model.parameters[EMBEDDING])
    return np.abs((model.input_gradients(ids, targets) * embedded).sum(axis=-1))[0, 1:-1]


def learnable(model: Model) -> TrainableLlama | None:
    """Return a model with a way back for gradients; ``None`` where its kind has none here."""
    if not isinstance(model, Llama):
        return None
    try:
        return make_trainable(model)
    except OptionError:
        return None


def scores_of(
    model: Model, text: Ids, weights: Floats, way_back: TrainableLlama | None, random: np.random.Generator
) -> dict[str, Floats]:
    """Return what each way but occlusion says of a text's tokens; ``gradient`` only with a way back."""
    scores = attention_scores(weights, random)
    if way_back is not None:
        scores["gradient"] = gradient_scores(way_back, text, int(model.next_logits(text).argmax()))
    return scores
