"""(j) A sliding window keeps the last W tokens only: what that saves, and what is lost with the rest.

A query sees its own key and the W - 1 before it. The cache is a real one: pages that have fallen behind the
window go back, and the bytes of what is left are counted. Two kinds of reading show what that costs. Text
mostly goes by what stands nearby, and L layers hand on what each of them saw, from up to L (W - 1) tokens
back. Looking up a value by its key needs that very pair, and what has left the window cannot be found.

Both are tried once more with the first tokens kept (attention sinks), in a window that is smaller by as many:
a token that a model rests its attention on would be missed. The controls: a cache that keeps everything,
whose bytes must grow with the text, and the share of pairs still in sight, which the answers must follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from numpy.typing import NDArray

from qkv.lab.experiment import Control, Experiment, Part, at_least, at_most
from qkv.lab.instruments import Instruments
from qkv.lab.own_texts import Ids, Reading, loss, loss_numbers, read, write_texts
from qkv.lab.recalling import AS_WELL, able_recall_model, answers_right
from qkv.lab.result import Measured, Number
from qkv.lab.words import Words
from qkv.models import Model
from qkv.training.recall import Questions, draw_questions

Read = Callable[[Model, Ids, str], Reading]
"""A model, a text and a policy, to what was said and the bytes it took."""

WAYS = ("window", "sinks")
"""A plain window, and one that keeps the first tokens as well."""


@dataclass(frozen=True)
class Windows:
    """Settings.

    Parameters
    ----------
    texts, T : int
        How many texts, at least 2, of how many tokens.
    sizes : sequence of int
        W on text, from small to large; the loss is counted behind the largest.
    W : int
        The one of them that the claim is tried with.
    sinks : int
        First tokens that stay, in a window that is smaller by as many.
    N, rows_each : int
        Pairs to look up, and how often each is asked for.
    recall_sizes : sequence of int
        W on pairs, from small to large.
    recall_window : int
        The one of them that the claim is tried with.
    """

    texts: int = 4
    T: int = 384
    sizes: Sequence[int] = (8, 16, 32, 64, 128)
    W: int = 128
    sinks: int = 4
    N: int = 32
    rows_each: int = 2
    recall_sizes: Sequence[int] = (16, 32, 48, 67)
    recall_window: int = 32

    def sinks_of(self, way: str) -> int:
        """Return how many first tokens one of the two ways keeps."""
        return self.sinks if way == "sinks" else 0


def policy_of(W: int, sinks: int = 0) -> str:
    """Return the policy that keeps W tokens in sight, some of them the first.

    Examples
    --------
    >>> policy_of(32), policy_of(32, sinks=4)
    ('window=32', 'window=28,sinks=4')
    """
    return f"window={W - sinks},sinks={sinks}" if sinks else f"window={W}"


def measure(settings: Windows, instruments: Instruments, *, read: Read = read) -> Measured:
    """Read texts and look up pairs through windows of every size, with and without sinks."""
    text_numbers, text_series = on_text(settings, instruments, read)
    recall_numbers, recall_series = on_pairs(settings, instruments)
    return Measured(
        {"sinks": settings.sinks, **text_numbers, **recall_numbers}, {**text_series, **recall_series}
    )


def on_text(
    settings: Windows, instruments: Instruments, read: Read
) -> tuple[dict[str, Number | float], dict[str, list[Any]]]:
    """Return what each window costs on text the model wrote, and what it takes."""
    model = instruments.text_model()
    texts = write_texts(model, settings.texts, settings.T, instruments.generator("windows"))
    full, start = [read(model, text, "") for text in texts], max(settings.sizes)
    series: dict[str, list[Any]] = {"W": list(settings.sizes)} | {f"{way}_kl": [] for way in WAYS}
    numbers: dict[str, Number | float] = {"W": settings.W, "smallest": min(settings.sizes)}
    for way, W in product(WAYS, settings.sizes):
        others = [read(model, text, policy_of(W, settings.sinks_of(way))) for text in texts]
        losses = [loss(*three, start) for three in zip(full, others, texts, strict=True)]
        found = loss_numbers(way, losses)
        series[f"{way}_kl"].append(found[f"{way}_kl"].value)
        if settings.W == W:
            numbers |= found
        if min(settings.sizes) == W:
            numbers[f"smallest_{way}_kl"] = found[f"{way}_kl"]
    without, with_sinks = (series[f"{way}_kl"][0] for way in WAYS)
    numbers["sinks_save"] = share_saved(without, with_sinks)
    return numbers | growth(settings, model, texts[0], read), series


def share_saved(without: float, with_sinks: float) -> float:
    """Return which share of a loss sinks take away; less than 0 where they add to it.

    Examples
    --------
    >>> share_saved(0.25, 0.0625), share_saved(0.25, 0.5)
    (0.75, -1.0)
    """
    return 1 - with_sinks / without if without else 0.0


def growth(settings: Windows, model: Model, text: Ids, read: Read) -> dict[str, float]:
    """Return the bytes behind half of a text and behind all of it, with a window and with everything."""
    numbers: dict[str, float] = {}
    for name, policy in (("window", policy_of(settings.W)), ("full", "")):
        half, whole = (read(model, text[:T], policy).nbytes for T in (len(text) // 2, len(text)))
        numbers |= {f"{name}_bytes": whole, f"{name}_growth": whole / half}
    return numbers


def on_pairs(
    settings: Windows, instruments: Instruments
) -> tuple[dict[str, Number | float], dict[str, list[Any]]]:
    """Return the share of right answers by window; nothing where no model can answer."""
    questions = draw_questions(instruments.generator("windows recall"), settings.N, settings.rows_each)
    model = able_recall_model(instruments, questions)
    if model is None:
        return {}, {}
    series: dict[str, list[Any]] = {"recall_W": list(settings.recall_sizes), "kept": []}
    series |= {f"{way}_recall": [] for way in WAYS}
    for W in settings.recall_sizes:
        series["kept"].append(float(in_sight(questions, W).mean()))
        for way in WAYS:
            right = answers_right(model, questions, policy_of(W, settings.sinks_of(way)))
            series[f"{way}_recall"].append(float(right.mean()))
    return pair_numbers(model, questions, settings.recall_window), series


def pair_numbers(model: Model, questions: Questions, W: int) -> dict[str, Number | float]:
    """Return the right answers through one window: of all pairs, and of those in sight."""
    full, through = (answers_right(model, questions, policy) for policy in ("", policy_of(W)))
    seen = in_sight(questions, W)
    return {
        "recall_W": W,
        "kept": float(seen.mean()),
        "recall_full": float(full.mean()),
        "recall": float(through.mean()),
        "recall_kept": float(through.mean() / full.mean()),
        "recall_in_sight": float(through[seen].mean()),
        "in_sight_kept": float(through[seen].mean() / full[seen].mean()),
    }


def in_sight(questions: Questions, W: int) -> NDArray[Any]:
    """Return for each row whether the last query still sees the value that is asked for: ``(B,)`` bool.

    Examples
    --------
    Of ``<s> k v k v ? k`` the last five tokens hold both values, the last three one, the last two none:

    >>> import numpy as np
    >>> questions = draw_questions(np.random.default_rng(0), N=2, rows_each=1)
    >>> [in_sight(questions, W).tolist() for W in (5, 4, 3, 2)]
    [[True, True], [False, True], [False, True], [False, False]]
    """
    T = questions.ids.shape[1]
    return 2 * questions.asked + 2 >= T - W


WINDOWS = Experiment(
    id="j",
    name="windows",
    title=Words("A sliding window", "滑动窗口"),
    claim=Words(
        "A sliding window caches only the last N tokens' keys and values, and that is enough.",
        "滑动窗口只缓存最近 N 个 token 的 K/V，而且够用。",
    ),
    source="Beltagy et al. 2020; Jiang et al. 2023 (Mistral); Xiao et al. 2023; the article, section 2.5",
    quick=Windows(),
    full=Windows(texts=15, T=512, sizes=(8, 16, 32, 64, 128, 256), rows_each=8),
    measure=measure,
    shows=Words(
        "W = {W:.0f}: +{window_kl:.3f} nats on text; pairs found {recall:.0%}",
        "W = {W:.0f}：文本 +{window_kl:.3f} nat；找回键值对 {recall:.0%}",
    ),
    parts=(
        Part(
            Words(
                "only the last W tokens take memory, however long the text",
                "无论文本多长，只有最近 W 个 token 占内存",
            ),
            at_most("window_growth", 1.1),
            Words(
                "{window_bytes:,.0f} bytes, times {window_growth:.2f} when the text doubles; "
                "with everything kept {full_bytes:,.0f}, times {full_growth:.2f}",
                "{window_bytes:,.0f} 字节，文本加倍时为 {window_growth:.2f} 倍；"
                "全部保留时 {full_bytes:,.0f} 字节，{full_growth:.2f} 倍",
            ),
        ),
        Part(
            Words("text hardly loses anything", "对文本几乎没有损失"),
            at_most("window_kl", 0.05),  # nats per token: a twentieth of the perplexity
            Words(
                "W = {W:.0f}: {window_kl:.4f} nats a token; W = {smallest:.0f}: {smallest_window_kl:.3f}",
                "W = {W:.0f}：每个 token {window_kl:.4f} nat；W = {smallest:.0f}：{smallest_window_kl:.3f}",
            ),
            needs=Words("the window is larger than {W:.0f} tokens", "窗口大于 {W:.0f} 个 token"),
        ),
        Part(
            Words("the first tokens can go like any others", "开头的 token 可以像其他 token 一样丢弃"),
            at_most("sinks_save", 0.25),
            Words(
                "W = {smallest:.0f}: {smallest_window_kl:.3f} nats, {smallest_sinks_kl:.3f} if {sinks:.0f} "
                "of them are the first",
                "W = {smallest:.0f}：{smallest_window_kl:.3f} nat；若其中 {sinks:.0f} 个是开头的 token："
                "{smallest_sinks_kl:.3f}",
            ),
            needs=Words("the first {sinks:.0f} tokens stay as well", "同时保留最前面的 {sinks:.0f} 个 token"),
        ),
        Part(
            Words("what was read can still be looked up", "读过的内容仍能找回"),
            at_least("recall_kept", AS_WELL),
            Words(
                "{recall:.0%} of pairs found with W = {recall_W:.0f}, {recall_full:.0%} with all kept; "
                "{kept:.0%} are in sight",
                "W = {recall_W:.0f} 时找回 {recall:.0%} 的键值对，全部保留时 {recall_full:.0%}；"
                "{kept:.0%} 在窗口内",
            ),
            needs=Words("nothing farther back than the window is asked for", "不会问到窗口之外的内容"),
        ),
        Part(
            Words("what is in the window is found as with everything kept", "窗口之内的内容照样能找到"),
            at_least("in_sight_kept", AS_WELL),
            Words("{recall_in_sight:.0%} of the pairs in sight", "窗口内的键值对找回 {recall_in_sight:.0%}"),
        ),
    ),
    controls=(
        Control(
            at_least("full_growth", 1.8),
            Words(
                "the bytes of a cache that keeps everything do not grow either",
                "全部保留的缓存，字节数也不增长",
            ),
        ),
        Control(
            at_least("smallest_window_kl", 0.01),
            Words(
                "the text costs no more in the smallest window either, so it tells nothing",
                "最小的窗口下文本损失也不增加，因此说明不了什么",
            ),
        ),
    ),
)
