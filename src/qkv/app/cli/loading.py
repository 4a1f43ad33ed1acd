"""What commands that run a model begin with: load it, say what was odd, and have its code ready."""

import warnings
from pathlib import Path

from qkv.app.cli.console import note
from qkv.cache import Policy
from qkv.models import Model, load, new_cache
from qkv.models.weights import Weights

WARM_UP_TOKENS = 16


def load_model(folder: str | Path, weights: Weights = "as stored") -> Model:
    """Load a model, saying what was odd about it in one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(folder, weights)
    for warning in caught:
        note(f"warning: {warning.message}")
    return model


def warm_up(model: Model, policy: Policy | None) -> None:
    """Load, or the very first time compile, the code for many tokens and for one: no figure shall hold it.

    Parameters
    ----------
    model : Model
    policy : Policy or None
        Of the cache that is going to be used; ``None`` for a run without one.
    """
    for num_tokens in (min(WARM_UP_TOKENS, model.context_length), 1):
        model.next_logits([0] * num_tokens, None if policy is None else new_cache(model, policy))
