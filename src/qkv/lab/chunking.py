"""(m) A long document in chunks, each asked on its own, against the whole of it put into the context.

A small model cannot sum up a document, but it can be asked for a fact in one. So a document here is a list of
facts, each a key and its value, and reading it in chunks is a map and a reduce: every chunk is asked the same
question, and of the answers the one given with the highest probability counts. One document fits what the
model was trained to read, one is twice as long, and one is far longer: it tells the same facts several times,
each time in another order, as there are no more keys. What either way takes is read off real caches.

Two controls keep this honest. In a document that fits there is nothing to gain, so what chunks change there
is their price: a chunk without the fact answers too, and now and then it is the surest. And an answer taken
from any chunk must be much worse than the surest one.

Some questions have their answer in two places: the value of one key names another key, whose value is asked
for. Asked of a whole document, or of all its chunks in two rounds, that is two questions. A chunk that
answers by itself takes both steps in what it holds, and can only guess if the second fact is elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from qkv.lab.documents import Answers, Choose, Documents, Floats, Ids, ask, draw_documents, questions, surest
from qkv.lab.experiment import Control, Experiment, Part, at_least
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import as_much
from qkv.lab.recalling import ABLE, AS_WELL
from qkv.lab.result import Measured
from qkv.lab.words import Words
from qkv.models import Model, new_cache

MORE = 0.1
"""Of ten questions one more is answered."""
AT_ALL = 0.02
"""Of fifty questions one more."""
HALF = 2.0
"""How many times as much the whole takes."""

Curve = dict[int, float]
"""The share of right answers by the facts in a chunk."""


@dataclass(frozen=True)
class Chunking:
    """Settings.

    Parameters
    ----------
    fits, N : int
        Facts in a document that is as long as those in training, and in one that is too long.
    tellings : int
        How often the longest document tells the N facts.
    size : int
        Facts in a chunk that the claim is tried with.
    sizes : sequence of int
        Facts in a chunk for a curve, from small to large: `fits`, ``size`` and, at the end, N are among them.
    long_sizes : sequence of int
        The same for the longest document: from ``size`` to all that it tells.
    rows, long_rows : int
        Documents of either kind, each asked once.
    """

    fits: int = 32
    N: int = 64
    tellings: int = 4
    size: int = 32
    sizes: Sequence[int] = (2, 4, 8, 16, 32, 64)
    long_sizes: Sequence[int] = (32, 64, 128, 256)
    rows: int = 64
    long_rows: int = 32


def measure(settings: Chunking, instruments: Instruments, *, choose: Choose = surest) -> Measured:
    """Ask three documents in chunks of every size, then what needs two facts, and count what either takes."""
    model, draw = instruments.recall_model(), instruments.generator("chunking")
    fits, long = (draw_documents(draw, N, settings.rows) for N in (settings.fits, settings.N))
    longest = draw_documents(draw, settings.N, settings.long_rows, settings.tellings)
    curves = {
        "fits": curve(model, fits, [size for size in settings.sizes if size <= settings.fits], choose),
        "long": curve(model, long, settings.sizes, choose),
        "longest": curve(model, longest, settings.long_sizes, choose),
    }
    any_chunk = found(model, longest, settings.size, partial(anyone, draw))
    return Measured(
        {name: getattr(settings, name) for name in ("fits", "N", "size")}
        | numbers_of_curves(settings, curves)
        | {"any_chunk": any_chunk, "surest_gain": curves["longest"][settings.size] - any_chunk}
        | numbers_of_two(model, long, settings.size, choose)
        | costs(model, longest, settings.size),
        {f"{name}_size": list(shares) for name, shares in curves.items()}
        | {f"{name}_found": list(shares.values()) for name, shares in curves.items()},
    )


def curve(model: Model, documents: Documents, sizes: Sequence[int], choose: Choose) -> Curve:
    """Return the share of right answers by the facts in a chunk."""
    return {size: found(model, documents, size, choose) for size in sizes}


def found(model: Model, documents: Documents, size: int, choose: Choose) -> float:
    """Return the share of right answers when chunks of some size are asked."""
    said = ask(model, documents.chunks(size), documents.asked)
    return float((said.reduce(choose) == documents.answers).mean())


def anyone(draw: np.random.Generator, sure: Floats) -> Ids:
    """Return any chunk, however sure."""
    return draw.integers(sure.shape[1], size=len(sure))


def numbers_of_curves(settings: Chunking, curves: dict[str, Curve]) -> dict[str, float]:
    """Return what chunks find and what the whole document does."""
    fits, long, longest = (curves[name] for name in ("fits", "long", "longest"))
    smallest, size, all_told = min(settings.sizes), settings.size, max(settings.long_sizes)
    halves = fits[settings.fits // 2]
    return {
        "smallest": smallest,
        "fits_whole": fits[settings.fits],
        "fits_halves": halves,
        "fits_gain": halves - fits[settings.fits],
        "long_whole": long[settings.N],
        "long_chunks": long[size],
        "long_smallest": long[smallest],
        "smallest_kept": as_much(long[smallest], max(long.values())),
        "longest_whole": longest[all_told],
        "longest_chunks": longest[size],
        "longest_gain": longest[size] - longest[all_told],
    }


def numbers_of_two(model: Model, documents: Documents, size: int, choose: Choose) -> dict[str, float]:
    """Return right answers to questions of two steps: of the whole, of chunks together, of each by itself."""
    whole, rounds = (found_in_rounds(model, documents, one, choose) for one in (documents.N, size))
    alone = found_alone(model, documents, size, choose)
    return {"two_whole": whole, "two_rounds": rounds, "two_alone": alone, "two_kept": as_much(alone, whole)}


def found_in_rounds(model: Model, documents: Documents, size: int, choose: Choose) -> float:
    """Return the share of second facts found where all chunks take each step together."""
    chunks = documents.chunks(size)
    named = ask(model, chunks, documents.asked).reduce(choose)
    said = ask(model, chunks, named)
    return float((said.reduce(choose) == documents.second_answers).mean())


def found_alone(model: Model, documents: Documents, size: int, choose: Choose) -> float:
    """Return the same where each chunk takes both steps by itself, and is as sure as of both together."""
    chunks = documents.chunks(size)
    first = ask(model, chunks, documents.asked)
    second = ask(model, chunks, first.values)
    said = Answers(second.values, first.sure * second.sure)
    return float((said.reduce(choose) == documents.second_answers).mean())


def costs(model: Model, documents: Documents, size: int) -> dict[str, float]:
    """Return what one document and a question take, whole and in chunks."""
    N = documents.N
    numbers: dict[str, float] = {"told": N, "chunks": N // size}
    for name, one in (("whole", N), ("chunk", size)):
        numbers |= {
            f"{name}_T": 3 + 2 * one,
            f"{name}_bytes": peak_kv_bytes(model, documents, one),
            f"{name}_cells": score_cells(N, one),
        }
    return numbers | {
        "bytes_saving": numbers["whole_bytes"] / numbers["chunk_bytes"],
        "cells_saving": numbers["whole_cells"] / numbers["chunk_cells"],
    }


def peak_kv_bytes(model: Model, documents: Documents, size: int) -> int:
    """Return the most that keys and values take while the chunks of one document are read in turn."""
    taken = []
    for chunk in documents.chunks(size)[0]:
        cache = new_cache(model)
        model.next_logits(questions(chunk[None], documents.asked[:1]), cache)
        taken.append(cache.nbytes)
    return max(taken)


def score_cells(N: int, size: int) -> int:
    """Return how many scores one head computes to read N facts in chunks, the question in each included.

    Examples
    --------
    A chunk of 2 facts has 7 tokens with the question, and 1 + 2 + ... + 7 scores under the causal mask:

    >>> score_cells(4, size=2), score_cells(4, size=4)
    (56, 66)
    """
    T = 3 + 2 * size
    return N // size * T * (T + 1) // 2


CHUNKING = Experiment(
    id="m",
    name="chunking",
    title=Words("A long document in chunks", "长文档分块"),
    claim=Words(
        "A long document should be read in chunks whose answers are put together, not stuffed in whole.",
        "对于长文档，应分块处理再汇总，而不是把全文直接塞进上下文。",
    ),
    source="Chang et al. 2024 (BooookScore); Liu et al. 2023; the article, section 3.2",
    elsewhere=Words(
        (
            "A model of this size cannot summarise, so looking facts up stands for it. Told once, "
            "twice as many facts as in training are still found whole for the most part; told four "
            "times they are not. How steeply a model falls beyond its training is its own."
        ),
        (
            "这么小的模型不会写摘要，所以用查找事实来代替。事实是训练时的两倍、各说一遍时，整篇读大多"
            "还找得到；各说四遍就不行了。超出训练长度后跌得多快，因模型而异。"
        ),
    ),
    quick=Chunking(),
    full=Chunking(rows=512, long_rows=128, long_sizes=(4, 8, 16, 32, 64, 128, 256)),
    measure=measure,
    shows=Words(
        "{told:.0f} facts: whole {longest_whole:.0%}, chunks {longest_chunks:.0%}; "
        "{fits:.0f}: {fits_whole:.0%}, {fits_halves:.0%}",
        "{told:.0f} 条：全文 {longest_whole:.0%}，分块 {longest_chunks:.0%}；"
        "{fits:.0f} 条：{fits_whole:.0%}，{fits_halves:.0%}",
    ),
    parts=(
        Part(
            Words(
                "of a document far longer than any in training, chunks find more than the whole",
                "文档远长于训练长度时，分块找到的比全文多",
            ),
            at_least("longest_gain", MORE),
            Words(
                "{told:.0f} facts: {longest_whole:.0%} whole, {longest_chunks:.0%} in chunks of {size:.0f}, "
                "any chunk's answer {any_chunk:.0%}; {N:.0f} facts: {long_whole:.0%}, {long_chunks:.0%}",
                "{told:.0f} 条：全文 {longest_whole:.0%}，每块 {size:.0f} 条 {longest_chunks:.0%}，任取一块 "
                "{any_chunk:.0%}；{N:.0f} 条：{long_whole:.0%}，{long_chunks:.0%}",
            ),
            needs=Words("the model was not trained to read as much", "模型没有训练过这么长的文本"),
        ),
        Part(
            Words("of a document that fits as well", "文档放得下时也是如此"),
            at_least("fits_gain", AT_ALL),
            Words(
                "{fits:.0f} facts: {fits_whole:.1%} whole, {fits_halves:.1%} in two chunks",
                "{fits:.0f} 条：全文 {fits_whole:.1%}，分两块 {fits_halves:.1%}",
            ),
            needs=Words(
                "the document is longer than what the model was trained to read",
                "文档比模型训练时读的更长",
            ),
        ),
        Part(
            Words("however small the chunks are", "块再小也一样好"),
            at_least("smallest_kept", AS_WELL),
            Words(
                "{N:.0f} facts in chunks of {smallest:.0f}: {long_smallest:.0%}, of {size:.0f}: "
                "{long_chunks:.0%}",
                "{N:.0f} 条，每块 {smallest:.0f} 条：{long_smallest:.0%}，{size:.0f} 条：{long_chunks:.0%}",
            ),
            needs=Words(
                "chunks are large: the more of them, the more are sure of a wrong answer",
                "块要大：块越多，自信的错误答案越多",
            ),
        ),
        Part(
            Words("at most half of the memory is needed at a time", "同时占用的内存至多一半"),
            at_least("bytes_saving", HALF),
            Words(
                "{whole_T:.0f} → {chunk_T:.0f} tokens, {whole_bytes:,.0f} → {chunk_bytes:,.0f} bytes of keys "
                "and values at the peak",
                "{whole_T:.0f} → {chunk_T:.0f} 个 token，K/V 峰值 {whole_bytes:,.0f} → "
                "{chunk_bytes:,.0f} 字节",
            ),
        ),
        Part(
            Words("and at most half of the scores are computed", "计算的分数至多一半"),
            at_least("cells_saving", HALF),
            Words(
                "{whole_cells:,.0f} → {chunk_cells:,.0f} for each head; but every further question is read "
                "{chunks:.0f} times",
                "每个头 {whole_cells:,.0f} → {chunk_cells:,.0f}；但之后每个问题都要读 {chunks:.0f} 遍",
            ),
        ),
        Part(
            Words(
                "what needs facts of two chunks is answered as well",
                "需要两块中的事实的问题也同样能回答",
            ),
            at_least("two_kept", AS_WELL),
            Words(
                "{two_alone:.0%}, each chunk by itself; whole {two_whole:.0%}; two rounds through all chunks "
                "{two_rounds:.0%}",
                "每块独自回答 {two_alone:.0%}；全文 {two_whole:.0%}；所有块两轮 {two_rounds:.0%}",
            ),
            needs=Words(
                "the answer stands in one chunk, or each step is asked of all of them",
                "答案在同一块里，或者每一步都问所有块",
            ),
        ),
    ),
    controls=(
        Control(
            at_least("fits_whole", ABLE),
            Words("the model finds nothing in a short document either", "短文档模型也找不到"),
        ),
        Control(
            at_least("surest_gain", MORE),
            Words(
                "the surest chunk is right no more often than any",
                "最自信的块并不比任取一块更准",
            ),
        ),
    ),
)
