"""Sizes and settings that were found to go together, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from qkv.errors import OptionError
from qkv.training.schedule import Schedule


@dataclass(frozen=True)
class Settings:
    """All that a training depends on, besides its text: the same settings give the same losses.

    Attributes
    ----------
    V, E, F, L, H, G, D : int
        The model's sizes, by the dimension key.
    T : int
        Tokens of a window in training, and the model's context length.
    B : int
        Windows of a step.
    steps : int
    learning_rate, last_share : float
        The highest rate, and the share of it that is left at the end.
    warm_up : float
        Share of the steps in which the rate rises.
    weight_decay : float
        Of matrices; the scales of norms do not decay.
    betas : (float, float)
        AdamW's.
    max_norm : float
        The length that gradients are shortened to.
    dropout : float
        Share of what a branch adds that is left out.
    seed : int
        Of the first weights, the windows and the dropout.
    """

    V: int
    E: int
    F: int
    L: int
    H: int
    G: int
    D: int
    T: int
    B: int
    steps: int
    learning_rate: float
    warm_up: float = 0.05
    last_share: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    max_norm: float = 1.0
    dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in (*SIZES, "B", "steps")}
        wrong = [f"{name} {value}" for name, value in sizes.items() if value < 1]
        if wrong:
            raise OptionError(f"expected sizes of at least 1, got {', '.join(wrong)}")
        if self.H % self.G:
            raise OptionError(f"expected H to be a multiple of G, got H {self.H} and G {self.G}")
        if not 0 <= self.dropout < 1 or not self.max_norm > 0:
            raise OptionError(
                f"expected dropout from 0 to below 1, got {self.dropout}, "
                f"and max_norm above 0, got {self.max_norm}"
            )
        self.schedule  # noqa: B018 - which raises where it makes no sense

    @property
    def schedule(self) -> Schedule:
        """The learning rate of each step."""
        return Schedule(self.learning_rate, self.steps, int(self.warm_up * self.steps), self.last_share)

    @property
    def num_parameters(self) -> int:
        """Numbers that are learned: the table of tokens, and each layer's matrices and norms.

        Examples
        --------
        >>> PRESETS["tiny"].num_parameters
        252384
        """
        attention = self.D * (2 * self.H + 2 * self.G) * self.E
        return self.V * self.E + self.L * (attention + 3 * self.E * self.F + 2 * self.E) + self.E

    def config(self) -> dict[str, Any]:
        """Return the config.json of the model, as qkv and transformers read it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.V,
            "hidden_size": self.E,
            "intermediate_size": self.F,
            "num_hidden_layers": self.L,
            "num_attention_heads": self.H,
            "num_key_value_heads": self.G,
            "head_dim": self.D,
            "max_position_embeddings": self.T,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
        }


SIZES = ("V", "E", "F", "L", "H", "G", "D", "T")
"""The settings that a model keeps for life; the others may change between two stretches of training."""

PRESETS: Mapping[str, Settings] = {
    "tiny": Settings(V=512, E=96, F=256, L=2, H=4, G=2, D=24, T=128, B=16, steps=600, learning_rate=3e-3),
    "small": Settings(
        V=2048,
        E=192,
        F=512,
        L=6,
        H=6,
        G=2,
        D=32,
        T=512,
        B=8,
        steps=3000,
        learning_rate=2e-3,
        dropout=0.1,
    ),
}


def preset(name: str, **changes: Any) -> Settings:
    """Return a preset with some settings changed.

    Raises
    ------
    OptionError
        If there is no preset or setting of that name, or the settings contradict each other.

    Examples
    --------
    >>> preset("tiny", steps=300).steps
    300
    """
    if name not in PRESETS:
        raise OptionError(f"expected a preset of {', '.join(PRESETS)}, got {name!r}")
    known = {field.name: getattr(PRESETS[name], field.name) for field in fields(Settings)}
    unknown = sorted(changes.keys() - known)
    if unknown:
        raise OptionError(f"no setting {unknown[0]!r}; there are {', '.join(known)}")
    return Settings(**{**known, **changes})
