"""(i) One key head for several query heads makes the cache smaller; what that costs in what is said.

Three siblings come with qkv: small models of the same text that differ in their key heads alone, 8, 2 or 1
for 8 query heads (MHA, GQA, MQA). Each kind was trained from three seeds for the same number of steps, with
the same windows of text for the three models of a seed. What they were found to cost on held-out plays was
recorded then and lies beside them; a cost is a sibling's loss against MHA's of the same seed. The models of
the first seed are read here as well, on texts that another model, trained on the same plays, writes anew.
The controls: how far the seeds of one kind lie apart, and a sibling that has learned nothing.

Bytes are those of real caches, and must be what the planner says of the models' configs. For speed, one
random model is written down three times: its single key head once, twice, and for every query head. That is
the same function, to the bit, from caches of three sizes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import CheckpointError
from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, Reading, read, write_texts
from qkv.lab.random_models import VOCABULARY, random_llama
from qkv.lab.repeated_heads import NextToken, decoding, next_token, require_equal, with_key_heads
from qkv.lab.result import Measured, Number
from qkv.lab.trained import NotTestable
from qkv.lab.words import Words
from qkv.models import Llama, Model, load
from qkv.models.shipped import folder_of
from qkv.planner import plan
from qkv.training.siblings import KEY_HEADS, HeldOut

Numbers = dict[str, Number | float]
Read = Callable[[Model, Ids], Reading]
"""A model and a text, to what was said and the bytes it took."""

MHA, GQA, MQA = KEY_HEADS
FEWER = (GQA, MQA)

ALMOST_NONE, ANYTHING = 0.01, 0.001
"""Of the loss in bits: about what another seed may cost, and so little that it is only told by its sign."""
FASTER = 1.2
"""Times as fast: well beyond what a clock makes of two runs of the same."""


@dataclass(frozen=True)
class KeyHeads:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts are written to read here, at least 2, and of how many of their writer's tokens.
    context : int
        S, keys that a new token sees where decoding is timed.
    new_tokens : int
        That are made there in one run.
    E : int
        Width of the model that is timed, of one layer.
    pairs : int
        Rounds of timing.
    """

    texts: int = 24
    T: int = 192
    context: int = 4096
    new_tokens: int = 32
    E: int = 512
    pairs: int = 9


@dataclass(frozen=True, eq=False)
class Siblings:
    """The three models, by name, where they lie, and what was recorded when they were trained."""

    models: Mapping[str, Model]
    folder: Path
    held_out: HeldOut

    @classmethod
    def load(cls, folder: Path) -> "Siblings":
        """Load all three and their record."""
        return cls({name: load(folder / name) for name in KEY_HEADS}, folder, HeldOut.read(folder))


def shipped_siblings() -> Siblings:
    """Return the siblings that come with qkv.

    Raises
    ------
    NotTestable
        If they are not there.
    """
    try:
        folder = folder_of(f"siblings/{MHA}").parent
    except CheckpointError:
        missing = Words("the trained siblings are not installed", "没有安装训练好的对照模型")
        raise NotTestable(missing) from None
    return Siblings.load(folder)


def measure(
    settings: KeyHeads,
    instruments: Instruments,
    *,
    siblings: Callable[[], Siblings] = shipped_siblings,
    read: Read = read,
    step: NextToken = next_token,
) -> Measured:
    """Take bytes and losses of the siblings, as recorded and here, then the speed of random models."""
    found = siblings()
    texts = texts_of(instruments, settings)
    numbers, series = numbers_here(found, texts, read)
    speeds, milliseconds = decode_numbers(settings, instruments, step)
    return Measured(
        recorded_numbers(found.held_out) | numbers | untrained_numbers(found, texts, read) | speeds,
        {"name": list(KEY_HEADS), "G": list(KEY_HEADS.values()), "seeds": found.held_out.seeds}
        | {"recorded": [found.held_out.bits_per_byte[name] for name in KEY_HEADS]}
        | series
        | {"milliseconds": milliseconds},
    )


