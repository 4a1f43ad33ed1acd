"""Train the recall model from nothing and write its folder: `python recipes/recall.py FOLDER`.

Killed at any moment, the same command goes on. With `--recent` the rows are the same, but only what stood
near is asked for.
"""

import sys
from pathlib import Path

import numpy as np
from rich.progress import Progress as Bar

from qkv.errors import QKVError
from qkv.models import load
from qkv.models.llama import LlamaConfig
from qkv.training.card import Card
from qkv.training.export import export
from qkv.training.freed_memory import keep_freed_memory
from qkv.training.llama import TrainableLlama
from qkv.training.loop import train
from qkv.training.presets import Settings
from qkv.training.recall import (
    CURRICULUM,
    RECENT,
    VOCAB_SIZE,
    Demand,
    RecallData,
    accuracy_by_position,
    draw_questions,
    recent,
    uniform,
)
from qkv.training.whole_file import make_folder

SETTINGS = Settings(
    V=VOCAB_SIZE,
    E=128,
    F=384,
    L=2,
    H=4,
    G=2,
    D=32,
    T=CURRICULUM[-1].T,
    B=32,
    steps=4500,
    learning_rate=1e-3,
    warm_up=0.02,
    betas=(0.9, 0.99),
)
DEVIATION = 0.05
"""Of the first weights: with 0.02 the heads that look back take far longer to form."""

ASKED: dict[Demand, str] = {
    uniform: "every pair as often",
    recent: f"what the row told within {RECENT} tokens, and half as often for every two tokens beyond; "
    "so also in the pieces",
}
PAIRS = (8, 16, 32)
ROWS_EACH = 32
SUMMARY = (
    "A Llama of {parameters:,} parameters, stored as float16, that looks things up: it repeats what followed "
    "a symbol before, and answers with the value of a key. It was trained from nothing by qkv, on a CPU."
)


def main(folder: Path, demand: Demand = uniform) -> None:
    data = RecallData(SETTINGS.B, SETTINGS.seed, demand)
    model = TrainableLlama.begin(LlamaConfig.from_dict(SETTINGS.config()), SETTINGS.seed, DEVIATION)
    checkpoint = make_folder(folder / "training") / "checkpoint.safetensors"
    with Bar() as bar:
        task = bar.add_task("training", total=SETTINGS.steps)
        train(
            model,
            data,
            SETTINGS,
            checkpoint,
            on_step=lambda done: bar.update(
                task, completed=done.step, description=f"nats per answer {done.loss:.3f}"
            ),
        )
    export(folder, model.parameters, SETTINGS, None, "", "float16")
    results = examine(folder)
    export(folder, model.parameters, SETTINGS, None, card_of(folder, demand, results).markdown(), "float16")
    print("\n".join(f"{what}: {figure}" for what, figure in results.items()))


def examine(folder: Path) -> dict[str, str]:
    """Ask the model as it is stored, every position as often as any other."""
    model, generator = load(folder), np.random.default_rng(1)
    results = {}
    for N in PAIRS:
        accuracy = accuracy_by_position(model, draw_questions(generator, N, ROWS_EACH))
        results[f"right answers, {N} pairs"] = f"{accuracy.mean():.2%}"
        octiles = [part.mean() for part in np.array_split(accuracy, 8)]
        results[f"the same, from the first eighth to the last, {N} pairs"] = " ".join(
            f"{octile:.1%}" for octile in octiles
        )
    return results


def card_of(folder: Path, demand: Demand, results: dict[str, str]) -> Card:
    return Card(
        title=folder.resolve().name,
        summary=SUMMARY.format(parameters=SETTINGS.num_parameters),
        data=(
            "made by `qkv.training.recall` from a seed, without end; few symbols and short rows at first",
            "half of the rows: a block of symbols, then pieces of it again, in any order",
            f"the other half: 2 to 32 pairs of a key and a value, then questions; asked for {ASKED[demand]}",
        ),
        settings=SETTINGS,
        results=results,
        command=f"python recipes/recall.py {folder}{'' if demand is uniform else ' --recent'}",
        limits=(
            "Its ids are symbols without a meaning; it has no tokenizer and knows no language.",
            "Beyond 32 pairs, the most it was trained on, it gets worse.",
        ),
    )


if __name__ == "__main__":
    keep_freed_memory()
    try:
        main(Path(sys.argv[1]), recent if "--recent" in sys.argv else uniform)
    except QKVError as error:
        sys.exit(f"error: {error}")
