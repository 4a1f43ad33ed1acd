"""What prompts are made of, and how much of them is said more than once.

A server that shares prefixes stores a page of P tokens once, if everything before it is the same too.
What is repeated inside one prompt is stored and paid for each time, and can only be trimmed by whoever
writes the prompt.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REPEATED_SPAN = 32
"""Tokens in a row that count as a repeat; shorter ones are the language's own."""


@dataclass(frozen=True)
class Request:
    """One prompt: its parts as (name, text), such as ``("system", "You are ...")``, and the whole."""

    parts: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True)
class Usage:
    """Tokens of all requests.

    Parameters
    ----------
    num_requests : int
    tokens : int
        Of the whole prompts.
    by_part : mapping of str to int
        Of each kind of part; ``template`` is what the chat template adds.
    page_size : int
        P.
    shared_tokens : int
        In full pages that an earlier request began with too.
    repeated_tokens : int
        In spans of 32 tokens or more that stand a second time in the same prompt.
    repeating_requests : int
        How many prompts have such spans.
    """

    num_requests: int
    tokens: int
    by_part: Mapping[str, int]
    page_size: int
    shared_tokens: int
    repeated_tokens: int
    repeating_requests: int


def measure_usage(
    requests: Sequence[Request], encode: Callable[[str], Sequence[int]], page_size: int = 16
) -> Usage:
    """Count the tokens of requests, by part, across requests, and inside each.

    Parameters
    ----------
    requests : sequence of Request
        In the order in which they come.
    encode : callable
        Text to token ids.
    page_size : int
        P.

    Returns
    -------
    Usage

    Examples
    --------
    Two requests of 40 and 41 characters with a common beginning of 37; a token is a character here.

    >>> system = "Answer in one word, whatever is asked"
    >>> requests = [Request((("system", system), ("user", ask)), system + ask) for ask in ("1+1", "Why?")]
    >>> usage = measure_usage(requests, lambda text: [ord(letter) for letter in text], page_size=16)
    >>> usage.tokens, usage.by_part, usage.shared_tokens
    (81, {'system': 74, 'user': 7}, 32)
    """
    ids = [np.asarray(encode(request.text), np.int64) for request in requests]
    repeats = [repeated_tokens(each) for each in ids]
    return Usage(
        num_requests=len(requests),
        tokens=sum(map(len, ids)),
        by_part=_tokens_by_part(requests, ids, encode),
        page_size=page_size,
        shared_tokens=shared_tokens(ids, page_size),
        repeated_tokens=sum(repeats),
        repeating_requests=sum(count > 0 for count in repeats),
    )


def shared_tokens(ids: Sequence[NDArray[np.int64]], page_size: int) -> int:
    """Return how many tokens lie in full pages that a request before began with as well.

    Examples
    --------
    >>> shared_tokens([np.arange(10), np.arange(7), np.arange(1, 9)], page_size=3)
    6
    """
    known: dict[tuple[int, bytes], int] = {}  # the page before, its tokens: the page
    found = 0
    for each in ids:
        before = 0
        for start in range(0, len(each) - page_size + 1, page_size):
            page = (before, each[start : start + page_size].tobytes())
            if page in known:
                found += page_size
            before = known.setdefault(page, len(known) + 1)
    return found


def repeated_tokens(ids: NDArray[np.int64], span: int = REPEATED_SPAN) -> int:
    """Return how many tokens lie in spans that stand earlier in the same prompt, word for word.

    Examples
    --------
    >>> repeated_tokens(np.array([1, 2, 3, 9, 1, 2, 3, 7]), span=3)
    3
    """
    first_seen: dict[bytes, int] = {}
    repeated = np.zeros(len(ids), bool)
    for start in range(len(ids) - span + 1):
        first = first_seen.setdefault(ids[start : start + span].tobytes(), start)
        if first + span <= start:  # a span does not repeat itself
            repeated[start : start + span] = True
    return int(repeated.sum())


def _tokens_by_part(
    requests: Sequence[Request], ids: Sequence[NDArray[np.int64]], encode: Callable[[str], Sequence[int]]
) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for request, whole in zip(requests, ids, strict=True):
        stated = {name: 0 for name, _ in request.parts}
        for name, text in request.parts:
            stated[name] += len(encode(text))
        counts.update(stated)
        added = len(whole) - sum(stated.values())
        if added > 0:
            counts["template"] += added
    return dict(counts)
