"""What a comparison of cache policies and weights finds: numbers, before anyone draws them."""

from dataclasses import dataclass

import numpy as np

from qkv.cache import Policy


@dataclass(frozen=True)
class Divergence:
    """Where a policy first prefers another token.

    Attributes
    ----------
    position : int
        How many tokens of the text are the same before it.
    expected_id, chosen_id : int
        The most likely token with the full cache, and with this one.
    """

    position: int
    expected_id: int
    chosen_id: int


@dataclass(frozen=True)
class Compared:
    """What one policy, or one form of the weights, made of the text, token by token.

    Attributes
    ----------
    policy : Policy
        Of the cache.
    kl : tuple of float
        ``KL(full || policy)`` in nats.
    agrees : tuple of bool
        Whether the most likely token is the full cache's.
    log_probs : tuple of float
        Of the text's own tokens.
    divergence : Divergence or None
        ``None`` if every choice was the same.
    nbytes, peak_nbytes : int
        Of the cache: at the end, and at most, what a step holds only while it runs included.
    dropped_tokens : int
        What an eviction dropped, summed over layers and key heads.
    prefill_seconds, decode_seconds : float
        Spent in the model on the prompt, and on all tokens of the text that were fed, one by one.
    weights : str
        The name of another model that ran in the model's place, such as "int8"; empty for the model itself.
    """

    policy: Policy
    kl: tuple[float, ...]
    agrees: tuple[bool, ...]
    log_probs: tuple[float, ...]
    divergence: Divergence | None
    nbytes: int
    peak_nbytes: int
    dropped_tokens: int
    prefill_seconds: float
    decode_seconds: float
    weights: str = ""

    @property
    def mean_kl(self) -> float:
        """Nats per token."""
        return float(np.mean(self.kl))

    @property
    def max_kl(self) -> float:
        """Nats at the worst token."""
        return max(self.kl)

    @property
    def agreement(self) -> float:
        """The share of tokens at which the most likely one is the full cache's."""
        return float(np.mean(self.agrees))

    @property
    def perplexity(self) -> float:
        """Of the text: ``exp`` of minus the mean of ``log_probs``."""
        return float(np.exp(-np.mean(self.log_probs)))

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens fed one by one over the time they took; 0 if there were none."""
        num_steps = len(self.kl) - 1
        return num_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass(frozen=True)
class NotCompared:
    """A policy that does not fit the model, or failed on the way, and why; or other weights that did."""

    policy: Policy
    reason: str
    weights: str = ""


@dataclass(frozen=True)
class Comparison:
    """One text, the full cache, and the policies and other weights beside it.

    Attributes
    ----------
    prompt_ids, text_ids : tuple of int
        The prompt went in at once; the text's tokens were predicted one by one.
    full : Compared
        The float32 cache of everything.
    rows : tuple of Compared or NotCompared
        In the order asked for, policies first.
    """

    prompt_ids: tuple[int, ...]
    text_ids: tuple[int, ...]
    full: Compared
    rows: tuple[Compared | NotCompared, ...]

    @property
    def compared(self) -> tuple[Compared, ...]:
        """The rows that have figures."""
        return tuple(row for row in self.rows if isinstance(row, Compared))

    @property
    def not_compared(self) -> tuple[NotCompared, ...]:
        """The others."""
        return tuple(row for row in self.rows if isinstance(row, NotCompared))
