"""How the command ends, beside well (0) and badly (1)."""

BAD_INPUT = 2
"""Exit status for input that cannot be used."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells count it."""
