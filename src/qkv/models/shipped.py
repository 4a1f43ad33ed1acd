"""The models that come with qkv: trained by its own code, small enough to lie in the package."""

from pathlib import Path

from qkv.arguments import shown
from qkv.errors import CheckpointError

SHIPPED = ("verse", "recall", "recall-recent", "siblings/mha", "siblings/gqa", "siblings/mqa")
"""``verse`` writes like Shakespeare; ``recall`` repeats sequences and looks up values by their keys;
``recall-recent`` is its twin that was asked mostly for what came last. The three siblings are smaller than
``verse``, and differ in their key heads alone."""


def folder_of(name: str | Path) -> Path:
    """Return where a model lies: one that comes with qkv by its name, any other by its path.

    Raises
    ------
    CheckpointError
        If it is no name, or a model that should have come with qkv is missing from this installation.

    Examples
    --------
    >>> folder_of("verse").name
    'verse'
    >>> folder_of("./verse") == Path("verse")
    True
    """
    if not isinstance(name, str | Path):
        raise CheckpointError(f"a model is named by a folder, or as 'verse' is, not by {shown(name)}")
    if name not in SHIPPED:
        return Path(name)
    folder = Path(__file__).parent / "trained" / name
    if not (folder / "model.safetensors").exists():
        raise CheckpointError(f"{folder} is missing from this installation; `make models` trains it anew")
    return folder
