"""Read what a request asks for, and refuse what has no meaning before anything of it is queued."""

from collections.abc import Sequence

from qkv.arguments import as_whole, shown, whole_number
from qkv.engine.generation import read_ids, require_tokenizer
from qkv.engine.requests import Request
from qkv.errors import OptionError
from qkv.models import Model
from qkv.ops.sampling import Sampling
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
    if not isinstance(request.sampling, Sampling):
        raise OptionError(f"sampling takes a qkv.Sampling, not {shown(request.sampling)}")
    request.sampling.check_ids(V)
    if as_whole(request.n) is None or not 1 <= request.n <= max_batch:
        raise OptionError(
            f"n must be from 1 to {max_batch}, which is how many texts run at once, not {shown(request.n)}"
        )
    if request.prompt_logprobs is not None:
        whole_number("prompt_logprobs", request.prompt_logprobs)
