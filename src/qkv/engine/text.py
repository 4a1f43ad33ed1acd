"""The text of new tokens, as far as it can be shown: whole characters, and nothing of a stop string."""

from collections.abc import Sequence

from qkv.tokens import StopMatcher, Tokenizer


class NewText:
    """Turns the ids behind a prompt into pieces of text.

    Parameters
    ----------
    tokenizer : Tokenizer or None
        Without one there is no text.
    prompt_ids : sequence of int
        They give no text, but tell how the first new token is written: with the space before it, say.
    stop : sequence of str
        The text ends before the first of them.

    Raises
    ------
    OptionError
        If a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer | None, prompt_ids: Sequence[int], stop: Sequence[str]) -> None:
        self._stops = StopMatcher(stop)
        self._prompt_ids = prompt_ids
        self._decoder = None if tokenizer is None else tokenizer.stream()
        self._begun = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self._stops.stopped

    def push(self, token_id: int) -> str:
        """Take the next id and give the text that can be shown now."""
        if self._decoder is None:
            return ""
        if not self._begun:
            self._begun = True
            for prompt_id in self._prompt_ids:
                self._decoder.push(prompt_id)
        return self._stops.push(self._decoder.push(token_id))

    def finish(self) -> str:
        """Give what was withheld, when no more is to come."""
        rest = "" if self._decoder is None else self._decoder.finish()
        return self._stops.push(rest) + self._stops.finish()
