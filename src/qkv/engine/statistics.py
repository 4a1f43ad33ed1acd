"""What an engine did and how fast: for each step, for each text, and in all."""

from dataclasses import dataclass
from typing import Any

from qkv.models.weights import weights_of

LOOKED_UP = frozenset({"embedding", "position_embedding"})
"""Tables of which a step reads only the rows of its tokens."""


@dataclass(frozen=True)
class Memory:
    """What caches take while all texts of a step have their pages.

    Attributes
    ----------
    pages, nbytes : int
        Of the pool: each page counts once.
    idle_bytes : int
        How many of those bytes are kept for later requests only, and given up when somebody needs them.
    held_bytes : int
        Of the pages of every text that runs; a page that several share counts for each.
    predicted_bytes : int
        What that was predicted to be, from the lengths of the texts and their policies alone.
    """

    pages: int = 0
    nbytes: int = 0
    idle_bytes: int = 0
    held_bytes: int = 0
    predicted_bytes: int = 0


@dataclass(frozen=True)
class StepStatistics:
    """One step.

    Attributes
    ----------
    step : int
        Its number, from 1.
    read_tokens, decoded_tokens : int
        Tokens run: of prompts and of texts read anew; and of texts that each were to give one more.
    new_tokens : int
        Tokens chosen.
    cached_tokens : int
        Tokens found in shared pages, and not run, by those who began with this step.
    preemptions : int
        Texts that had to give way for it.
    running, waiting : int
        Texts behind it.
    memory : Memory
    weight_bytes : int
        Of the model; a step reads them once.
    seconds : float
    """

    step: int
    read_tokens: int
    decoded_tokens: int
    new_tokens: int
    cached_tokens: int
    preemptions: int
    running: int
    waiting: int
    memory: Memory
    weight_bytes: int
    seconds: float

    @property
    def bytes_read(self) -> int:
        """At least so many: the weights, and the keys and values of every text, each once."""
        return self.weight_bytes + self.memory.held_bytes

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes read over the time, in 1e9 per second; 0 where no time passed."""
        return self.bytes_read / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class RequestStatistics:
    """One text, so far.

    Attributes
    ----------
    queue_seconds, prefill_seconds, decode_seconds : float
        From its submission to its first step, from there to its first token, and from there to its end or
        to now. Where it had to give way and wait, that is part of the last two.
    prompt_tokens, new_tokens, cached_tokens : int
        Tokens of the prompt and made; most tokens that were found in pages of other texts, or of its own.
    preemptions, evicted_tokens : int
        How many times it gave way; what its policy has evicted, summed over layers and key heads.
    peak_kv_bytes : int
        Bytes of its pages at most, those included that it shares.
    """

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prompt_tokens: int
    new_tokens: int
    cached_tokens: int
    preemptions: int
    evicted_tokens: int
    peak_kv_bytes: int

    @property
    def seconds_to_first_token(self) -> float:
        """As its caller sees it."""
        return self.queue_seconds + self.prefill_seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first over the time they took; 0 if there was only one."""
        more = self.new_tokens - 1
        return more / self.decode_seconds if more > 0 and self.decode_seconds > 0 else 0.0


@dataclass(frozen=True)
class EngineStatistics:
    """All steps together.

    Attributes
    ----------
    steps : int
    read_tokens, decoded_tokens, new_tokens, cached_tokens, preemptions, bytes_read : int
        Sums of those of `StepStatistics`.
    peak : Memory
        Of the step in which texts held the most.
    seconds : float
        Spent in steps.
    """

    steps: int = 0
    read_tokens: int = 0
    decoded_tokens: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    bytes_read: int = 0
    peak: Memory = Memory()
    seconds: float = 0.0

    def after(self, step: StepStatistics) -> "EngineStatistics":
        """Return the sums with one step more."""
        return EngineStatistics(
            steps=self.steps + 1,
            read_tokens=self.read_tokens + step.read_tokens,
            decoded_tokens=self.decoded_tokens + step.decoded_tokens,
            new_tokens=self.new_tokens + step.new_tokens,
            cached_tokens=self.cached_tokens + step.cached_tokens,
            preemptions=self.preemptions + step.preemptions,
            bytes_read=self.bytes_read + step.bytes_read,
            peak=max(self.peak, step.memory, key=lambda memory: memory.held_bytes),
            seconds=self.seconds + step.seconds,
        )

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the time spent in steps."""
        return self.new_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes read over the time, in 1e9 per second."""
        return self.bytes_read / self.seconds / 1e9 if self.seconds > 0 else 0.0


def weight_nbytes(model: Any) -> int:
    """Return the bytes of a model's weights that a step reads: all but the tables of embeddings.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> import numpy as np
    >>> Model = make_dataclass("Model", ["embedding", "layers", "head"])
    >>> table = np.zeros((7, 2), np.float32)
    >>> weight_nbytes(Model(table, (np.zeros(3, np.float32), table), head=table))
    68
    """
    return sum({id(array): array.nbytes for array in weights_of(model, LOOKED_UP)}.values())
