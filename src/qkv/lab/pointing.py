"""Where it is known which token matters: whether attention, and what else tells importance, points at it.

A row of pairs, each a key and its value, ends with a question for one of them. A model that answers rightly
has used that pair and no other. So each way of telling importance is asked for its first place among the
tokens of the pairs, and is right if that is the key or the value asked for. A guess is right in one row of N,
and so is the nearest token, as each place is asked for as often as any other.

Besides the mean of its heads, the last layer is read by its best head alone; other rows say which that is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.lab.attribution import Floats, Occlude, Watch, learnable, scores_of
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids
from qkv.lab.recalling import QUESTION, able_recall_model, answers_right
from qkv.models import Model
from qkv.training.recall import FIRST_KEY, VOCAB_SIZE, Questions, draw_questions

SYMBOLS = np.arange(FIRST_KEY, VOCAB_SIZE)
"""All keys and values: what a token of a pair is replaced by."""
LAST_LAYER = -1


def pointing_numbers(
    instruments: Instruments, N: int, rows_each: int, replacements: int, importance_of: Occlude, watch: Watch
) -> dict[str, float]:
    """Return in which share of rows each way points at the pair asked for; nothing where no model can answer.

    Parameters
    ----------
    instruments : Instruments
    N, rows_each : int
        Pairs in a row, and how often each place is asked for.
    replacements : int
        Of each token, for occlusion.
    importance_of, watch : callable

    Returns
    -------
    dict of str to float
        ``recall_{way}``: the share of rows; ``recall_{way}_value``: of those where it is the value.
    """
    questions = draw_questions(instruments.generator("importance recall"), N, rows_each)
    model = able_recall_model(instruments, questions)
    if model is None:
        return {}
    practice = draw_questions(instruments.generator("importance heads"), N, 1)
    head = best_head(model, practice, watch)
    first: dict[str, list[int]] = {}
    way_back = learnable(model)
    for index, row in enumerate(questions.ids):
        random = instruments.generator("importance recall", index)
        weights = watch(model, row).weights
        scores = scores_of(model, row, weights, way_back, random)
        scores["head"] = weights[LAST_LAYER, head, -1, 1:-1]
        scores["occlusion"] = importance_of(model, row, SYMBOLS, replacements, random)
        for name, of_way in scores.items():
            first.setdefault(name, []).append(first_place(of_way))
    right = answers_right(model, questions).mean()
    numbers = {"recall_N": N, "recall_rows": len(questions.ids), "recall_right": float(right)}
    for name, places in first.items():
        numbers |= shares(f"recall_{name}", np.array(places), questions)
    return numbers


def best_head(model: Model, questions: Questions, watch: Watch) -> int:
    """Return which head of the last layer attends most to the value asked for, on average over rows."""
    attended = [
        watch(model, row).weights[LAST_LAYER, :, -1, value_place(asked)]
        for row, asked in zip(questions.ids, questions.asked, strict=True)
    ]
    return int(np.mean(attended, axis=0).argmax())


def first_place(scores: Floats) -> int:
    """Return where in a row the token of a pair with the highest score stands; the mark does not count.

    Examples
    --------
    Two pairs and the mark: the second value is the fourth token behind the one that begins the row.

    >>> first_place(np.array([0.1, 0.2, 0.1, 0.4, 0.9]))
    4
    """
    return 1 + int(scores[: 1 - QUESTION].argmax())


def value_place(asked: Any) -> Any:
    """Return where the value of a pair stands in its row; its key stands before it."""
    return 2 + 2 * asked


def shares(name: str, places: Ids, questions: Questions) -> dict[str, float]:
    """Return in which share of rows a place is of the pair asked for, and of its value alone.

    Examples
    --------
    >>> questions = Questions(np.zeros((2, 7)), np.array([0, 1]), np.zeros(2))
    >>> shares("one", np.array([1, 4]), questions)
    {'one': 1.0, 'one_value': 0.5}
    """
    value = value_place(questions.asked)
    is_value: NDArray[np.bool_] = places == value
    return {name: float((is_value | (places == value - 1)).mean()), f"{name}_value": float(is_value.mean())}
