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


class CheckpointWarning(UserWarning):
    """Something in a model folder that was not used, or was overruled by the config."""


class ChatTemplateError(QKVError):
    """A chat template that is missing, fails, or reaches for what a template may not touch."""
