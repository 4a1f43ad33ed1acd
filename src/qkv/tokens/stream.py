"""Ids to text, one id at a time.

A chat shows its answer while it is generated. Decoding each id alone would break characters that
are spread over several tokens and lose the spaces between words; decoding the whole text again for
each id costs quadratic time. The stream decodes a short window of tokens, before and after the new
one, and gives the difference.

    window   anchor ▁quick ▁bro        text  "anchor quick bro"
    + wn     anchor ▁quick ▁bro wn     text  "anchor quick brown"   ->  "wn"
"""

from collections.abc import Callable

from qkv.tokens.joiner import TokenJoiner

ANCHOR = "anchor"
"""Any ordinary word: as first token it takes the decoder's start-of-text rules upon itself."""

MAX_CONTEXT_TOKENS = 3
"""An unfinished character has at most three bytes, so at most three tokens hold its beginning."""


class StreamDecoder:
    r"""Decode ids as they come: never half a character, and in sum what decoding them at once gives.

    Both promises hold for decoders in which a token's text depends on that token, on being the first
    or the last, and on bytes shared with its neighbours. Those are the decoders of the `tokenizers`
    library but for two, after a `Fuse`: a `Replace` that matches across tokens, a `Strip` at the end.

    Parameters
    ----------
    token_of : callable
        The token of an id, or ``None`` for an id without text.
    joiner : TokenJoiner
        How tokens become text.

    Examples
    --------
    >>> from tokenizers import decoders
    >>> tokens = {0: "A", 1: "Ġ", 2: "ä¸", 3: "ĸ", 4: "a", 5: "ðŁ"}
    >>> stream = StreamDecoder(tokens.get, TokenJoiner(decoders.ByteLevel()))
    >>> [stream.push(token_id) for token_id in [0, 1, 2, 3, 4, 5]]
    ['A', ' ', '', '世', 'a', '']
    >>> stream.finish()
    '\ufffd'
    """

    def __init__(self, token_of: Callable[[int], str | None], joiner: TokenJoiner) -> None:
        self._token_of = token_of
        self._joiner = joiner
        self._start: list[str] = []
        self._recent: list[str] = []

    def push(self, token_id: int) -> str:
        """Take the next id and give the text it completes.

        Parameters
        ----------
        token_id : int
            The next id of the text.

        Returns
        -------
        str
            The new text; empty while a character is unfinished, and for an id without text.
        """
        token = self._token_of(token_id)
        if token is None:
            return ""
        shown = self._joiner.settled(self._start + self._recent)
        self._recent.append(token)
        new_text = self._joiner.settled(self._start + self._recent)[len(shown) :]
        # Rules such as "strip one leading space" are for the first text that comes out: until then
        # the window begins as the text does, from then on the anchor stands for the beginning.
        if new_text:
            self._start = [ANCHOR]
        self._recent = self._recent_with_text()[-MAX_CONTEXT_TOKENS:]
        return new_text

    def finish(self) -> str:
        """Give what is still withheld, at most one U+FFFD, and be ready for another text.

        Returns
        -------
        str
            The rest of the text: U+FFFD if it ends inside a character, else nothing.
        """
        window = self._start + self._recent
        self._start, self._recent = [], []
        return self._joiner.join(window)[len(self._joiner.settled(window)) :]

    def _recent_with_text(self) -> list[str]:
        # A token of no bytes must not take the place of one that holds the beginning of a character.
        return [token for token in self._recent if self._joiner.bytes_of(token) != b""]
