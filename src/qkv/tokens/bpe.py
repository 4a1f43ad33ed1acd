"""Train a tokenizer: byte-level BPE, which merges the commonest neighbours until V tokens are there.

It begins with one token per byte, so that every text can be written and comes back as it was (Sennrich
et al. 2016, on bytes as in Radford et al. 2019). A line end is always a token of its own: verse is made
of lines, and a text can be cut at any of them without changing how the rest is read.
"""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from qkv.errors import OptionError
from qkv.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:  # a large library, loaded when a tokenizer is trained
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
"""Stands between two texts, as in GPT-2: it ends the one and begins the other."""

NUM_BYTES = 256
LEAST_V = NUM_BYTES + 1

LEAST_COUNT = 2
"""How often two neighbours must be seen to be merged: once is no rule."""

PORTION = 1 << 16
"""Characters that the library is given at once: what it notes about each token is large."""


def train_bpe(texts: Iterable[str], V: int) -> Tokenizer:
    r"""Learn a vocabulary of exactly V tokens; the same texts give the same one.

    Parameters
    ----------
    texts : iterable of str
        What to learn from.
    V : int
        `END_OF_TEXT`, which has id 0, the 256 bytes, and the merges.

    Returns
    -------
    Tokenizer
        Puts `END_OF_TEXT` before a text, as what begins it; a model says it where a text ends.

    Raises
    ------
    OptionError
        If V is less than the bytes take, or more than there are repeated neighbours to merge.

    Examples
    --------
    >>> tokenizer = train_bpe(["the cat\nthe hat\n"], V=260)
    >>> ids = tokenizer.encode("the hat\n")
    >>> [tokenizer.token_of(token_id, skip_special_tokens=False) for token_id in ids]
    ['<|endoftext|>', 'the', 'Ġ', 'h', 'at', 'Ċ']
    >>> tokenizer.decode(ids)
    'the hat\n'
    """
    if V < LEAST_V:
        raise OptionError(f"expected V of at least {LEAST_V}, the bytes and {END_OF_TEXT}, got {V}")
    core = _new_core()
    core.train_from_iterator((part for text in texts for part in portions(text)), _trainer(V))
    learnt = core.get_vocab_size()
    if learnt != V:
        raise OptionError(
            f"expected a text that supports a vocabulary of {V} tokens, got one that has {learnt} at most; "
            f"give more text, or a V of {learnt} or less"
        )
    core.post_processor = _begin_with(END_OF_TEXT)
    return Tokenizer(core, {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT})


def portions(text: str, size: int = PORTION) -> Iterator[str]:
    r"""Cut a text behind line ends into parts of at least ``size`` characters, whose tokens are its own.

    Examples
    --------
    >>> list(portions("To be,\nor not\nto be", size=3))
    ['To be,\n', 'or not\n', 'to be']
    """
    start = 0
    while start < len(text):
        end = text.find("\n", start + size) + 1 or len(text)
        yield text[start:end]
        start = end


def tokenizer_files(tokenizer: Tokenizer, context_length: int) -> dict[str, str]:
    """Return what a model folder holds of a tokenizer, by file name, as qkv and transformers read it."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokenizer.special_tokens,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    return {
        "tokenizer.json": tokenizer.core.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


def _new_core() -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Core
    from tokenizers import decoders, models, pre_tokenizers

    core = Core(models.BPE())
    line_ends = pre_tokenizers.Split("\n", "isolated")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([line_ends, words])
    core.decoder = decoders.ByteLevel()
    return core


def _trainer(V: int) -> "tokenizers.trainers.BpeTrainer":
    from tokenizers import pre_tokenizers, trainers

    return trainers.BpeTrainer(
        vocab_size=V,
        min_frequency=LEAST_COUNT,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _begin_with(token: str) -> "tokenizers.processors.TemplateProcessing":
    from tokenizers import processors

    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, 0)])
