"""Read what a request asks for, and refuse what has no meaning before anything of it is queued."""

from collections.abc import Sequence

from qkv.engine.generation import read_ids, require_tokenizer
from qkv.engine.requests import Request
from qkv.errors import OptionError
from qkv.models import Model
from qkv.tokens import StopMatcher


def read_prompt(model: Model, prompt: str | Sequence[int]) -> tuple[int, ...]:
    """Return a prompt's ids.

    Raises
    ------
    PromptError
        If it is text and the model has no tokenizer, or `read_ids` refuses it.
    """
    if isinstance(prompt, str):
        return tuple(require_tokenizer(model).encode(prompt))
    return read_ids(model, prompt)


def read_stop(model: Model, stop: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that end a text.

    Raises
    ------
    OptionError
        If one is empty, or the model has no tokenizer to find them with.
    """
    StopMatcher(stop)
    if stop and model.tokenizer is None:
        raise OptionError(
            "stop strings are found in text, and the model's folder has no tokenizer.json; take stop_ids"
        )
    return tuple(stop)


def check_request(request: Request, V: int, max_batch: int) -> None:
    """Raise `OptionError` if a number of a request has no meaning, or is more than the engine runs."""
    request.sampling.check_ids(V)
    if request.max_tokens < 1:
        raise OptionError(f"max_tokens must be at least 1, not {request.max_tokens}")
    if not 1 <= request.n <= max_batch:
        raise OptionError(
            f"n must be from 1 to {max_batch}, which is how many texts run at once, not {request.n}"
        )
    if request.prompt_logprobs is not None and request.prompt_logprobs < 0:
        raise OptionError(f"prompt_logprobs must be 0 or more, or None, not {request.prompt_logprobs}")
