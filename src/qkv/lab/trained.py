"""The two trained models that come with qkv, read once."""

from functools import cache

from qkv.errors import CheckpointError, QKVError
from qkv.lab.words import Words
from qkv.models import Model, load
from qkv.models.shipped import folder_of


class NotTestable(QKVError):  # noqa: N818
    """A claim that cannot be tried on this machine, and why.

    Parameters
    ----------
    reason : Words
    """

    def __init__(self, reason: Words) -> None:
        super().__init__(reason.en)
        self.reason = reason


def text_model() -> Model:
    """Return the model that writes text.

    Raises
    ------
    NotTestable
        If it is not there.
    """
    return _shipped("verse")


def recall_model() -> Model:
    """Return the model that finds what it has read.

    Raises
    ------
    NotTestable
        If it is not there.
    """
    return _shipped("recall")


@cache
def _shipped(name: str) -> Model:
    try:
        folder_of(name)
    except CheckpointError:
        missing = Words(f"the trained model {name} is not installed", f"没有安装训练好的模型 {name}")
        raise NotTestable(missing) from None
    return load(name)
