"""What the command line is before any command: a list of them, a hint for a slip, and an exit status."""

import inspect
import sys
from importlib import import_module

import pytest

from qkv.app.cli.main import COMMANDS, main


@pytest.fixture
def qkv(monkeypatch, capsys):
    """Run the command line; return exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkv", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_every_command_is_listed_with_its_first_line(qkv, arguments):
    status, out, err = qkv(*arguments)
    assert (status, err) == (0, "")
    words = " ".join(out.replace("│", " ").split())
    for name in COMMANDS:
        function = getattr(import_module(f"qkv.app.cli.{name}"), name)
        first = " ".join(str(inspect.getdoc(function)).split("\n\n")[0].split())
        assert f"{name} {first}" in words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_of_its_own(qkv, name):
    status, out, err = qkv(name, "--help")
    assert (status, err) == (0, "")
    assert "Usage:" in out and f"{name} [OPTIONS]" in out


def test_a_slip_is_met_with_the_nearest_command(qkv):
    assert qkv("pln") == (2, "", "error: No such command 'pln'. Did you mean 'plan'?\n")
    assert qkv("xyz") == (2, "", "error: No such command 'xyz'.\n")
