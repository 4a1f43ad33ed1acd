"""The `qkv` command: its sub-commands, and one clear line for whatever goes wrong."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from qkv.app.cli.bench import bench
from qkv.app.cli.compare import compare
from qkv.app.cli.generate import INTERRUPTED, generate
from qkv.app.cli.lab import lab
from qkv.app.cli.plan import plan
from qkv.app.cli.tokens import tokens
from qkv.app.cli.train import train
from qkv.errors import QKVError

BAD_INPUT = 2
"""Exit status for input that cannot be used."""

app = typer.Typer(name="qkv", add_completion=False, pretty_exceptions_enable=False)
app.command()(generate)
app.command()(compare)
app.command()(plan)
app.command()(tokens)
app.command()(train)
app.command()(bench)
app.command()(lab)


def show_version(wanted: bool) -> None:
    """Print the version and end, if asked to."""
    if wanted:
        typer.echo(f"qkv {version('qkv')}")
        raise typer.Exit


@app.callback(invoke_without_command=True, help="Transformer attention you can read, see, measure and run.")
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Show the help where no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line; the entry point of the package."""
    try:
        status = app(standalone_mode=False)
    except (QKVError, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(BAD_INPUT) from None
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(status)
