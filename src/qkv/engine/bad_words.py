"""Words that a text must not contain, as the token ids that would spell them.

A word that is given as text is spelled by the tokenizer, as it stands and behind a space: most vocabularies
have one token for a word that begins a text and another for one inside it. A model can still write the word
in other pieces, or with another capital; what is ruled out is what the tokenizer itself would write.
"""

from collections.abc import Iterable, Sequence

from qkv.arguments import shown
from qkv.errors import OptionError
from qkv.tokens import Tokenizer

BadWord = str | Sequence[int]


def spell(words: Sequence[BadWord], tokenizer: Tokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of words, for `qkv.ops.sampling.Sampling`.

    Parameters
    ----------
    words : sequence of str or of sequences of int
        Ids are taken as they are.
    tokenizer : Tokenizer or None
        Of the model.

    Raises
    ------
    OptionError
        If words are one text instead of several, one is empty, or is text and there is no tokenizer.

    Examples
    --------
    >>> spell([[5, 7], (11,)], tokenizer=None)
    ((5, 7), (11,))
    """
    if isinstance(words, str):
        raise OptionError(f"bad_words are several words, such as [{words!r}], not one text")
    if not isinstance(words, Iterable):
        raise OptionError(f"bad_words are several words, such as ['was'], not {shown(words)}")
    spellings = [ids for word in words for ids in _spellings(word, tokenizer)]
    return tuple(dict.fromkeys(spellings))


def _spellings(word: BadWord, tokenizer: Tokenizer | None) -> list[tuple[int, ...]]:
    if not isinstance(word, str | Sequence):
        raise OptionError(f"a bad word is text or a sequence of token ids, not {word!r}")
    if not isinstance(word, str):
        return [tuple(word)]
    if tokenizer is None:
        raise OptionError(
            f"the model's folder has no tokenizer.json to spell the bad word {word!r}; give token ids"
        )
    spellings = [tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}")]
    if not word or not all(spellings):
        raise OptionError(f"a bad word must give at least one token, and {word!r} gives none")
    return [tuple(ids) for ids in spellings]
