"""What can go wrong, as types a caller can catch.

Every message says what was expected, what came, and what to try.
"""


class QKVError(Exception):
    """Any error that qkv raises about what it was given."""


class ShapeError(QKVError, ValueError):
    """Arrays whose axes do not fit together."""


class OptionError(QKVError, ValueError):
    """An option whose value has no meaning, such as a window of 0."""


class CheckpointError(QKVError):
    """A model folder that cannot be loaded: missing, damaged, or of an unknown kind."""


class PromptError(QKVError, ValueError):
    """A prompt that cannot be run: no token at all, or more than the model's context."""


class NumericError(QKVError, ArithmeticError):
    """Numbers from which nothing can be concluded, such as logits of NaN."""


class CacheFull(QKVError, MemoryError):  # noqa: N818
    """Pages that do not fit into a pool's byte budget; the pool is as it was before they were asked for.

    Parameters
    ----------
    asked_pages, page_nbytes : int
        How many pages were asked for, of how many bytes each.
    free_bytes, idle_bytes : int
        What the budget has left, and what is held only to be found again and could be given back.
    budget_bytes : int
    longest_tokens : int, optional
        How many tokens a text may have so that it fits, where that is known.

    Examples
    --------
    >>> raise CacheFull(asked_pages=7, page_nbytes=100, free_bytes=250, idle_bytes=300, budget_bytes=1000)
    Traceback (most recent call last):
    qkv.errors.CacheFull: 7 pages of 100 bytes do not fit: of the budget of 1000 bytes 250 are free and 300
    could be given back, enough for 5 pages; free or trim a sequence, or give the pool a larger budget
    """

    def __init__(
        self,
        asked_pages: int,
        page_nbytes: int,
        free_bytes: int,
        idle_bytes: int,
        budget_bytes: int,
        longest_tokens: int | None = None,
    ) -> None:
        super().__init__(asked_pages, page_nbytes, free_bytes, idle_bytes, budget_bytes, longest_tokens)
        self.asked_pages = asked_pages
        self.page_nbytes = page_nbytes
        self.free_bytes = free_bytes
        self.idle_bytes = idle_bytes
        self.budget_bytes = budget_bytes
        self.longest_tokens = longest_tokens

    @property
    def pages_that_fit(self) -> int:
        """How many pages of the asked size there would be room for."""
        return (self.free_bytes + self.idle_bytes) // self.page_nbytes

    def __str__(self) -> str:
        advice = "free or trim a sequence, or give the pool a larger budget"
        if self.longest_tokens is not None:
            advice = f"the longest text that fits has {self.longest_tokens} tokens, new ones included"
        return (
            f"{self.asked_pages} pages of {self.page_nbytes} bytes do not fit: "
            f"of the budget of {self.budget_bytes} bytes {self.free_bytes} are free "
            f"and {self.idle_bytes} could be given back, enough for {self.pages_that_fit} pages; {advice}"
        )


class TrimError(QKVError, ValueError):
    """A cache that cannot go back so far, as tokens it would then need again are gone or changed."""


class CacheFileError(QKVError):
    """A saved cache that cannot be read or written, is damaged, or is of another model, policy or shape."""


class PlanError(QKVError, ValueError):
    """A plan that cannot be made: a config that leaves the cache's size open, or an empty request."""


class CheckpointWarning(UserWarning):
    """Something in a model folder that was not used, or was overruled by the config."""


class ChatTemplateError(QKVError):
    """A chat template that is missing, fails, or reaches for what a template may not touch."""
