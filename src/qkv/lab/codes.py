"""(h) Keys and values in 8 bits take half of what they take in 16, and what is said hardly changes.

The same texts are read through caches of different element types, each of them real: what is counted is the
bytes of its pages, scales included, and what is attended to are the codes. The reference is the float32
cache. The loss is what a token costs more, in nats; as the model wrote the texts itself, that is on average
the divergence of what it says with the two caches, which decides. The control is a cache in full float32
that forgets: if leaving out all but the last tokens costs nothing either, the texts need no cache at all.
Text is forgiving, so pairs of keys and values are looked up through the codes as well.

INT4 and INT8 by channel (KIVI) encode a page when it is full: the latest tokens, up to 31, are still as they
came. That is why they lose less here than their bits suggest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, Reading, loss, loss_numbers, read, write_texts
from qkv.lab.recalling import AS_WELL, able_recall_model, answers_right
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import Model
from qkv.training.recall import draw_questions

Read = Callable[[Model, Ids, str], Reading]
"""A model, a text and an element type, to what was said and the bytes it took."""

CODES: Mapping[str, str] = {
    "fp16": "fp16",
    "int8": "int8",
    "int8_kivi": "int8-kivi",
    "e4m3": "fp8-e4m3",
    "e5m2": "fp8-e5m2",
    "int4": "int4",
}
"""What numbers are called here, and the policy that stores them so."""

CLAIMED = ("int8", "e4m3")
"""Those that the claim is about."""

HALF = 1.9
"""Times smaller than in 16 bits: half, but for a twentieth."""
HARDLY = 0.01
"""Nats per token: about one hundredth of the perplexity."""
SAME = 0.95
"""Of first choices, as a share: where two tokens are about as likely, any change may exchange them."""


@dataclass(frozen=True)
class Codes:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts, at least 2, of how many tokens: whole pages of every element type, 32.
    forgetful : int
        Tokens that the control keeps.
    N, rows_each : int
        Pairs to look up, and how often each is asked for.
    """

    texts: int = 5
    T: int = 256
    forgetful: int = 8
    N: int = 32
    rows_each: int = 2


def measure(settings: Codes, instruments: Instruments, *, read: Read = read) -> Measured:
    """Read the same texts through every element type, and through a cache that forgets."""
    model = instruments.text_model()
    texts = write_texts(model, settings.texts, settings.T, instruments.generator("codes"))
    full = [read(model, text, "") for text in texts]
    numbers: dict[str, Number | float] = {"D": model.cache_shape.head_dim, "kept": settings.forgetful}
    nbytes: dict[str, int] = {}
    for name, policy in {**CODES, "forgetful": f"window={settings.forgetful}"}.items():
        others = [read(model, text, policy) for text in texts]
        losses = [loss(*three) for three in zip(full, others, texts, strict=True)]
        numbers |= loss_numbers(name, losses)
        nbytes[name] = others[0].nbytes
    for name in CODES:
        numbers |= {f"{name}_bytes": nbytes[name], f"{name}_saving": nbytes["fp16"] / nbytes[name]}
    numbers["worst_agreement"] = min(Measured(numbers).value(f"{name}_agreement") for name in CLAIMED)
    measured = Measured(numbers | recall_numbers(settings, instruments))
    return Measured(measured.numbers, picture_series(measured))


def recall_numbers(settings: Codes, instruments: Instruments) -> dict[str, float]:
    """Return the share of right answers by element type; nothing where no model can answer."""
    questions = draw_questions(instruments.generator("codes recall"), settings.N, settings.rows_each)
    model = able_recall_model(instruments, questions)
    if model is None:
        return {}
    policies = {"float32": "", **CODES}
    right = {name: float(answers_right(model, questions, policies[name]).mean()) for name in policies}
    numbers = {f"{name}_recall": share for name, share in right.items()}
    return numbers | {"int8_recall_kept": right["int8"] / right["float32"]}


def picture_series(measured: Measured) -> dict[str, list[Any]]:
    """Return bytes and losses by element type."""
    columns = {
        what: [measured.value(f"{name}_{what}") for name in CODES] for what in ("bytes", "saving", "kl")
    }
    return {"code": list(CODES.values()), **columns}


