"""What commands that run a model begin with: load it, say what was odd, and have its code ready."""

import warnings
from pathlib import Path

import typer

from qkv.cache import Policy
from qkv.errors import OptionError
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


def note(line: str) -> None:
    """Write a line about the run beside its output, not into it."""
    typer.secho(line, err=True, dim=True)


def read_text(option: str, file: Path) -> str:
    """Return the UTF-8 text of a file that an option names.

    Raises
    ------
    OptionError
        If it cannot be read; the message names both.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise OptionError(f"{option}: {file} is not UTF-8 ({wrong}); convert it first") from error
    except OSError as error:
        raise OptionError(f"{option}: {file} cannot be read: {error.strerror or error}") from error


def require_drawing(path: Path) -> None:
    """Find out that a picture cannot be drawn before time has gone into what it is to show."""
    from qkv.viz.loss import new_figure

    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"--plot cannot write {path}: it must be a file in a folder that exists")
    formats = new_figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise OptionError(f"--plot must be a file ending in .png, .svg or .pdf, not {path.name!r}")
