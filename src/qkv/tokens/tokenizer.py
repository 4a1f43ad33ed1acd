"""Text to ids and back, as a model folder prescribes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import ChatTemplateError, OptionError, PromptError
from qkv.tokens.folder import read_chat_templates, read_core, read_special_tokens
from qkv.tokens.joiner import TokenJoiner
from qkv.tokens.stream import StreamDecoder

if TYPE_CHECKING:  # loaded when a tokenizer is read
    import tokenizers

    from qkv.tokens.chat import Message


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A vocabulary with its special tokens and chat template.

    Parameters
    ----------
    core : tokenizers.Tokenizer
        What tokenizer.json describes.
    special_tokens : mapping of str to str
        Special tokens by role, such as ``{"eos_token": "</s>"}``.
    chat_templates : mapping of str to str
        Chat templates by name; ``default`` is the one for plain conversations, ``tool_use`` the one
        for conversations with tools.

    Examples
    --------
    >>> from tokenizers import Tokenizer as Core, models, pre_tokenizers
    >>> core = Core(models.WordLevel({"the": 0, "cat": 1, "</s>": 2, "?": 3}, unk_token="?"))
    >>> core.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = Tokenizer(core, {"eos_token": "</s>"})
    >>> tokenizer.encode("the cat the dog")
    [0, 1, 0, 3]
    >>> tokenizer.decode([0, 1]), tokenizer.eos_id, tokenizer.bos_id
    ('the cat', 2, None)
    """

    core: "tokenizers.Tokenizer"
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Load the tokenizer of a model folder.

        Parameters
        ----------
        folder : Path
            A folder with at least tokenizer.json.

        Returns
        -------
        Tokenizer
            The tokenizer, which neither truncates nor pads, whatever was set when it was saved.

        Raises
        ------
        CheckpointError
            If tokenizer.json is missing, or a file is damaged.
        """
        return cls(read_core(folder), read_special_tokens(folder), read_chat_templates(folder))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's V may be rounded up from it."""
        return self.core.get_vocab_size(with_added_tokens=True)

    @property
    def bos_id(self) -> int | None:
        """Id of the token that begins a text; ``None`` if the folder names none, or none it has."""
        return self._id_of_role("bos_token")

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a text; ``None`` if the folder names none, or none it has."""
        return self._id_of_role("eos_token")

    def id_of(self, token: str) -> int | None:
        """Give the id of a token of the vocabulary, spelled as there; ``None`` if there is none."""
        return self.core.token_to_id(token)

    def _id_of_role(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self.id_of(token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Turn text into ids.

        Parameters
        ----------
        text : str
            Any text. A special token spelled out in it becomes that token.
        add_special_tokens : bool
            Put the tokens around the text that tokenizer.json prescribes, often one that begins it.
            Say False for the text of `render_chat`, which has them already.

        Returns
        -------
        list of int
            The ids, shape (T,).

        Raises
        ------
        PromptError
            If the text holds half of a surrogate pair, which is no character.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"expected text of whole characters, got the lone surrogate {text[error.start]!r} "
                f"at position {error.start}; decode the text's source as UTF-8 or UTF-16"
            ) from error
        return self.core.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text.

        Parameters
        ----------
        ids : sequence of int
            Ids of shape (T,). One beyond the vocabulary, which a model with a rounded-up V can
            produce, has no text.
        skip_special_tokens : bool
            Leave special tokens out of the text.

        Returns
        -------
        str
            The text. Bytes that are no character read as U+FFFD, an unfinished character as one.
        """
        tokens = (self.token_of(token_id, skip_special_tokens=skip_special_tokens) for token_id in ids)
        return self.joiner.join([token for token in tokens if token is not None])

    def stream(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """Give a decoder for ids that come one at a time, which gives what `decode` gives in all."""
        token_of = partial(self.token_of, skip_special_tokens=skip_special_tokens)
        return StreamDecoder(token_of, self.joiner)

    def token_of(self, token_id: int, *, skip_special_tokens: bool = True) -> str | None:
        """Give the token of an id as the vocabulary spells it; ``None`` if it has no text.

        Raises
        ------
        OptionError
            If the id is negative.
        """
        if token_id < 0:
            raise OptionError(f"expected token ids of 0 or more, got {token_id}; look for an 'unset' marker")
        is_skipped = skip_special_tokens and token_id in self.special_ids
        return None if is_skipped else self.core.id_to_token(token_id)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` leaves out."""
        return frozenset(n for n, token in self.core.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def joiner(self) -> TokenJoiner:
        """How tokens become text."""
        return TokenJoiner(self.core.decoder)

    def render_chat(
        self,
        messages: "Sequence[Message]",
        *,
        add_generation_prompt: bool = True,
        clock: Callable[[], datetime] = datetime.now,
        **variables: Any,
    ) -> str:
        """Write a conversation as the text this model was trained on.

        Parameters
        ----------
        messages : sequence of mapping
            The turns, oldest first, each with a ``role`` and a ``content``.
        add_generation_prompt : bool
            End with the beginning of the assistant's next turn.
        clock : callable
            The present moment, for a template that writes today's date.
        **variables
            What else the template reads, such as ``tools``; goes before a special token of that name.

        Returns
        -------
        str
            The prompt with its special tokens: encode it with ``add_special_tokens=False``.

        Raises
        ------
        ChatTemplateError
            If there is no template, or it fails.
        """
        from qkv.tokens import chat  # and Jinja, which is only for this

        template = self._chat_template(with_tools=variables.get("tools") is not None)
        given = {**self.special_tokens, "add_generation_prompt": add_generation_prompt, **variables}
        return chat.render(template, messages, clock=clock, **given)

    def _chat_template(self, *, with_tools: bool) -> str:
        name = "tool_use" if with_tools and "tool_use" in self.chat_templates else "default"
        if name not in self.chat_templates:
            names = ", ".join(self.chat_templates) or "none"
            raise ChatTemplateError(
                f"expected a default chat template in the model's folder, found {names}; "
                "pass a plain prompt instead of messages, or add a file chat_template.jinja"
            )
        return self.chat_templates[name]
