"""Stop strings: end a text before the first of them, without showing its beginning."""

from collections.abc import Collection, Sequence

from qkv.arguments import shown
from qkv.errors import OptionError


class StopMatcher:
    """Let text through up to the first stop string, however the text is cut into pieces.

    Text is withheld only while it is the beginning of a stop string. The match that begins earliest
    wins, and of those that begin together the shortest, since it is complete first.

    Parameters
    ----------
    stops : sequence of str
        The strings to stop at; none lets everything through.

    Raises
    ------
    OptionError
        If a stop string is empty, or `stops` is one string instead of a list.

    Examples
    --------
    >>> matcher = StopMatcher(["own fox"])
    >>> [matcher.push(piece) for piece in ["The quick br", "own", " fox", " jumps"]]
    ['The quick br', '', '', '']
    >>> matcher.matched
    'own fox'

    What looked like a stop and was none comes out with the next piece, or at the end:

    >>> matcher = StopMatcher(["own fox"])
    >>> matcher.push("br"), matcher.push("own"), matcher.push("er"), matcher.push(" ow"), matcher.finish()
    ('br', '', 'owner', ' ', 'ow')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise OptionError(f"expected a list of stop strings, got the string {stops!r}; try [{stops!r}]")
        if not isinstance(stops, Collection) or not all(isinstance(stop, str) for stop in stops):
            raise OptionError(f"expected a list of stop strings, such as ['.'], got {shown(stops)}")
        if "" in stops:
            raise OptionError("expected stop strings of one character or more, got ''; leave it out")
        self._stops = tuple(stops)
        self._withheld = ""
        self.matched: str | None = None
        """The stop string the text ended at, or ``None`` so far."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met; whatever is pushed from then on is dropped."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """Take the next piece and give the text that no stop string can claim any more.

        Parameters
        ----------
        text : str
            The next piece of the text, of any length.

        Returns
        -------
        str
            Text to show: a part of what was withheld and of `text`.
        """
        if self.stopped:
            return ""
        text = self._withheld + text
        open_start = self._open_start(text)
        match_start, _ = self._first_match(text)
        # A complete stop waits for one that began before it and may yet complete.
        if match_start <= open_start:
            return self._up_to_match(text)
        self._withheld = text[open_start:]
        return text[:open_start]

    def finish(self) -> str:
        """Give the text still withheld, when no more is to come.

        Returns
        -------
        str
            All of it, or what stands before a stop string that had waited for an earlier one.
        """
        return "" if self.stopped else self._up_to_match(self._withheld)

    def _up_to_match(self, text: str) -> str:
        start, self.matched = self._first_match(text)
        self._withheld = ""
        return text[:start]

    def _first_match(self, text: str) -> tuple[int, str | None]:
        """Give the earliest and then shortest stop string in `text`, or its end and ``None``."""
        found = [(text.find(stop), len(stop), stop) for stop in self._stops if stop in text]
        start, _, stop = min(found, default=(len(text), 0, None))
        return start, stop

    def _open_start(self, text: str) -> int:
        """Give the first position from which the rest of `text` begins a stop string, or its end."""
        longest = max(map(len, self._stops), default=0)
        starts = range(max(0, len(text) - longest + 1), len(text))
        return next((start for start in starts if self._begins_a_stop(text[start:])), len(text))

    def _begins_a_stop(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)
