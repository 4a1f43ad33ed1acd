"""How the command ends, beside well (0)."""

FAILED = 1
"""Exit status for what went badly, such as output that cannot be written."""

BAD_INPUT = 2
"""Exit status for input that cannot be used."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells count it."""
