"""Texts and pairs read through a cache that drops tokens: by what is published, or at random."""

from collections.abc import Mapping

import numpy as np

from qkv.lab.own_texts import Ids, Reading, log_softmax, read
from qkv.lab.random_drops import P, logits_at_random
from qkv.lab.recalling import QUESTION, answers_right
from qkv.models import Model
from qkv.training.recall import FIRST_VALUE, NUM_KEYS, Questions

CONTROLS = ("random", "latest")

POLICIES: Mapping[str, str] = {
    "latest": "streaming={},sinks=0",
    "streaming": "streaming={}",
    "h2o": "h2o={}:sum",
    "h2o_decay": "h2o={}",
    "tova": "tova={}",
    "snapkv": "snapkv={}",
    "knorm": "knorm={}",
}
"""What they are called here, and their policies for a budget; pages are `P` long."""

BY_SCORE = ("h2o", "h2o_decay", "tova", "snapkv", "knorm")
"""Those that weigh tokens."""


def policy_for(budget: int, policy: str) -> str:
    """Return a policy with its budget and pages.

    Examples
    --------
    >>> policy_for(64, "h2o={}:sum")
    'h2o=64:sum,page=32'
    """
    return f"{policy.format(budget)},page={P}"


def read_dropping(
    model: Model, text: Ids, budget: int, policy: str | None, draw: np.random.Generator
) -> Reading:
    """Read a text a page at a time under a policy for a budget; at random where there is none."""
    if policy is not None:
        return read(model, text, policy_for(budget, policy), chunk=P)
    steps = [P] * (len(text) // P) + [len(text) % P] * (len(text) % P > 0)
    return Reading(log_softmax(logits_at_random(model, text, budget, steps, draw)), 0)


def found_pairs(
    model: Model,
    questions: Questions,
    budget: int,
    policy: str | None,
    draw: np.random.Generator,
    sees_question: bool,
) -> float:
    """Return the share of right answers under a policy for a budget; at random where there is none."""
    if policy is not None:
        right = answers_right(model, questions, policy_for(budget, policy), sees_question=sees_question)
        return float(right.mean())
    question = questions.ids[:, -QUESTION:]
    rows = np.concatenate([questions.ids, question], axis=1) if sees_question else questions.ids
    steps = [rows.shape[1] - QUESTION, QUESTION]
    logits = np.array([logits_at_random(model, row, budget, steps, draw)[-1] for row in rows])
    answers = logits[:, FIRST_VALUE : FIRST_VALUE + NUM_KEYS].argmax(axis=-1) + FIRST_VALUE
    return float((answers == questions.answers).mean())
