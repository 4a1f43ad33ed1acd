"""What commands share that needs no model: lines beside the output, files read, pictures to be drawn."""

from pathlib import Path

import typer

from qkv.errors import OptionError


def note(line: str) -> None:
    """Write a line about the run beside its output, not into it."""
    typer.secho(line, err=True, dim=True)


def read_text(option: str, file: Path) -> str:
    """Return the UTF-8 text of a file that an option names.

    Raises
    ------
    OptionError
        If it cannot be read; the message names both.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise OptionError(f"{option}: {file} is not UTF-8 ({wrong}); convert it first") from error
    except OSError as error:
        raise OptionError(f"{option}: {file} cannot be read: {error.strerror or error}") from error


def require_drawing(path: Path) -> None:
    """Find out that a picture cannot be drawn before time has gone into what it is to show."""
    from qkv.viz.loss import new_figure

    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"--plot cannot write {path}: it must be a file in a folder that exists")
    formats = new_figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise OptionError(f"--plot must be a file ending in .png, .svg or .pdf, not {path.name!r}")
