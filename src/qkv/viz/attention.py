"""The attention of one text: its tokens, the map of every head, and whatever can be drawn of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.errors import OptionError, PromptError
from qkv.lab.maps import HeadNumbers, Maps, read_heads, read_maps
from qkv.models import Model
from qkv.tokens import Tokenizer
from qkv.tokens.joiner import TokenJoiner
from qkv.tokens.stream import MAX_CONTEXT_TOKENS

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Head = tuple[int, int]
"""Layer and head."""

SUFFIXES = (".html", ".png", ".svg")
FRAME_PIXELS = 900
"""Height of the page within a notebook."""

SHOWN_AS = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True, eq=False)
class AttentionView:
    """What can be seen of one text: prints as maps in a terminal, shows itself as a page in a notebook.

    Parameters
    ----------
    model : Model
    name : str
        What the model is called.
    text : str
    tokens : tuple of str
        T labels, every character of which can be seen.
    maps : Maps
    """

    model: Model
    name: str
    text: str
    tokens: tuple[str, ...]
    maps: Maps

    @property
    def title(self) -> str:
        """What was looked at, in one line."""
        L, H = self.maps.shape
        shared = H // self.maps.num_kv_heads
        groups = "" if shared == 1 else f", {shared} to each of {self.maps.num_kv_heads} key/value heads"
        return f"{self.name} · {len(self.tokens):,} tokens · {L} layers of {H} heads{groups}"

    def head(self, layer: int, head: int) -> HeadNumbers:
        """Return one head's queries, keys and values.

        Raises
        ------
        OptionError
            If there is no such head.
        """
        return read_heads(self.model, self.maps.ids, [(layer, head)])[0]

    def block_label(self, start: int, length: int) -> str:
        """Return what a block of tokens is called: its text where it is one token, else its first."""
        return self.tokens[start] if length == 1 else f"{self.tokens[start]}…"

    def save(self, path: str | Path, chosen: Head | None = None) -> None:
        """Write a picture (.png, .svg) or a page (.html) as the file's ending says.

        Parameters
        ----------
        path : str or Path
        chosen : (layer, head), optional
            A picture then shows this head's map alone, a page begins with it.

        Raises
        ------
        OptionError
            If the ending is another one, there is no such head, the file cannot be written, or a picture
            is asked for where matplotlib is not installed.
        """
        path = Path(path)
        require_file(path)
        if path.suffix == ".html":
            from qkv.viz.attention_page import attention_html

            content = attention_html(self, chosen).encode()
        else:
            from qkv.viz.attention_pictures import picture

            content = picture(self, chosen, path.suffix.removeprefix("."))
        try:
            path.write_bytes(content)
        except OSError as error:
            raise OptionError(f"cannot write {path}: {error.strerror}") from None

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Print the grid of heads, what they do, and the map that shows most."""
        from qkv.viz.attention_terminal import overview

        yield overview(self, options.max_width)

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame that keeps its styles and names to itself."""
        from qkv.viz.attention_page import attention_html

        page = escape(attention_html(self), quote=True)
        style = f"width: 100%; height: {FRAME_PIXELS}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def show_attention(model: Model, text: str, name: str = "model") -> AttentionView:
    """Run a model on a text and look at what each of its heads attends to.

    Parameters
    ----------
    model : Model
        With a tokenizer.
    text : str
    name : str
        What to call the model.

    Returns
    -------
    AttentionView
        Print it with rich, let a notebook show it, or save it as a page or a picture.

    Raises
    ------
    PromptError
        If the text is empty or longer than the model's context, or the model has no tokenizer.

    Examples
    --------
    ::

        view = show_attention(qkv.load(), "To be, or not to be, that is the question")
        view.save("heads.html")
    """
    if not text:
        raise PromptError("expected a text to look at, got an empty one")
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise PromptError("the model's folder has no tokenizer.json to make tokens of a text with; add it")
    ids = np.array(tokenizer.encode(text))
    return AttentionView(model, name, text, token_labels(tokenizer, ids.tolist()), read_maps(model, ids))


def token_labels(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    """Return each token's text so that all of it can be seen.

    A character that several tokens spell is shown at the last of them; the others are bytes, such as
    ``<F0>``.
    """
    stream = tokenizer.stream(skip_special_tokens=False)
    tokens = [tokenizer.token_of(token_id, skip_special_tokens=False) or "?" for token_id in ids]
    labels = []
    for place, token_id in enumerate(ids):
        text = visible(stream.push(token_id)) + begun_bytes(tokenizer.joiner, tokens[: place + 1])
        labels.append(text or visible(tokens[place]))
    return tuple(labels)


def begun_bytes(joiner: TokenJoiner, tokens: Sequence[str]) -> str:
    """Return what the last token has of a character that it does not end, such as ``<F0>``."""
    own = joiner.bytes_of(tokens[-1]) or b""
    begun = joiner.unfinished_bytes(tokens[-1 - MAX_CONTEXT_TOKENS :])
    return "".join(f"<{byte:02X}>" for byte in begun[-len(own) :]) if own else ""


def visible(text: str) -> str:
    r"""Return a text with signs for blanks, and escapes for what would move a cursor.

    Examples
    --------
    >>> visible(" be\n"), visible("\x1b[1m")
    ('·be↵', '\\x1b[1m')
    """
    return "".join(SHOWN_AS.get(sign) or (sign if sign.isprintable() else repr(sign)[1:-1]) for sign in text)


def require_file(path: Path) -> None:
    """Raise `OptionError` unless the path may be a new file of a kind that can be drawn."""
    if path.suffix not in SUFFIXES:
        raise OptionError(f"cannot write {path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"cannot write {path}: it must be a file in a folder that exists")
