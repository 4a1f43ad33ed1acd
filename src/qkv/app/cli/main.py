"""The `qkv` command: its sub-commands, and one clear line for whatever goes wrong."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from qkv.app.cli.status import BAD_INPUT, FAILED, INTERRUPTED
from qkv.errors import QKVError

COMMANDS = ("generate", "attend", "compare", "plan", "tokens", "train", "lab", "bench")
"""Each is a module beside this one, with a function of the same name."""


VALUE_ERROR = ": Value error, "
"""How typer begins what is wrong with a value; the words between the colons tell a reader nothing."""


class Commands(TyperGroup):
    """Loads a command when it is called or listed, so that none waits for the libraries of the others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # names, until one is asked for

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, ``None`` if there is none."""
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load_command(cmd_name)
        return self.commands.get(cmd_name)


def load_command(name: str) -> Any:
    """Return a command as typer runs it."""
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(import_module(f"qkv.app.cli.{name}"), name))
    return get_command(alone)


app = typer.Typer(name="qkv", cls=Commands, add_completion=False, pretty_exceptions_enable=False)


def show_version(wanted: bool) -> None:
    """Print the version and end, if asked to."""
    if wanted:
        from importlib.metadata import version

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


def drop_unwritten() -> None:
    """Let go of output that cannot be written, or it would be tried once more at the exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line; the entry point of the package."""
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except (QKVError, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        sys.stderr.write(f"error: {message.replace(VALUE_ERROR, ': ')}\n")
        raise SystemExit(BAD_INPUT) from None
    except OSError as error:
        drop_unwritten()
        where = "reading or writing failed" if error.filename is None else error.filename
        sys.stderr.write(f"error: {where}: {error.strerror or error}\n")
        raise SystemExit(FAILED) from None
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(status)
