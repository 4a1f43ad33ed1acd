"""A prompt that is given as token ids."""

from collections.abc import Iterable
from typing import Any

from qkv.arguments import as_whole, shown
from qkv.errors import PromptError


def whole_ids(prompt: Any) -> list[int]:
    """Return the ids of a prompt that is no text; whether a model has them is for others to say.

    Raises
    ------
    PromptError
        If they are no whole numbers, or bytes, which are text that nobody has decoded.

    Examples
    --------
    >>> whole_ids((5, 7))
    [5, 7]
    """
    is_bytes = isinstance(prompt, bytes | bytearray)
    ids = [as_whole(token_id) for token_id in prompt] if isinstance(prompt, Iterable) else [None]
    whole = [token_id for token_id in ids if token_id is not None]
    if is_bytes or len(whole) < len(ids):
        advice = "; decode it first" if is_bytes else ""
        raise PromptError(f"a prompt is text or a sequence of token ids, not {shown(prompt)}{advice}")
    return whole
