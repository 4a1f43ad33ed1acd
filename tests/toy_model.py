"""Models small enough for thousands of steps of an engine."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.cache import StepCache
from qkv.cache.contiguous import CacheShape
from qkv.models.step import Step
from qkv.tokens import Tokenizer

D = 2
BYTES_PER_TOKEN = 2 * D * 4


class ToyModel:
    """One attention over codes of the tokens, and a fixed way from what it gives to logits.

    Its numbers go through the cache like those of any model, and every logit depends on every token before
    it: whoever reads a page too many, or one of another text, gets other logits.
    """

    def __init__(
        self, V: int = 31, end_ids: Sequence[int] = (), context_length: int = 1000, window: int | None = None
    ) -> None:
        rng = np.random.default_rng(0)
        self.vocab_size, self.end_ids, self.context_length = V, frozenset(end_ids), context_length
        self.tokenizer: Tokenizer | None = None
        self.cache_shape = CacheShape(num_layers=1, num_kv_heads=1, head_dim=D)
        self.rotation, self.fingerprint = None, "toy"
        self.window = window
        self.codes = rng.normal(size=(3, V, D)).astype(np.float32)
        self.head = rng.normal(size=(V, D)).astype(np.float32)
        self.tokens_run: list[int] = []

    def hidden(self, ids: Any, cache: StepCache | None = None) -> np.ndarray:
        step = Step.of(ids, cache, None)
        self.tokens_run.append(step.ids.size)
        q, k, v = (codes[step.ids][:, None] for codes in self.codes)  # B 1 T D
        placed = k + 0.1 * np.sin(step.positions, dtype=np.float32)[:, None, :, None]
        x = step.attend(0, q, placed, v, window=self.window)[:, 0] + 0.5 * v[:, 0]
        return step.unpack(x)

    def unembed(self, x: np.ndarray) -> np.ndarray:
        along, across = (x[..., d, None] * self.head[:, d] for d in range(D))
        return 3 * (along + across)

    def logits(self, ids: Any, cache: StepCache | None = None, mask: Any = None) -> np.ndarray:
        assert mask is None
        return self.unembed(self.hidden(ids, cache))

    def next_logits(self, ids: Any, cache: StepCache | None = None, mask: Any = None) -> np.ndarray:
        assert mask is None
        return self.unembed(self.hidden(ids, cache)[..., -1, :])


class ScriptedModel(ToyModel):
    """Says one id after the other behind a prompt of one token, whatever it reads."""

    def __init__(
        self, script: Sequence[int], tokenizer: Tokenizer | None = None, end_ids: Sequence[int] = ()
    ) -> None:
        super().__init__(V=1000, end_ids=end_ids)
        self.script, self.tokenizer = list(script), tokenizer

    def hidden(self, ids: Any, cache: StepCache | None = None) -> np.ndarray:
        assert cache is not None
        positions = cache.positions(np.size(ids))
        super().hidden(ids, cache)
        return positions[..., None].astype(np.float32)

    def unembed(self, x: np.ndarray) -> np.ndarray:
        logits = np.zeros((*x.shape[:-1], self.vocab_size), np.float32)
        for place in np.ndindex(x.shape[:-1]):
            logits[(*place, self.script[int(x[place][0])])] = 9.0
        return logits
