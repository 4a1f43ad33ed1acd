"""What heads are called, in words and in colours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadName:
    """How a name from `qkv.lab.head_labels` is shown.

    Parameters
    ----------
    meaning : str
        What such a head looks at.
    short : str
        At most six letters; none for what has no name.
    sign : str
        One letter, where many heads stand side by side.
    style : str
        In a terminal.
    light, dark : str
        Colour on white and on black.
    """

    meaning: str
    short: str
    sign: str
    style: str
    light: str
    dark: str


HEAD_NAMES = {
    "previous": HeadName("the token before", "prev", "P", "bold yellow", "#b45309", "#fbbf24"),
    "local": HeadName("the last four tokens", "local", "L", "yellow", "#a16207", "#fde68a"),
    "first": HeadName("the first token (a sink)", "first", "F", "blue", "#1d4ed8", "#93c5fd"),
    "delimiter": HeadName("what divides the text", "delim", "D", "magenta", "#a21caf", "#f0abfc"),
    "induction": HeadName("what followed last time", "induct", "I", "bold green", "#15803d", "#86efac"),
    "duplicate": HeadName("the same token, earlier", "dupl", "=", "green", "#0f766e", "#5eead4"),
    "diffuse": HeadName("almost all alike", "diff", "·", "dim", "#64748b", "#94a3b8"),
    "other": HeadName("few tokens, no such rule", "other", "o", "white", "#475569", "#cbd5e1"),
    "too short": HeadName("unknown", "", " ", "dim", "#64748b", "#94a3b8"),
}
"""In the order in which they are listed."""
