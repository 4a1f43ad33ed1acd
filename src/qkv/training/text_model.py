"""A model of a text, from the files to the folder that holds it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import OptionError
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.loading import load
from qkv.tokens import Tokenizer
from qkv.tokens.bpe import LEAST_V, train_bpe
from qkv.training.batches import Windows
from qkv.training.curve import Curve, Evaluation
from qkv.training.export import Stored, export, rounded
from qkv.training.llama import TrainableLlama
from qkv.training.loop import Progress, evaluate, train
from qkv.training.presets import Settings
from qkv.training.text import Split
from qkv.training.token_file import MOST_V
from qkv.training.whole_file import make_folder

WORK = "training"
"""The folder, in the model's, of what is needed to go on: checkpoint and tokens."""


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model, the text it learns and the tokenizer that was made for it.

    Parameters
    ----------
    folder : Path
        Where the model goes.
    settings : Settings
    split : Split
    tokenizer : Tokenizer
    data : Windows
    model : TrainableLlama
    """

    folder: Path
    settings: Settings
    split: Split
    tokenizer: Tokenizer
    data: Windows
    model: TrainableLlama

    @classmethod
    def begin(cls, split: Split, settings: Settings, folder: Path) -> "TextModel":
        """Learn a vocabulary from the text to be trained on, write all tokens, draw the first weights.

        Raises
        ------
        OptionError
            If the text is too small for the vocabulary or the windows.
        CheckpointError
            If the folder cannot be written to.
        """
        check_vocabulary(settings.V)
        work = make_folder(folder / WORK)
        tokenizer = train_bpe((document.text for document in split.train), settings.V)
        data = Windows.of(split, tokenizer, work, B=settings.B, T=settings.T, seed=settings.seed)
        model = TrainableLlama.begin(LlamaConfig.from_dict(settings.config()), settings.seed)
        return cls(folder, settings, split, tokenizer, data, model)

    @property
    def checkpoint(self) -> Path:
        """The file that a training goes on from."""
        return self.folder / WORK / "checkpoint.safetensors"

    def train(
        self,
        *,
        evaluate_every: int = 250,
        checkpoint_every: int = 100,
        accept_changes: bool = False,
        on_step: Callable[[Progress], None] = lambda progress: None,
    ) -> Curve:
        """Train to the last step, from the first or from the checkpoint: see `qkv.training.loop.train`."""
        return train(
            self.model,
            self.data,
            self.settings,
            self.checkpoint,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            accept_changes=accept_changes,
            on_step=on_step,
        )

    def snapshot(self, stored: Stored = "bfloat16") -> Llama:
        """Return the model as it is now, to generate with, by way of a folder beside the checkpoint."""
        folder = self.folder / WORK / "snapshot"
        export(folder, self.model.parameters, self.settings, self.tokenizer, "", stored)
        loaded = load(folder)
        assert isinstance(loaded, Llama), "that is what was written"
        return loaded

    def evaluate_stored(self, stored: Stored, step: int) -> Evaluation:
        """Examine the model as its file has it, with rounded parameters."""
        as_stored = TrainableLlama(self.model.config, rounded(self.model.parameters, stored))
        return evaluate(as_stored, self.data, step)

    def export(self, card: str, stored: Stored = "bfloat16") -> None:
        """Write the model as it is now: see `qkv.training.export.export`."""
        export(self.folder, self.model.parameters, self.settings, self.tokenizer, card, stored)


def check_vocabulary(V: int) -> None:
    """Raise `OptionError` unless V tokens have a place for each byte, and are told apart by two bytes."""
    if not LEAST_V <= V <= MOST_V:
        raise OptionError(f"expected a vocabulary of {LEAST_V} to {MOST_V} tokens, got {V}")
