"""Messages to prompt text: a model's own chat template, rendered in a sandbox.

A chat template is a Jinja program that comes with the weights, from whoever published them. It sees
the variables it is given and nothing else: no attribute that leads to Python's internals, no change
to a list or dict. The dialect is the one Hugging Face `transformers` documents for chat templates.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qkv.errors import ChatTemplateError

Message = Mapping[str, Any]
"""One turn: a ``role`` (system, user, assistant, tool), a ``content``, and what the template knows beside."""


def render(
    template: str,
    messages: Sequence[Message],
    *,
    clock: Callable[[], datetime] = datetime.now,
    **variables: Any,
) -> str:
    """Render a chat template.

    Parameters
    ----------
    template : str
        The template's source.
    messages : sequence of mapping
        The conversation so far, oldest turn first.
    clock : callable
        The present moment, for a template that writes today's date.
    **variables
        What else the template may read: ``add_generation_prompt``, ``bos_token``, ``tools``, ...

    Returns
    -------
    str
        The prompt. Special tokens are in it as text.

    Raises
    ------
    ChatTemplateError
        If the template is no valid Jinja, raises an error itself, fails, or leaves its sandbox.

    Examples
    --------
    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}"
    >>> render(template, [{"role": "user", "content": "Hi"}], eos_token="</s>")
    '<user>Hi</s>'
    >>> render("{{ messages.__class__ }}", [])
    Traceback (most recent call last):
    qkv.errors.ChatTemplateError: the chat template failed (SecurityError: a chat template may not read
    '__class__' of a list); check the messages, or pass a plain prompt
    """
    given = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "strftime_now": partial(format_now, clock),
    }
    try:
        return compiled(template).render(given | variables)
    except Exception as error:  # a template is a program: it can fail in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ChatTemplateError(
            f"the chat template failed ({reason}); check the messages, or pass a plain prompt"
        ) from error


def compiled(template: str) -> Template:
    """Compile a template for the sandbox."""
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock])
    sandbox.filters["tojson"] = to_json
    sandbox.globals["raise_exception"] = raise_exception
    return sandbox.from_string(template)


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox that refuses out loud; Jinja's own renders an unsafe attribute as nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse an attribute that leads out of the sandbox."""
        raise SecurityError(f"a chat template may not read {attribute!r} of a {type(obj).__name__}")


class GenerationBlock(Extension):
    """``{% generation %} ... {% endgeneration %}``: marks the model's words for training; here, text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the block up to its end tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    r"""Write JSON as it is; Jinja's own filter would write ``<`` as ``\u003c`` for use in a web page."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse messages, for example two turns of the same role in a row."""
    raise TemplateError(message)


def format_now(clock: Callable[[], datetime], pattern: str) -> str:
    """Write the present moment after a pattern such as ``%d %b %Y``."""
    return clock().strftime(pattern)
