"""Questions about what has been read, answered through a cache.

Rows of pairs, a key and its value each, that end with a question for one of them. A cache may drop tokens
before it has seen the question, or after: then the question stands behind the pairs a first time, and is
asked again once the cache has come down to its budget. Only values count as answers.
"""

import numpy as np
from numpy.typing import NDArray

from qkv.cache import Policy
from qkv.lab.instruments import Instruments
from qkv.lab.trained import NotTestable
from qkv.models import Model, new_cache
from qkv.training.recall import FIRST_VALUE, NUM_KEYS, Questions

ABLE = 0.75
"""Right answers, as a share, of a model that can look things up."""

AS_WELL = 0.95
"""Right answers as a share of those with the full cache: what counts as no worse."""

QUESTION = 2
"""Tokens of a question: the mark and the key."""


def able_recall_model(
    instruments: Instruments, questions: Questions, *, sees_question: bool = False
) -> Model | None:
    """Return the recall model, or ``None`` where it is missing or cannot answer with the full cache either.

    A model that finds nothing says nothing about caches.
    """
    try:
        model = instruments.recall_model()
    except NotTestable:
        return None
    right = answers_right(model, questions, sees_question=sees_question)
    return model if right.mean() >= ABLE else None


def answers_right(
    model: Model, questions: Questions, policy: Policy | str = "", *, sees_question: bool = False
) -> NDArray[np.bool_]:
    """Ask each row its question through a cache.

    Parameters
    ----------
    model : Model
    questions : Questions
        Of B rows.
    policy : Policy or str
    sees_question : bool
        Whether the question is read with the pairs first, and then asked again.

    Returns
    -------
    (B,) bool
        Whether the most likely of all values is the one that stood behind the key.
    """
    cache = new_cache(model, policy, len(questions.ids))
    told = questions.ids if sees_question else questions.ids[:, :-QUESTION]
    model.next_logits(told, cache)
    logits = model.next_logits(questions.ids[:, -QUESTION:], cache)
    values = logits[:, FIRST_VALUE : FIRST_VALUE + NUM_KEYS]
    return values.argmax(axis=-1) + FIRST_VALUE == questions.answers
