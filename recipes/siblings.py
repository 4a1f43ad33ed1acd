"""Train the siblings with 8, 2 and 1 key heads: `python recipes/siblings.py TEXTS FOLDER`.

TEXTS is the folder that recipes/shakespeare.py makes. Killed at any moment, the same command goes on.
"""

import sys
from pathlib import Path

from rich.progress import Progress as Bar

from qkv.errors import QKVError
from qkv.training import siblings
from qkv.training.freed_memory import keep_freed_memory
from qkv.training.presets import Settings
from qkv.training.shakespeare import CREDIT, HELD_OUT
from qkv.training.siblings import Trained
from qkv.training.text import hold_out, read_documents
from qkv.training.text_model import TextModel


def main(texts: Path, folder: Path, settings: Settings = siblings.SETTINGS) -> None:
    first = TextModel.begin(hold_out(read_documents(texts), HELD_OUT), settings, folder)
    trained: dict[str, list[Trained]] = {name: [] for name in siblings.KEY_HEADS}
    with Bar() as bar:
        for seed in siblings.SEEDS:
            for name, of_name in trained.items():
                task = bar.add_task(f"{name}, seed {seed}", total=settings.steps)
                one = siblings.train_sibling(
                    first,
                    name,
                    seed,
                    folder / "training" / f"{name}-{seed}",
                    on_step=lambda done, task=task: bar.update(task, completed=done.step),
                )
                of_name.append(one)
                bar.console.print(f"{name}, seed {seed}: {one.evaluation.bits_per_byte:.4f} bits a byte")
    record = siblings.held_out_of(trained)
    for name, (first, *_) in trained.items():
        command = f"python recipes/siblings.py {texts} {folder}"
        siblings.export_sibling(first, name, record, folder / name, command, [CREDIT])
    record.write(folder)


if __name__ == "__main__":
    keep_freed_memory()
    try:
        main(*map(Path, sys.argv[1:]))
    except QKVError as error:
        sys.exit(f"error: {error}")