def recorded_numbers(record: HeldOut) -> Numbers:
    """Return what was found on held-out plays at training: bits per byte, and costs seed by seed.

    Examples
    --------
    >>> bits = {"mha": [2.0, 2.5], "gqa": [2.0, 2.75], "mqa": [2.5, 3.125]}
    >>> found = recorded_numbers(HeldOut(["tempest"], 1000, [0, 1], bits))
    >>> found["mqa_cost"], found["seed_spread"]
    (Number(value=0.25, low=0.25, high=0.25, is_timed=False), 0.25)
    """
    full = record.bits_per_byte[MHA]
    numbers: Numbers = {"steps": record.steps, "num_seeds": len(record.seeds)}
    numbers |= {f"{name}_bits": Number.of(bits) for name, bits in record.bits_per_byte.items()}
    for name in FEWER:
        pairs = zip(record.bits_per_byte[name], full, strict=True)
        costs = [bits / of_full - 1 for bits, of_full in pairs]
        numbers |= {f"{name}_cost": Number.of(costs), f"{name}_least_cost": min(costs)}
    numbers["seed_spread"] = (max(full) - min(full)) / min(full)
    return numbers


def texts_of(instruments: Instruments, settings: KeyHeads) -> list[str]:
    """Return texts that the larger model of the same plays writes."""
    writer = instruments.text_model()
    assert writer.tokenizer is not None, "a model of text has a tokenizer"
    ids = write_texts(writer, settings.texts, settings.T, instruments.generator("key heads"))
    return [writer.tokenizer.decode(text[1:].tolist()) for text in ids]


def numbers_here(siblings: Siblings, texts: list[str], read: Read) -> tuple[Numbers, dict[str, Any]]:
    """Return bits per character of each sibling, its costs text by text, and the bytes of its cache."""
    bits = {
        name: [bits_per_character(one, text, read) for text in texts] for name, one in siblings.models.items()
    }
    nbytes = {name: read(one, ids_of(one, texts[0])).nbytes for name, one in siblings.models.items()}
    numbers: Numbers = {f"{name}_here_bits": Number.of(of_name) for name, of_name in bits.items()}
    numbers |= {f"{name}_bytes": of_name for name, of_name in nbytes.items()}
    numbers["planned_off"] = max(
        abs(of_name - planned_bytes(siblings, name, texts[0])) for name, of_name in nbytes.items()
    )
    for name in FEWER:
        pairs = zip(bits[name], bits[MHA], strict=True)
        numbers[f"{name}_here_cost"] = Number.of([few / full - 1 for few, full in pairs])
        numbers[f"{name}_saving"] = nbytes[MHA] / nbytes[name]
    here = [float(np.mean(bits[name])) for name in KEY_HEADS]
    return numbers, {"here": here, "bytes": [nbytes[name] for name in KEY_HEADS]}


def planned_bytes(siblings: Siblings, name: str, text: str) -> int:
    """Return what the planner says that a text's cache takes, of the config alone."""
    T = len(ids_of(siblings.models[name], text))
    return plan(siblings.folder / name, users=1, context=T, engine="qkv").bytes


def untrained_numbers(siblings: Siblings, texts: list[str], read: Read) -> Numbers:
    """Return what the texts cost a sibling that has learned nothing, and how much more that is."""
    trained = siblings.models[MHA]
    assert isinstance(trained, Llama), "that is what is trained"
    c = trained.config
    drawn = random_llama(
        np.random.default_rng(0), E=c.E, L=c.L, H=c.H, G=c.G, context_length=c.context_length, V=c.V
    )
    untrained = replace(drawn, tokenizer=trained.tokenizer)
    bits, learned = (
        [bits_per_character(model, text, read) for text in texts] for model in (untrained, trained)
    )
    return {
        "untrained_bits": Number.of(bits),
        "untrained_cost": float(np.mean(bits) / np.mean(learned) - 1),
    }


