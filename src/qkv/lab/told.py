"""What is told of a prompt before it is read, and what is found when it has been: tokens and cache bytes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkv.cache.contiguous import CacheShape
from qkv.lab.own_texts import Ids
from qkv.lab.result import Number
from qkv.models import Model, new_cache

Planned = Callable[[CacheShape, int], int]
"""A cache's shape and a number of tokens, to bytes."""

RULE_OF_THUMB = 4
"""Characters of a token."""


def told(model: Model, texts: Ids, planned: Planned) -> dict[str, Number | float]:
    """Compare what is told of prompts with what a cache finds, by length; nothing without a tokenizer.

    The first prompt is a part of the first text, the last one the whole of the last.
    """
    if model.tokenizer is None:
        return {}
    prompts = [model.tokenizer.decode(text.tolist()) for text in texts]
    prompts = [prompt[: len(prompt) * n // len(texts)] for n, prompt in enumerate(prompts, start=1)]
    found = [told_and_found(model, prompt, planned) for prompt in prompts]
    by_rule = [len(prompt) / RULE_OF_THUMB for prompt in prompts]
    tokens = [one.found_tokens for one in found]
    rule = [characters / count for characters, count in zip(by_rule, tokens, strict=True)]
    return {
        "prompts": len(prompts),
        "prompt_tokens": sum(tokens),
        "prompt_bytes": sum(one.found_bytes for one in found),
        "told_bytes": sum(one.told_bytes for one in found),
        "tokens_off": max(abs(one.told_tokens - one.found_tokens) for one in found),
        "bytes_off": max(abs(one.told_bytes - one.found_bytes) for one in found),
        "rule": Number.of(rule),
        "rule_off": Number.of([abs(one - 1) for one in rule]),
    }


@dataclass(frozen=True)
class Told:
    """Tokens and cache bytes of one prompt, as told before and as found after it was read."""

    told_tokens: int
    found_tokens: int
    told_bytes: int
    found_bytes: int


def told_and_found(model: Model, prompt: str, planned: Planned) -> Told:
    """Count a prompt, plan for it, then read it."""
    assert model.tokenizer is not None
    ids, cache = model.tokenizer.encode(prompt), new_cache(model)
    model.next_logits(np.array(ids), cache)
    return Told(len(ids), cache.length, planned(model.cache_shape, len(ids)), cache.nbytes)
