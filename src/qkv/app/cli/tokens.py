"""`qkv tokens`: what prompts are made of, and what of them is said more than once."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import ChatTemplateError, PromptError
from qkv.models.shipped import SHIPPED, folder_of
from qkv.planner.prompts import read_prompts
from qkv.planner.sources import find_model
from qkv.planner.units import show_bytes
from qkv.planner.usage import Usage, measure_usage
from qkv.tokens import Tokenizer

DEFAULT = "verse"
"""Whose tokenizer counts where none is named: the one that is always there."""

BYTES_PER_NUMBER = 2
"""Of a 16-bit cache."""


def tokens(
    files: Annotated[list[Path], typer.Argument(help="JSON lines of chat messages, or plain text.")],
    model: Annotated[
        str | None, typer.Option(help="A folder with the tokenizer.json to count with; verse if not given.")
    ] = None,
    cache_of: Annotated[
        str, typer.Option(help="Whose KV cache to count, such as llama-3-8b; that of --model if not given.")
    ] = "",
    page_size: Annotated[int, typer.Option(help="Tokens per page.", min=1)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the tokens of the prompts in FILES, part by part, and what could be shared or left out."""
    tokenizer = Tokenizer.from_folder(folder_of(model or DEFAULT))
    requests = [request for path in files for request in read_prompts(path, _renderer(tokenizer))]
    if not requests:
        raise PromptError(f"there is no prompt in {', '.join(map(str, files))}")
    usage = measure_usage(requests, _encoder(tokenizer), page_size)
    per_token = _bytes_per_token(model, cache_of)
    if as_json:
        typer.echo(json.dumps({"tokenizer": model or DEFAULT, **_record(usage, per_token)}, indent=2))
        return
    typer.echo(report(usage, per_token))
    if model is None:
        typer.echo(f"\ncounted with {DEFAULT}'s tokenizer; give --model for another")


def report(usage: Usage, bytes_per_token: int | None) -> str:
    """Return the figures as text of 80 columns.

    Examples
    --------
    >>> print(report(Usage(2, 81, {"system": 74, "user": 7}, 16, 32, 0, 0), bytes_per_token=1024))
    2 requests, 81 tokens
    <BLANKLINE>
      system                              74  91.4 %
      user                                 7   8.6 %
    <BLANKLINE>
      shared prefixes, pages of 16        32  39.5 %  32.00 KiB (32.77 kB) saved
      repeated inside a prompt             0   0.0 %
    """
    lines = [
        f"{usage.num_requests:,} request{'s' if usage.num_requests > 1 else ''}, {usage.tokens:,} tokens",
        "",
    ]
    lines += [_line(name, count, usage.tokens) for name, count in usage.by_part.items()]
    saved = "" if bytes_per_token is None else f"  {show_bytes(usage.shared_tokens * bytes_per_token)} saved"
    lines += [
        "",
        _line(f"shared prefixes, pages of {usage.page_size}", usage.shared_tokens, usage.tokens) + saved,
    ]
    where = f"  in {usage.repeating_requests:,} of them" if usage.repeating_requests else ""
    lines.append(_line("repeated inside a prompt", usage.repeated_tokens, usage.tokens) + where)
    return "\n".join(lines)


def _line(name: str, count: int, total: int) -> str:
    return f"  {name:28} {count:9,} {100 * count / max(1, total):5.1f} %"


def _record(usage: Usage, bytes_per_token: int | None) -> dict[str, Any]:
    return {
        "requests": usage.num_requests,
        "tokens": usage.tokens,
        "by_part": dict(usage.by_part),
        "page_size": usage.page_size,
        "shared_tokens": usage.shared_tokens,
        "repeated_tokens": usage.repeated_tokens,
        "repeating_requests": usage.repeating_requests,
        "cache_bytes_per_token": bytes_per_token,
        "cache_bytes_saved": None if bytes_per_token is None else usage.shared_tokens * bytes_per_token,
    }


def _renderer(tokenizer: Tokenizer) -> Any:
    """Write messages with the folder's chat template; without one, their texts under each other."""

    def render(messages: Sequence[Mapping[str, Any]]) -> str:
        if not tokenizer.chat_templates:
            return "\n".join(message["content"] for message in messages)
        try:
            return tokenizer.render_chat(messages)
        except ChatTemplateError as error:
            raise PromptError(str(error)) from error

    return render


def _encoder(tokenizer: Tokenizer) -> Any:
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _bytes_per_token(model: str | None, cache_of: str) -> int | None:
    """Return what a 16-bit cache takes per token; ``None`` where no model was named."""
    if cache_of:
        source = folder_of(cache_of) if cache_of in SHIPPED else cache_of
    elif model is not None and (folder_of(model) / "config.json").is_file():
        source = folder_of(model)
    else:
        return None
    return BYTES_PER_NUMBER * find_model(source).numbers(1)