def bits_per_character(model: Model, text: str, read: Read) -> float:
    """Return what a text costs a model, in bits, for each character that it has room for."""
    assert model.tokenizer is not None, "a model of text has a tokenizer"
    ids = ids_of(model, text)
    said = read(model, ids).log_probs[np.arange(len(ids) - 1), ids[1:]]
    return float(-said.sum() / np.log(2)) / len(model.tokenizer.decode(ids[1:].tolist()))


def ids_of(model: Model, text: str) -> Ids:
    """Return a text as a model's ids, behind the one that begins it, up to the model's context."""
    assert model.tokenizer is not None, "a model of text has a tokenizer"
    return np.array(model.tokenizer.encode(text)[: model.context_length], np.int64)


def decode_numbers(
    settings: KeyHeads, instruments: Instruments, step: NextToken
) -> tuple[Numbers, list[float]]:
    """Return how many times as fast a token is made behind a long text, round by round."""
    random = instruments.generator("key heads, decoding")
    H, context = KEY_HEADS[MHA], settings.context
    one = random_llama(random, E=settings.E, L=1, H=H, G=1, context_length=2 * context)
    ids = random.integers(0, VOCABULARY, context)
    runs = {
        name: decoding(with_key_heads(one, G), ids, settings.new_tokens, step)
        for name, G in KEY_HEADS.items()
    }
    require_equal([run() for run in runs.values()])
    times = replace(instruments.stopwatch, pairs=settings.pairs).time_in_turn(runs)
    numbers: Numbers = {"context": context}
    for name in FEWER:
        pairs = zip(times[MHA], times[name], strict=True)
        numbers[f"{name}_speedup"] = Number.of([full / few for full, few in pairs], is_timed=True)
    return numbers, [float(np.median(times[name])) / settings.new_tokens * 1e3 for name in KEY_HEADS]


