"""Prompts from files: JSON lines of chat messages, or plain text."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import PromptError
from qkv.planner.usage import Request

Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""Messages to the text a model reads."""


def read_prompts(path: Path, render: Render) -> list[Request]:
    """Return the requests of a file: one a line of a .jsonl file, else the whole file as one.

    Parameters
    ----------
    path : Path
        A line is a list of messages, an object with ``messages``, ``prompt`` or ``text``, or a string.
    render : callable
        Writes messages as the model's chat template does.

    Raises
    ------
    PromptError
        If the file cannot be read, or a line is none of these; it names the line.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} cannot be read as text ({type(error).__name__})") from error
    if path.suffix not in (".jsonl", ".ndjson"):
        return [Request((("text", text),), text)]
    return list(_lines(text, path, render))


def _lines(text: str, path: Path, render: Render) -> Iterator[Request]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _request(json.loads(line), render)
        except (ValueError, RecursionError, PromptError) as error:
            raise PromptError(f"{path}, line {number}: {error}") from error


def _request(record: Any, render: Render) -> Request:
    match record:
        case str(text) | {"prompt": str(text)} | {"text": str(text)}:
            return Request((("text", text),), text)
        case list(messages) | {"messages": list(messages)}:
            parts = tuple(_part(message) for message in messages)
            return Request(parts, render([{"role": role, "content": content} for role, content in parts]))
    raise PromptError("expected a list of messages, a string, or an object with messages, prompt or text")


def _part(message: Any) -> tuple[str, str]:
    """Return role and text of a message; pictures and the like have no text."""
    match message:
        case {"role": str(role), "content": str(text)}:
            return role, text
        case {"role": str(role), "content": list(pieces)}:
            texts = [piece["text"] for piece in pieces if _is_text(piece)]
            return role, "".join(texts)
        case {"role": str(role)} if message.get("content") is None:  # a call of a tool
            return role, ""
    raise PromptError("a message has a role and a content, which is text or a list of pieces")


def _is_text(piece: Any) -> bool:
    return isinstance(piece, dict) and isinstance(piece.get("text"), str)
