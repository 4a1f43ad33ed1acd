"""Tokenizers of every kind, built in code, each with words, parts of characters and special tokens."""

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from qkv.tokens import Tokenizer

ROLES = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIAL = ["<unk>", "<s>", "</s>"]


def numbered(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}


def wrapped(core: Core) -> Tokenizer:
    core.add_special_tokens(SPECIAL)
    core.add_tokens([AddedToken("<think>", special=False), AddedToken("你好", special=False)])
    return Tokenizer(core, ROLES)


def letters(text: str) -> str:
    """Spell text in the letters of a byte-level vocabulary."""
    [(spelled, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return spelled


def byte_level() -> Tokenizer:
    grin, world, space = letters("😀"), letters("世"), letters(" ")
    parts = [grin[:2], grin[2:], space + grin[:3], grin[3:] + "x" + world[:1], world, world[1:] + grin[:1]]
    words = ["th", "the", space + "t", space + "th", "an", ""]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), (space, "t"), (space + "t", "h"), ("a", "n"), (grin[0], grin[1])]
    core = Core(models.BPE(numbered([*SPECIAL, *alphabet, *parts, *words]), merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return wrapped(core)


def sentencepiece_model() -> models.BPE:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁▁", "▁t", "th", "the", "▁the", "世", "\ufffd", *"abcdefghijklmnopqrstuvwxyz.!"]
    merges = [("▁", "▁"), ("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "t")]
    return models.BPE(
        numbered([*SPECIAL, *byte_tokens, *words]), merges, unk_token="<unk>", byte_fallback=True
    )


def llama() -> Tokenizer:
    core = Core(sentencepiece_model())
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return wrapped(core)


def gemma() -> Tokenizer:
    core = Core(sentencepiece_model())
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return wrapped(core)


def metaspace() -> Tokenizer:
    core = Core(models.BPE(numbered([*SPECIAL, "▁", "▁▁", "▁a", *"abc.", "<0xE4>"]), [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return wrapped(core)


def wordpiece() -> Tokenizer:
    words = ["the", "cat", "##s", ".", "n't", "do", "not", "'", "##'", "世", "\ufffd"]
    core = Core(models.WordPiece(numbered([*SPECIAL, *words]), unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return wrapped(core)


def end_of_word() -> Tokenizer:
    core = Core(
        models.BPE(numbered([*SPECIAL, "a", "b", "a</w>", "b</w>", "</w>", ".</w>"]), [], unk_token="<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.BPEDecoder()
    return wrapped(core)


def word_list() -> Tokenizer:
    core = Core(
        models.WordLevel(numbered([*SPECIAL, "the", "cat", "", "\ufffd", "<0xE4>"]), unk_token="<unk>")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return wrapped(core)


BUILDERS = {
    builder.__name__: builder
    for builder in [byte_level, llama, gemma, metaspace, wordpiece, end_of_word, word_list]
}