KEY_HEADS_SHARED = Experiment(
    id="i",
    name="key-heads",
    title=Words("Fewer key heads: MHA, GQA, MQA", "更少的键头：MHA、GQA、MQA"),
    claim=Words(
        "GQA makes the KV cache 4 to 8 times smaller at almost no loss; MQA makes it smallest, "
        "but costs quality.",
        "GQA 把 KV 缓存缩小 4 到 8 倍，几乎没有损失；MQA 缩小得最多，但会损失质量。",
    ),
    source="Shazeer 2019; Ainslie et al. 2023; the article, section 2.5",
    elsewhere=Words(
        (
            "Ainslie et al. find that MQA costs quality and that GQA wins most of it back, in models "
            "trained long. The siblings here are small and trained a few hundred steps: the seeds "
            "show how much of a difference is chance."
        ),
        (
            "Ainslie 等人在训练充分的模型上发现 MQA 有损质量、GQA 大多能补回。这里的三个小模型只训练"
            "了几百步：几个种子之间的差距说明差别里有多少是偶然。"
        ),
    ),
    quick=KeyHeads(),
    full=KeyHeads(texts=200, context=16384, pairs=15),
    measure=measure,
    shows=Words(
        "GQA {gqa_saving:.0f}x smaller, loss {gqa_cost:+.1%}; MQA {mqa_saving:.0f}x, {mqa_cost:+.1%}",
        "GQA 小 {gqa_saving:.0f} 倍，损失 {gqa_cost:+.1%}；MQA 小 {mqa_saving:.0f} 倍，{mqa_cost:+.1%}",
    ),
    article="4-8x",
    parts=(
        Part(
            Words(
                "with a key head for 4 query heads (GQA) the cache takes a quarter",
                "每 4 个查询头共用一个键头（GQA）时，缓存只占四分之一",
            ),
            at_least("gqa_saving", 4.0),
            Words(
                "{mha_bytes:,.0f} → {gqa_bytes:,.0f} bytes of a real cache, {gqa_saving:g}x smaller",
                "真实缓存 {mha_bytes:,.0f} → {gqa_bytes:,.0f} 字节，小 {gqa_saving:g} 倍",
            ),
            article="4-8x",
        ),
        Part(
            Words("with one for all 8 (MQA), an eighth", "8 个查询头共用一个（MQA）时，只占八分之一"),
            at_least("mqa_saving", 8.0),
            Words(
                "{mqa_bytes:,.0f} bytes, {mqa_saving:g}x smaller",
                "{mqa_bytes:,.0f} 字节，小 {mqa_saving:g} 倍",
            ),
        ),
        Part(
            Words(
                "the planner knows these bytes from the config alone",
                "规划器只凭配置就能算出这些字节数",
            ),
            at_most("planned_off", 0.0),
            Words("off by {planned_off:.0f} bytes", "相差 {planned_off:.0f} 字节"),
        ),
        Part(
            Words("GQA costs almost nothing in loss", "GQA 几乎不增加损失"),
            at_most("gqa_cost", ALMOST_NONE),
            Words(
                "recorded at training, {num_seeds:.0f} seeds of {steps:.0f} steps: {gqa_bits:.3f} bits a "
                "byte, MHA {mha_bits:.3f}: {gqa_cost:+.2%}; seeds of MHA lie {seed_spread:.2%} apart",
                "训练时的记录，{num_seeds:.0f} 个种子，各 {steps:.0f} 步：每字节 {gqa_bits:.3f} 比特，MHA "
                "{mha_bits:.3f}：{gqa_cost:+.2%}；MHA 的种子之间相差 {seed_spread:.2%}",
            ),
        ),
        Part(
            Words("so too on texts that are written and read here", "在此处写出并读入的文本上也一样"),
            at_most("gqa_here_cost", ALMOST_NONE),
            Words(
                "{gqa_here_bits:.3f} bits a character, MHA {mha_here_bits:.3f}, untrained "
                "{untrained_bits:.1f}: {gqa_here_cost:+.2%}; MQA {mqa_here_cost:+.2%} (one seed)",
                "每字符 {gqa_here_bits:.3f} 比特，MHA {mha_here_bits:.3f}，未训练 {untrained_bits:.1f}："
                "{gqa_here_cost:+.2%}；MQA {mqa_here_cost:+.2%}（一个种子）",
            ),
            needs=Words(
                "a single training may say otherwise, as the one read here does",
                "单独一次训练可能相反，此处读的这一次就是",
            ),
            role="aside",
        ),
        Part(
            Words("MQA costs quality, whatever the seed", "不论种子，MQA 都会损失质量"),
            at_least("mqa_least_cost", ANYTHING),
            Words(
                "recorded at training: {mqa_bits:.3f} bits a byte, {mqa_cost:+.2%}; the least of all seeds "
                "{mqa_least_cost:+.2%}",
                "训练时的记录：每字节 {mqa_bits:.3f} 比特，{mqa_cost:+.2%}；"
                "各种子中最少 {mqa_least_cost:+.2%}",
            ),
            needs=Words(
                "models are trained until one key head is too few: in {steps:.0f} steps not every seed tells",
                "模型训练得足够久，一个键头才不够用：{steps:.0f} 步时并非每个种子都能看出",
            ),
        ),
        Part(
            Words(
                "fewer key heads make tokens faster behind a long text", "键头越少，长文本之后生成 token 越快"
            ),
            at_least("gqa_speedup", FASTER),
            Words(
                "behind {context:,.0f} tokens GQA is {gqa_speedup:.2f}x as fast as MHA, "
                "MQA {mqa_speedup:.2f}x",
                "在 {context:,.0f} 个 token 之后，GQA 的速度是 MHA 的 {gqa_speedup:.2f} 倍，"
                "MQA {mqa_speedup:.2f} 倍",
            ),
            needs=Words(
                "the text is so long that reading keys and values takes much of a step",
                "文本足够长，读取键和值占了一步的大部分时间",
            ),
        ),
    ),
    controls=(
        Control(
            at_least("untrained_cost", 0.25),
            Words(
                "a sibling that has learned nothing reads these texts as well: they tell no models apart",
                "没有学过任何东西的模型读这些文本也一样好：这些文本无法区分模型",
            ),
        ),
    ),
)
