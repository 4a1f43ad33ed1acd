"""`qkv attend`: what each head of a model looks at in a text, in the terminal, as a picture or as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.app.cli.console import note
from qkv.app.cli.loading import load_model
from qkv.errors import OptionError

if TYPE_CHECKING:
    from qkv.viz.attention import AttentionView, Head


def attend(
    text: Annotated[str, typer.Argument(help="The text to look at.")],
    model: Annotated[
        str, typer.Option(help="A folder with config.json and safetensors; verse comes with qkv.")
    ] = "verse",
    layer: Annotated[
        int | None, typer.Option(help="With --head: only this one; layers count from 0.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="With --layer: only this one; heads count from 0.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a .png or .svg picture, or a .html page that needs nothing else."),
    ] = None,
) -> None:
    """Show what each head looks at in TEXT: all heads with their names, and the map that shows most."""
    from qkv.viz.attention import require_file, show_attention

    chosen = chosen_head(layer, head)
    if out is not None:
        require_file(out)  # refused before the model is loaded
    view = show_attention(load_model(model), text, Path(model).name)
    if out is None:
        show(view, chosen)
    else:
        view.save(out, chosen)
        note(f"{view.title}: {out}")


def chosen_head(layer: int | None, head: int | None) -> "Head | None":
    """Return the head that was asked for, ``None`` for all.

    Raises
    ------
    OptionError
        If only one half of it was given.
    """
    if layer is None and head is None:
        return None
    if layer is None or head is None:
        raise OptionError("--layer and --head name one head together; give both, or neither for all heads")
    return layer, head


def show(view: "AttentionView", chosen: "Head | None") -> None:
    """Print all heads, or one head's map."""
    from qkv.viz.attention_terminal import head_view, overview

    console = Console(highlight=False)
    width = console.width
    console.print(overview(view, width) if chosen is None else head_view(view, chosen, width))
