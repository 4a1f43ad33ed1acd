"""A name for each head, by where most of its attention lies beyond what even attention would put there.

A name says where a head looked, not what it is good for: experiment (c) tries how the two go together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

CLEAR = 0.2
"""A head is named after a pattern that holds this much more of its attention than of even attention's."""
MOST = 0.5
"""The token before is one of the local ones: a head that looks there is ``previous`` from this share on."""
SPREAD = 0.8
"""A head without a pattern is diffuse from this share of even attention's entropy on."""

DIFFUSE, OTHER, TOO_SHORT = "diffuse", "other", "too short"
LEAST_TOKENS = 8
"""In shorter texts every pattern covers too much of what can be seen for a name to mean anything."""


@dataclass(frozen=True)
class Label:
    """What a head is called.

    Parameters
    ----------
    name : str
        A pattern's, ``diffuse`` for a head that spreads, ``other`` for one that picks by none of these
        patterns, ``too short`` where the text is.
    share, even : float
        Of its attention and of even attention, what lies on the pattern; 0 without one.
    """

    name: str
    share: float = 0.0
    even: float = 0.0

    @property
    def has_pattern(self) -> bool:
        """Whether the name is a pattern's."""
        return self.name not in (DIFFUSE, OTHER, TOO_SHORT)


def label(shares: Mapping[str, float], even: Mapping[str, float], entropy: float) -> Label:
    """Name a head.

    Parameters
    ----------
    shares, even : mapping of str to float
        What lies on each pattern, of the head's attention and of even attention.
    entropy : float
        As a share of even attention's.

    Examples
    --------
    >>> even = {"previous": 0.1, "local": 0.3, "first": 0.1}
    >>> label({"previous": 0.6, "local": 0.9, "first": 0.0}, even, 0.2)
    Label(name='previous', share=0.6, even=0.1)
    >>> label({"previous": 0.2, "local": 0.9, "first": 0.0}, even, 0.6)
    Label(name='local', share=0.9, even=0.3)
    >>> label({"previous": 0.1, "local": 0.3, "first": 0.1}, even, 0.99).name
    'diffuse'
    """
    beyond = {name: share - even[name] for name, share in shares.items()}
    best = max(beyond, key=lambda name: beyond[name])
    if best == "local" and shares["previous"] >= MOST:
        best = "previous"
    if beyond[best] < CLEAR:
        return Label(DIFFUSE if entropy >= SPREAD else OTHER)
    return Label(best, shares[best], even[best])
