"""The models that come with qkv: trained by its own code, small enough to lie in the package."""

from pathlib import Path

from qkv.errors import CheckpointError

SHIPPED = ("verse", "recall")
"""``verse`` writes like Shakespeare; ``recall`` repeats sequences and looks up values by their keys."""


def folder_of(name: str | Path) -> Path:
    """Return where a model lies: one that comes with qkv by its name, any other by its path.

    Raises
    ------
    CheckpointError
        If a model that should have come with qkv is missing from this installation.

    Examples
    --------
    >>> folder_of("verse").name
    'verse'
    >>> folder_of("./verse") == Path("verse")
    True
    """
    if name not in SHIPPED:
        return Path(name)
    folder = Path(__file__).parent / "trained" / name
    if not (folder / "model.safetensors").exists():
        raise CheckpointError(f"{folder} is missing from this installation; `make models` trains it anew")
    return folder
