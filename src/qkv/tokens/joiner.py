"""Tokens to text: a tokenizer's own decoder, made safe for text that arrives token by token.

A vocabulary spells text in one of three ways:

============= ============================================ =====================
spelling      a token is                                   met in
============= ============================================ =====================
byte-level    bytes, each written as one printable letter  GPT-2, Llama 3, Qwen
byte-fallback text, or one byte written ``<0xE4>``         Llama 2, Gemma
text          text                                         BERT, word lists
============= ============================================ =====================

In the first two a character may be spread over several tokens, so a text cut after any token can
end inside a character. Bytes that are no character read as U+FFFD, once for each maximal subpart
(The Unicode Standard, section 3.9, the rule `bytes.decode` follows). The stock byte-fallback
decoder would instead turn the whole run of byte tokens around a bad byte, good characters
included, into one U+FFFD per byte: a later token could then change text that has been shown.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a third of the time that `import qkv` takes
    from tokenizers.decoders import Decoder


REPLACEMENT = "\ufffd"

Spelling = Literal["byte-level", "byte-fallback", "text"]


@dataclass(frozen=True)
class TokenJoiner:
    r"""Join the tokens of one tokenizer into text.

    Parameters
    ----------
    decoder : tokenizers.decoders.Decoder or None
        The decoder of the tokenizer; ``None`` puts a space between tokens.

    Examples
    --------
    >>> from tokenizers import decoders
    >>> joiner = TokenJoiner(decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]))
    >>> joiner.spelling
    'byte-fallback'
    >>> joiner.join(["A", "<0xC4>", "<0x8F>"])
    'Aď'
    >>> joiner.join(["A", "<0xC4>"]), joiner.settled(["A", "<0xC4>"])
    ('A\ufffd', 'A')
    """

    decoder: "Decoder | None"

    @cached_property
    def spelling(self) -> Spelling:
        """How the vocabulary spells text, found by letting the decoder read a newline."""
        if self.decoder is not None and self.decoder.decode(["Ċ"]) == "\n":
            return "byte-level"
        if self.decoder is not None and self.decoder.decode(["<0x0A>"]) == "\n":
            return "byte-fallback"
        return "text"

    def join(self, tokens: Sequence[str]) -> str:
        """Give the text of `tokens`, taken as a whole text from its first token on."""
        if self.decoder is None:
            return " ".join(tokens)
        if self.spelling == "byte-fallback":
            return self.decoder.decode(list(mended(tokens)))
        return self.decoder.decode(list(tokens))

    def settled(self, tokens: Sequence[str]) -> str:
        """Give the start of `join(tokens)` that no further token can change.

        Parameters
        ----------
        tokens : sequence of str
            Tokens of the vocabulary.

        Returns
        -------
        str
            All but an unfinished last character.
        """
        text = self.join(tokens)
        return text.removesuffix(REPLACEMENT) if self.ends_inside_character(tokens) else text

    def ends_inside_character(self, tokens: Sequence[str]) -> bool:
        """Tell whether the last bytes of `tokens` are the beginning of a character."""
        return bool(self.unfinished_bytes(tokens))

    def unfinished_bytes(self, tokens: Sequence[str]) -> bytes:
        """Give the last bytes of `tokens` that are only the beginning of a character."""
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            data = self.bytes_of(token)
            if data is None:
                utf8.reset()
            else:
                utf8.decode(data)
        unfinished, _ = utf8.getstate()
        return unfinished

    def bytes_of(self, token: str) -> bytes | None:
        """Give the bytes a token stands for, or ``None`` for a token that is text."""
        if self.spelling == "byte-level":
            return level_bytes(token)
        if self.spelling == "byte-fallback" and (byte := fallback_byte(token)) is not None:
            return bytes([byte])
        return None


def fallback_byte(token: str) -> int | None:
    """Read a byte-fallback token such as ``<0xE4>``; ``None`` for any other token.

    Examples
    --------
    >>> fallback_byte("<0xE4>"), fallback_byte("the")
    (228, None)
    """
    spelled = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return int(spelled[1], 16) if spelled else None


def level_bytes(token: str) -> bytes:
    """Read a byte-level token; one with a letter outside the alphabet is plain text (an added token).

    Examples
    --------
    >>> level_bytes("Ġhi"), level_bytes("ðŁ").hex(" ")
    (b' hi', 'f0 9f')
    """
    if all(letter in BYTE_OF_LETTER for letter in token):
        return bytes(BYTE_OF_LETTER[letter] for letter in token)
    return token.encode()


def level_alphabet() -> dict[str, int]:
    """Give GPT-2's letter for each byte: itself if printable, else the next one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF_LETTER = level_alphabet()


def mended(tokens: Sequence[str]) -> Iterator[str]:
    """Put U+FFFD in place of the byte-fallback tokens that are no character, and leave the others.

    Examples
    --------
    >>> list(mended(["<0xC4>", "<0x8F>", "<0xC4>", "a"]))
    ['<0xC4>', '<0x8F>', '\ufffd', 'a']
    """
    for is_text, run in groupby(tokens, key=lambda token: fallback_byte(token) is None):
        if is_text:
            yield from run
        else:
            data = bytes(byte for token in run if (byte := fallback_byte(token)) is not None)
            for character in data.decode("utf-8", errors="replace"):
                yield from spelled_in_bytes(character)


def spelled_in_bytes(character: str) -> list[str]:
    """Spell a character in byte-fallback tokens; U+FFFD stays a character."""
    if character == REPLACEMENT:
        return [REPLACEMENT]
    return [f"<0x{byte:02X}>" for byte in character.encode()]
