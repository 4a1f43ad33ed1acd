"""What the command line is before any command: a list of them, a hint for a slip, and an exit status."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [("plan", "gpt2"), ("plan", "--models"), ("--help",)])
def test_output_that_cannot_be_written_is_one_line(arguments):
    command = [sys.executable, "-c", "from qkv.app.cli.main import main; main()", *arguments]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: reading or writing failed: No space left on device\n"


def test_a_file_that_fails_is_named_in_one_line(qkv, monkeypatch):
    def fail(*_, **options):
        raise PermissionError(13, "Permission denied", "model.json")

    monkeypatch.setattr("qkv.app.cli.plan.make_plan", fail)
    assert qkv("plan", "gpt2")[::2] == (1, "error: model.json: Permission denied\n")


def test_a_slip_is_met_with_the_nearest_command(qkv):
    assert qkv("pln") == (2, "", "error: No such command 'pln'. Did you mean 'plan'?\n")
    assert qkv("xyz") == (2, "", "error: No such command 'xyz'.\n")
