"""What a command line says of sampling that is no plain number, and how a report shows logprobs."""

from collections.abc import Iterable, Sequence
from typing import Any

from qkv.errors import OptionError
from qkv.ops.logprobs import TokenLogprobs
from qkv.tokens import Tokenizer


def parse_bias(texts: Sequence[str]) -> dict[int, float]:
    """Return what to add to the logits of which tokens.

    Raises
    ------
    OptionError
        If a text is no id with a number.

    Examples
    --------
    >>> parse_bias(["5=-2.5", "7=1e3"])
    {5: -2.5, 7: 1000.0}
    """
    bias: dict[int, float] = {}
    for text in texts:
        token_id, _, added = text.partition("=")
        try:
            bias[int(token_id)] = float(added)
        except ValueError as error:
            raise OptionError(
                f"--logit-bias: expected a token id and a number, as 5=-2.5, not {text}"
            ) from error
    return bias


def logprobs_record(logprobs: Iterable[TokenLogprobs], tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Return logprobs as plain values, for JSON."""
    return [
        _entry(one.token_id, one.logprob, tokenizer)
        | {"top": [_entry(token_id, logprob, tokenizer) for token_id, logprob in one.top]}
        for one in logprobs
    ]


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    token = None if tokenizer is None else tokenizer.token_of(token_id, skip_special_tokens=False)
    return {"id": token_id, "token": token, "logprob": logprob}
