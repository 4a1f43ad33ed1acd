"""The model card: what a model was made from, how well it does, and what it is not good for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkv.training.curve import Curve, Evaluation
from qkv.training.export import Stored
from qkv.training.presets import Settings
from qkv.training.text import Document
from qkv.training.text_model import TextModel

TEXT_LIMITS = (
    "It knows its text and nothing else: it follows no instructions and answers no questions.",
    "Names and phrases of its text may come back word for word, and so may what is offensive in it.",
)


@dataclass(frozen=True)
class Card:
    """What a card says, in order.

    Attributes
    ----------
    title, summary : str
    data : sequence of str
        Where it is from, how much of it there is, what was held out.
    settings : Settings
    results : mapping of str to str
        What was measured, and the figure.
    command : str
        Makes the same model again.
    limits : sequence of str
    sample : str
        Text that it wrote; empty for none.
    """

    title: str
    summary: str
    data: Sequence[str]
    settings: Settings
    results: Mapping[str, str]
    command: str
    limits: Sequence[str]
    sample: str = ""

    def markdown(self) -> str:
        """Return the card as the README.md of the model's folder."""
        sections = [
            f"# {self.title}\n\n{self.summary}",
            "## Data\n\n" + _items(self.data),
            "## Training\n\n" + _items(training_lines(self.settings)) + f"\n\n```\n{self.command}\n```",
            "## Results\n\n" + _table(self.results),
            "## Limits\n\n" + _items(self.limits),
        ]
        if self.sample:
            sections.append(f"## Sample\n\n```\n{self.sample.strip()}\n```")
        return "\n\n".join(sections) + "\n"


def text_card(
    model: TextModel,
    curve: Curve,
    evaluation: Evaluation,
    *,
    title: str,
    stored: Stored,
    command: str,
    source: Sequence[str] = (),
    sample: str = "",
) -> Card:
    """Return the card of a model of a text.

    Parameters
    ----------
    model : TextModel
    curve : Curve
    evaluation : Evaluation
        Of the parameters as they are stored: see `TextModel.evaluate_stored`.
    title : str
    stored : "bfloat16", "float16" or "float32"
    command : str
    source : sequence of str
        Where the text is from, and whom it belongs to.
    sample : str
    """
    sizes, split = model.settings, model.split
    return Card(
        title=title,
        summary=(
            f"A Llama of {sizes.num_parameters:,} parameters, stored as {stored}, that continues text. "
            "It was trained from nothing by qkv, on a CPU."
        ),
        data=[
            *source,
            f"trained on {_amount(split.train)}, {len(model.data.train):,} tokens",
            f"held out, and never trained on: {_amount(split.held_out)}, "
            f"{len(model.data.held_out_tokens):,} tokens ({', '.join(_names(split.held_out))})",
            f"tokens: byte-level BPE of {sizes.V:,}, learned from the text that was trained on",
        ],
        settings=sizes,
        results=text_results(curve, evaluation, stored, sizes.dropout > 0),
        command=command,
        limits=[*TEXT_LIMITS, f"It was made for {sizes.T:,} tokens of context."],
        sample=sample,
    )


def text_results(curve: Curve, evaluation: Evaluation, stored: Stored, with_dropout: bool) -> dict[str, str]:
    """Return the figures of a model of a text, and how they came about."""
    last = curve.losses[-100:]
    how = ", with dropout" if with_dropout else ""
    return {
        f"held-out text, as stored in {stored}, bits per byte": f"{evaluation.bits_per_byte:.3f}",
        "the same, nats per token": f"{evaluation.nats_per_token:.3f}",
        f"last {len(last)} batches of training{how}, nats per token": f"{sum(last) / len(last):.3f}",
    }


def training_lines(settings: Settings) -> list[str]:
    """Return how a model is built, and how it was trained, in a few lines."""
    s = settings
    return [
        f"V {s.V}, E {s.E}, F {s.F}, L {s.L}, H {s.H}, G {s.G}, D {s.D}, context {s.T}; "
        "tied embedding, rotary positions, RMSNorm, SiLU",
        f"{s.steps:,} steps of {s.B} windows of {s.T} tokens: {s.steps * s.B * s.T:,} tokens in all",
        f"AdamW, betas {s.betas[0]:g} and {s.betas[1]:g}, weight decay {s.weight_decay:g} on matrices; "
        f"gradients clipped to {s.max_norm:g}; dropout {s.dropout:g}; seed {s.seed}",
        f"learning rate up to {s.learning_rate:g} over the first {s.warm_up:.0%} of the steps, then down "
        f"half a cosine to {s.last_share:.0%} of that",
    ]


def _amount(documents: Sequence[Document]) -> str:
    count = len(documents)
    nbytes = sum(document.nbytes for document in documents)
    return f"{count:,} text{'s' if count > 1 else ''} of {nbytes:,} bytes"


def _names(documents: Sequence[Document], most: int = 8) -> list[str]:
    names = [document.name.removesuffix(".txt") for document in documents]
    return names if len(names) <= most else [*names[:most], f"{len(names) - most} more"]


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(
        ["| what | figure |", "|---|---|", *(f"| {name} | {figure} |" for name, figure in rows.items())]
    )
