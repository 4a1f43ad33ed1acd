"""Trains a bigram and dies on the way, as a killed process does: run with FILE CALL NUMBER.

CALL is what it dies in: ``fsync``, of which each checkpoint makes two, for the file and for its folder;
``replace``, one each; or ``none``, to be killed from outside.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bigram_model import Bigram, settings, windows
from qkv.training import checkpoint as checkpoint_module
from qkv.training.loop import Progress, train

CHECKPOINT_EVERY = 3


def dying(real: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Do the real thing until the call of that number, counted from 1: kill the process in its place."""
    calls = []

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    return call


def halved(save: Callable[..., bytes]) -> Callable[..., bytes]:
    """Do the real thing once, then write halves: what is there when the process dies is not all."""
    calls = []

    def call(*arguments: Any) -> bytes:
        calls.append(arguments)
        content = save(*arguments)
        return content if len(calls) == 1 else content[: len(content) // 2]

    return call


def show(progress: Progress) -> None:
    sys.stdout.write(f"{progress.step}\n")
    sys.stdout.flush()
    if progress.step == 8:
        sys.stdin.read()  # what comes is the end of this process


def main(path: Path, call: str, number: int) -> None:
    checkpoint: Any = checkpoint_module
    if call == "fsync":
        os.fsync = dying(os.fsync, number)
        if number % 2:  # of the file
            checkpoint.save = halved(checkpoint.save)
    if call == "replace":
        Path.replace = dying(Path.replace, number)
    train(Bigram(), windows(), settings(), path, checkpoint_every=CHECKPOINT_EVERY, on_step=show)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
