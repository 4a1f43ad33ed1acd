"""Three small models of one text that differ in nothing but their key heads, each trained from three seeds.

=======  ==============  ========================================================================
name     G, of H 8       what it is
=======  ==============  ========================================================================
``mha``  8, one for one  multi-head attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)
``gqa``  2, one for 4    grouped queries (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245)
``mqa``  1 for all       multi-query (Shazeer 2019, https://arxiv.org/abs/1911.02150)
=======  ==============  ========================================================================

All see the same text, as the same tokens, in the same windows of a seed, for as many steps. Fewer key heads
are fewer parameters too, and nothing makes up for those: that is part of what grouping costs.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from qkv.errors import CheckpointError
from qkv.models.llama import LlamaConfig
from qkv.training.card import text_card
from qkv.training.curve import Curve, Evaluation
from qkv.training.export import Stored
from qkv.training.llama import TrainableLlama
from qkv.training.loop import Progress
from qkv.training.presets import Settings
from qkv.training.text_model import WORK, TextModel
from qkv.training.whole_file import make_folder, write_text

KEY_HEADS: Mapping[str, int] = {"mha": 8, "gqa": 2, "mqa": 1}
SEEDS = (0, 1, 2)
SETTINGS = Settings(
    V=1024, E=128, F=320, L=3, H=8, G=8, D=16, T=256, B=8, steps=600, learning_rate=2e-3, warm_up=0.1
)
STORED: Stored = "float16"
RECORD = "held_out.json"


@dataclass(frozen=True, eq=False)
class Trained:
    """A sibling after its last step.

    Attributes
    ----------
    model : TextModel
    curve : Curve
    evaluation : Evaluation
        On the held-out text, with parameters as they are stored.
    """

    model: TextModel
    curve: Curve
    evaluation: Evaluation


@dataclass(frozen=True)
class HeldOut:
    """What each sibling's held-out text came to when it was trained, seed by seed.

    Attributes
    ----------
    texts : list of str
        Names of the texts that were held out.
    steps : int
    seeds : list of int
    bits_per_byte : dict of str to list of float
        By the sibling's name, in the order of seeds, with parameters as they are stored.

    Examples
    --------
    >>> HeldOut(["tempest"], 1000, [0, 1], {"mha": [2.25, 2.0], "gqa": [2.5, 2.0]}).mean("gqa")
    2.25
    """

    texts: list[str]
    steps: int
    seeds: list[int]
    bits_per_byte: dict[str, list[float]]

    def mean(self, name: str) -> float:
        """Return a sibling's bits per byte over all seeds."""
        return fmean(self.bits_per_byte[name])

    def write(self, folder: Path) -> None:
        """Write the record beside the models' folders, whole or not at all."""
        write_text(folder / RECORD, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "HeldOut":
        """Read what `write` wrote.

        Raises
        ------
        CheckpointError
            If it is not there or holds something else.
        """
        path = folder / RECORD
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{path} is not the record of a training ({error}); `make models` writes it anew"
            ) from error


def train_sibling(
    first: TextModel,
    name: str,
    seed: int,
    folder: Path,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> Trained:
    """Train one sibling from one seed, or go on from where its folder was left.

    Parameters
    ----------
    first : TextModel
        Not trained itself: gives the text, its tokens, and the settings but for G and the seed.
    name : str
        Of `KEY_HEADS`.
    seed : int
    folder : Path
        Where this training works, and nothing else.
    on_step : callable
        Told how far it is after each step.

    Raises
    ------
    CheckpointError
        If the folder holds another training, or cannot be written to.
    """
    settings = replace(first.settings, G=KEY_HEADS[name], seed=seed)
    make_folder(folder / WORK)
    model = replace(
        first,
        folder=folder,
        settings=settings,
        data=replace(first.data, seed=seed),
        model=TrainableLlama.begin(LlamaConfig.from_dict(settings.config()), seed),
    )
    curve = model.train(evaluate_every=settings.steps, on_step=on_step)
    return Trained(model, curve, model.evaluate_stored(STORED, curve.num_steps))


def held_out_of(trained: Mapping[str, list[Trained]]) -> HeldOut:
    """Return the record of all siblings, each from the same seeds in the same order."""
    models = [one.model for one in next(iter(trained.values()))]
    return HeldOut(
        [document.name.removesuffix(".txt") for document in models[0].split.held_out],
        models[0].settings.steps,
        [model.settings.seed for model in models],
        {name: [_bits(one.evaluation) for one in seeds] for name, seeds in trained.items()},
    )


def export_sibling(
    one: Trained, name: str, record: HeldOut, folder: Path, command: str, source: list[str]
) -> None:
    """Write a sibling's folder, with all siblings' held-out losses in its card."""
    model = replace(one.model, folder=folder)
    card = text_card(
        model, one.curve, one.evaluation, title=name, stored=STORED, source=source, command=command
    )
    sizes = model.settings
    card = replace(
        card,
        summary=f"{card.summary} It has {sizes.H} query heads and G = {sizes.G} for keys and values; "
        "its siblings differ in G alone.",
        results={**card.results, **_rows(record)},
    )
    model.export(card.markdown(), STORED)


def _rows(record: HeldOut) -> dict[str, str]:
    seeds = ", ".join(map(str, record.seeds))
    return {
        f"{name}, G {KEY_HEADS[name]}: bits per byte from seeds {seeds}": " · ".join(
            f"{bits:.4f}" for bits in all_
        )
        for name, all_ in record.bits_per_byte.items()
    }


def _bits(evaluation: Evaluation) -> float:
    assert evaluation.bits_per_byte is not None, "what was held out is text"
    return evaluation.bits_per_byte