CODES_IN_CACHE = Experiment(
    id="h",
    name="codes",
    title=Words("Keys and values in 8 bits", "8 位的键和值"),
    claim=Words(
        "Storing the KV cache in INT8 or FP8 in place of FP16 halves its memory at hardly any loss.",
        "把 KV 缓存从 FP16 降为 INT8 或 FP8，内存减半，精度损失极小。",
    ),
    source="Liu et al. 2024 (KIVI); Hooper et al. 2024 (KVQuant); the article, section 2.5",
    quick=Codes(),
    full=Codes(texts=15, T=512, rows_each=8),
    measure=measure,
    shows=Words(
        "INT8 {int8_saving:.2f}x smaller, +{int8_kl:.4f} nats; FP8 {e4m3_saving:.2f}x, +{e4m3_kl:.4f}",
        "INT8 小 {int8_saving:.2f} 倍，+{int8_kl:.4f} nat；FP8 {e4m3_saving:.2f} 倍，+{e4m3_kl:.4f}",
    ),
    article="1/2",
    parts=(
        Part(
            Words("INT8 halves the bytes, its scales included", "INT8 连同缩放系数，字节数减半"),
            at_least("int8_saving", HALF),
            Words(
                "{fp16_bytes:,.0f} → {int8_bytes:,.0f} bytes, {int8_saving:.2f}x: each {D:.0f} codes have a "
                "scale of 4 bytes",
                "{fp16_bytes:,.0f} → {int8_bytes:,.0f} 字节，{int8_saving:.2f} 倍：每 {D:.0f} 个编码有一个 "
                "4 字节的缩放系数",
            ),
            needs=Words(
                "heads are larger than D = {D:.0f}, for a scale takes 4 bytes beside D (1.94x at D = 128)",
                "头大于 D = {D:.0f}，因为 D 个字节之外还有 4 字节的缩放系数（D = 128 时为 1.94 倍）",
            ),
            article="1/2",
        ),
        Part(
            Words("FP8 halves them", "FP8 让字节数减半"),
            at_least("e4m3_saving", HALF),
            Words(
                "{e4m3_bytes:,.0f} bytes, {e4m3_saving:.2f}x", "{e4m3_bytes:,.0f} 字节，{e4m3_saving:.2f} 倍"
            ),
            article="1/2",
        ),
        Part(
            Words("INT8 changes hardly anything", "INT8 几乎没有改变"),
            at_most("int8_kl", HARDLY),
            Words(
                "{int8_kl:.5f} nats a token (on these texts {int8_nats:+.5f}); FP16 {fp16_kl:.1g}; "
                "the last {kept:.0f} tokens alone {forgetful_kl:.2f}",
                "每个 token {int8_kl:.5f} nat（在这些文本上 {int8_nats:+.5f}）；FP16 {fp16_kl:.1g}；"
                "只留最后 {kept:.0f} 个 token {forgetful_kl:.2f}",
            ),
        ),
        Part(
            Words("FP8 changes hardly anything", "FP8 几乎没有改变"),
            at_most("e4m3_kl", HARDLY),
            Words(
                "e4m3 {e4m3_kl:.5f} nats a token ({e4m3_nats:+.5f}), e5m2 {e5m2_kl:.5f} ({e5m2_nats:+.5f}); "
                "INT4, {int4_saving:.1f}x smaller, {int4_kl:.5f}",
                "e4m3 每个 token {e4m3_kl:.5f} nat（{e4m3_nats:+.5f}），e5m2 {e5m2_kl:.5f}"
                "（{e5m2_nats:+.5f}）；INT4（小 {int4_saving:.1f} 倍）{int4_kl:.5f}",
            ),
        ),
        Part(
            Words("the first choice stays the same, 95 times in 100", "首选 token 每 100 次有 95 次不变"),
            at_least("worst_agreement", SAME),
            "INT8 {int8_agreement:.1%}, e4m3 {e4m3_agreement:.1%}; e5m2 {e5m2_agreement:.1%}, "
            "INT4 {int4_agreement:.1%}",
        ),
        Part(
            Words("what was read is looked up as well in INT8", "用 INT8 也照样能找回读过的内容"),
            at_least("int8_recall_kept", AS_WELL),
            Words(
                "{int8_recall:.1%} of pairs found, float32 {float32_recall:.1%}, INT4 {int4_recall:.1%}",
                "找回 {int8_recall:.1%} 的键值对，float32 {float32_recall:.1%}，INT4 {int4_recall:.1%}",
            ),
        ),
    ),
    controls=(
        Control(
            at_least("forgetful_kl", HARDLY),
            Words(
                "a cache of the last few tokens costs nothing either: the texts need no memory",
                "只留最后几个 token 的缓存也没有损失：这些文本不需要记忆",
            ),
        ),
    ),
)
