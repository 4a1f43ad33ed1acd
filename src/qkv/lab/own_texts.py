"""Texts that a model writes itself, and what it costs to read them through a cache that keeps less.

Each token is drawn as likely as the model with its full float32 cache finds it. So the text is what the
model expects, no corpus is needed, and the loss has an exact meaning: where a text is drawn from ``p``, the
nats that a cache with ``q`` pays more for each token are on average ``KL(p || q)``. That divergence, which
does not hang on which token was drawn, decides; the nats that this text happens to cost more stand beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.cache import Policy
from qkv.lab.result import Number
from qkv.models import Model, new_cache

Ids = NDArray[np.int64]

BEGIN = 0
"""The id that both of qkv's models begin a text with."""


def write_texts(model: Model, count: int, T: int, random: np.random.Generator) -> Ids:
    """Let a model write several texts at once, token by token, at temperature 1.

    Parameters
    ----------
    model : Model
    count, T : int
        How many texts, of how many tokens, the first of which begins each.
    random : numpy.random.Generator

    Returns
    -------
    (count, T) int64
    """
    cache = new_cache(model, batch_size=count)
    ids = np.full((count, T), BEGIN)
    for t in range(1, T):
        p = np.exp(log_softmax(model.next_logits(ids[:, t - 1 : t], cache)))
        reached = p.cumsum(axis=-1) < random.random((count, 1))
        ids[:, t] = np.minimum(reached.sum(axis=-1), p.shape[-1] - 1)
    return ids


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the logarithms of the probabilities ``(..., V)`` that logits stand for."""
    shifted = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Reading:
    """What a model said while it read one text, and what its cache then took.

    Attributes
    ----------
    log_probs : (T, V) float64
    nbytes : int
    """

    log_probs: NDArray[np.float64]
    nbytes: int


def read(model: Model, text: Ids, policy: Policy | str = "", chunk: int | None = None) -> Reading:
    """Read a text through a cache, so many tokens at once: all of them when left out."""
    cache = new_cache(model, policy)
    step = len(text) if chunk is None else chunk
    logits = [model.logits(text[start : start + step], cache) for start in range(0, len(text), step)]
    return Reading(log_softmax(np.concatenate(logits)), cache.nbytes)


@dataclass(frozen=True)
class Loss:
    """What one text costs with another cache, as means over its tokens.

    Attributes
    ----------
    kl : float
        ``KL(full || other)`` in nats.
    nats : float
        More than the text's own tokens cost with the full cache.
    agreement : float
        How often both find the same token most likely.
    """

    kl: float
    nats: float
    agreement: float


def loss(full: Reading, other: Reading, text: Ids, start: int = 0) -> Loss:
    """Compare two readings of a text, from token ``start`` on.

    Examples
    --------
    Two texts of the same two tokens, 0 and 1; the second is certain by 1/2 with the full cache, by 1/4 with
    the other:

    >>> half, quarter = (Reading(np.log([[1 - p, p]] * 2), 0) for p in (0.5, 0.25))
    >>> found = loss(half, quarter, np.array([0, 1]))
    >>> round(found.nats, 4), round(float(np.log(2)), 4), found.agreement
    (0.6931, 0.6931, 1.0)
    """
    p, q = full.log_probs[start:-1], other.log_probs[start:-1]
    said = np.arange(len(p)), text[start + 1 :]
    return Loss(
        kl=float((np.exp(p) * (p - q)).sum(axis=-1).mean()),
        nats=float((p[said] - q[said]).mean()),
        agreement=float((p.argmax(axis=-1) == q.argmax(axis=-1)).mean()),
    )


def loss_numbers(name: str, losses: Sequence[Loss]) -> dict[str, Number]:
    """Return the three numbers of several texts, under names that begin alike."""
    return {
        f"{name}_kl": Number.of([one.kl for one in losses]),
        f"{name}_nats": Number.of([one.nats for one in losses]),
        f"{name}_agreement": Number.of([one.agreement for one in losses]),
    }


HARDLY_ANY = 1e-9
"""Stands for nothing where something is divided by it, as numbers of a result are finite."""


def as_much(one: float, other: float) -> float:
    """Return one loss as a share of another: 1 where there is neither, and far more where there is only one.

    Examples
    --------
    >>> as_much(0.25, 0.5), as_much(0.0, 0.0), as_much(0.25, 0.0) > 1e6
    (0.5, 1.0, True)
    """
    return 1.0 if one == other else one / max(other, HARDLY_ANY)
